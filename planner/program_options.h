// Options of other programs and the fields that they mean, in one list. `why` reads them from logs
// (planner/why), and files for other programs are written with them (planner/formats).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

namespace zeroplan {

// The programs whose files or arguments zeroplan writes, and kOther for the rest.
enum class OtherProgram : uint8_t {
  kTrainer,     // transformers' TrainingArguments
  kTrl,         // TRL's ModelConfig and SFTConfig
  kAccelerate,  // the YAML of `accelerate launch`
  kTorchtitan,  // torchtitan's TOML: "training.seq_len"
  kOther
};

// The conversion of an option's value to that of a field.
enum class ValueKind : uint8_t {
  kText,
  kCount,
  kList,    // several words
  kSwitch,  // true: `on`, false: `off`
  kNamed    // kOptionValues
};

struct ProgramOption {
  OtherProgram program;
  std::string_view name, field;
  ValueKind kind;
  std::string_view on, off;  // kSwitch; empty: the value leaves the field open

  constexpr bool may_say(std::string_view text) const {
    return kind != ValueKind::kSwitch || text.empty() || text == on || text == off;
  }
};

struct OptionValue {
  std::string_view name, value, text;  // the option, the option's value, the field's text
};

// The number of sequences that the Trainer evaluates at the same time on a GPU. It is no field of a
// request.
inline constexpr std::string_view kEvalBatchFact = "per_device_eval_batch_size";

#define ZEROPLAN_OPTION(program, name, field, kind, on, off) \
  ProgramOption{OtherProgram::program, name, field, ValueKind::kind, on, off},
#define ZEROPLAN_OPTION_VALUE(name, value, text)
inline constexpr std::array kProgramOptions = {
#include "planner/program_options.inc"
};
#undef ZEROPLAN_OPTION
#undef ZEROPLAN_OPTION_VALUE
#define ZEROPLAN_OPTION(program, name, field, kind, on, off)
#define ZEROPLAN_OPTION_VALUE(name, value, text) OptionValue{name, value, text},
inline constexpr std::array kOptionValues = {
#include "planner/program_options.inc"
};
#undef ZEROPLAN_OPTION
#undef ZEROPLAN_OPTION_VALUE

// Finds an option by its name in logs; null: unknown.
constexpr const ProgramOption* FindOption(std::string_view name) {
  const auto* found = std::find_if(kProgramOptions.begin(), kProgramOptions.end(),
                                   [&](const ProgramOption& o) { return o.name == name; });
  return found == kProgramOptions.end() ? nullptr : found;
}

// The option by which `program` sets `field`. If `text` is given, a switch must be able to express
// it. Does not compile if the list has no such option.
consteval std::string_view OptionName(OtherProgram program, std::string_view field,
                                      std::string_view text = "") {
  for (const ProgramOption& option : kProgramOptions) {
    if (option.program == program && option.field == field && option.may_say(text)) {
      return option.name;
    }
  }
  throw "no option of this program says that";
}

// The field's text that a kNamed option means by `value`; empty: unknown.
constexpr std::string_view TextOfOption(std::string_view name, std::string_view value) {
  for (const OptionValue& row : kOptionValues) {
    if (row.name == name && row.value == value) return row.text;
  }
  return "";
}

// The value of a kNamed option for the field's `text`; `text` itself if the list has none.
constexpr std::string_view ValueForText(std::string_view name, std::string_view text) {
  for (const OptionValue& row : kOptionValues) {
    if (row.name == name && row.text == text) return row.value;
  }
  return text;
}

}  // namespace zeroplan
