// Options of other programs and the fields that they mean, in one list: what `why` reads out of
// logs (planner/why), and what files for these programs are written with (planner/formats).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

namespace zeroplan {

// The programs whose files or arguments are written, and the others.
enum class OtherProgram : uint8_t {
  kTrainer,     // transformers' TrainingArguments
  kTrl,         // TRL's ModelConfig and SFTConfig
  kAccelerate,  // the YAML of `accelerate launch`
  kTorchtitan,  // torchtitan's TOML: "training.seq_len"
  kOther
};

// How the value of an option becomes that of a field.
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
  std::string_view on, off;  // kSwitch; empty: it says nothing of the field

  constexpr bool may_say(std::string_view text) const {
    return kind != ValueKind::kSwitch || text.empty() || text == on || text == off;
  }
};

struct OptionValue {
  std::string_view name, value, text;  // of which option, what it is given, the field's text
};

// No field of a request: the sequences that the Trainer evaluates at once on a GPU.
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

// By its name in logs; null: not known.
constexpr const ProgramOption* FindOption(std::string_view name) {
  const auto* found = std::find_if(kProgramOptions.begin(), kProgramOptions.end(),
                                   [&](const ProgramOption& o) { return o.name == name; });
  return found == kProgramOptions.end() ? nullptr : found;
}

// The option by which `program` says `field`, such as a switch for `text`. Does not compile where
// the list has none.
consteval std::string_view OptionName(OtherProgram program, std::string_view field,
                                      std::string_view text = "") {
  for (const ProgramOption& option : kProgramOptions) {
    if (option.program == program && option.field == field && option.may_say(text)) {
      return option.name;
    }
  }
  throw "no option of this program says that";
}

// The field's text that a kNamed option means by `value`; empty: not known.
constexpr std::string_view TextOfOption(std::string_view name, std::string_view value) {
  for (const OptionValue& row : kOptionValues) {
    if (row.name == name && row.value == value) return row.text;
  }
  return "";
}

// What a kNamed option is given for the field's `text`; the text itself where the list has none.
constexpr std::string_view ValueForText(std::string_view name, std::string_view text) {
  for (const OptionValue& row : kOptionValues) {
    if (row.name == name && row.text == text) return row.value;
  }
  return text;
}

}  // namespace zeroplan
