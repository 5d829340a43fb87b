// The settings of how a model is trained, one row each (core/settings/setting_rows.inc). Options of
// the command line, arguments of the libraries, JSON, CSV, metrics and the record of a choice are
// generated from the rows. docs/adding-a-setting.md explains how to add one.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/settings/packing.h"
#include "core/settings/setup_facts.h"
#include "core/settings/torch_recipe.h"
#include "core/settings/zero_config.h"

namespace zeroplan {

// A setting's value as a JSON scalar; monostate is null.
using SettingValue = std::variant<std::monostate, bool, int64_t, double, std::string>;

template <typename T>
SettingValue ValueOf(const T& value) {
  if constexpr (std::same_as<T, bool>) {
    return value;
  } else if constexpr (std::integral<T>) {
    return static_cast<int64_t>(value);
  } else if constexpr (std::floating_point<T>) {
    return static_cast<double>(value);
  } else {
    return std::string(value);
  }
}
// "8", "0.5", "true", "bf16"; "" for null.
std::string SettingText(const SettingValue& value);

// Names the command whose options are meant.
enum class OptionsOf : uint8_t { kEstimate, kPlan, kTrain };

// A text that may differ between commands.
struct ByCommand {
  // NOLINTNEXTLINE(google-explicit-constructor)  rows give one text or three
  constexpr ByCommand(const char* all) : texts{all, all, all} {}
  constexpr ByCommand(const char* estimate, const char* plan, const char* train)
      : texts{estimate, plan, train} {}
  constexpr const char* Of(OptionsOf command) const { return texts[static_cast<size_t>(command)]; }

  const char* texts[3];
};

// The heading of the help that lists an option.
enum class SettingGroup : uint8_t { kBatch, kZero, kRun, kRecipe };
// "Batch and precision", "ZeRO, offload and recompute", "Run", "Runtime".
const char* SettingGroupName(SettingGroup group);

// Names the files that decide a setting. Together with such a file its option is refused.
enum class DecidedBy : uint8_t { kNothing, kPlan, kPlanOrConfig };

// The type of a value in the record of a choice; kNone: the setting is no part of the record.
enum class RecordType : uint8_t { kNone, kBool, kWhole, kNumber, kWord };

struct SettingRow {
  // "micro_batch" in libraries, JSON, CSV, metrics and "_zeroplan" of a config; "--micro-batch" is
  // the option.
  std::string_view name = {};
  SettingGroup group = SettingGroup::kBatch;

  // The placeholder of the option's value in help, "COUNT"; "": the words. A flag has no value.
  ByCommand type = "";
  // The option's help. {} stands for `otherwise`, or for the words if `otherwise` is empty.
  ByCommand help = "";
  ByCommand otherwise = "";
  DecidedBy decided_by = DecidedBy::kNothing;
  bool usual = false;  // among the dozen options that most people vary: 'estimate -h' has it
  // The words that are the possible values; null: any value.
  std::vector<std::string> (*words)() = nullptr;
  // The words of the option, if it accepts more words than a setup can hold.
  std::vector<std::string> (*option_words)(OptionsOf command) = nullptr;

  RecordType record = RecordType::kNone;
  bool may_be_null = false;
  std::string_view about = {};  // describes the value in the record, for people
  SettingValue (*get)(const TrainSetup& setup) = nullptr;
  // True: only zeroplan's executor has the setting. The record of another program's choice has
  // null.
  bool own = false;

  // Puts a value (a flag, a number, one of `words`) into a setup. A row with `set` needs no code of
  // its own: the option sets the value, "_zeroplan" in configs and plan files has it under the
  // row's name if it is not the default, and an option that contradicts the config is refused.
  void (*set)(TrainSetup& setup, const SettingValue& value) = nullptr;
  double least = 0, most = 1e300;    // the range of numbers in a config
  const char* deepspeed_lacks = "";  // names a feature that DeepSpeed lacks: "deterministic runs"
  // True: a resume with another value prints a notice, because the run's numbers change.
  bool decides_numbers = false;

  constexpr SettingRow Named(std::string_view called) const {
    SettingRow row = *this;
    row.name = called;
    return row;
  }
};

// Below: values of options that can name more than a setup holds.

// kAll: tries each kind in all layers. kSearched: also tries mixes of kinds and homes ("auto" of
// plan).
enum class Checkpointing : uint8_t { kNone, kSelective, kProducts, kFull, kAll, kSearched };
template <>
inline constexpr WordTable<Checkpointing, 6> kWords<Checkpointing> = {
    {{RecomputeName(RecomputeKind::kNone), Checkpointing::kNone},
     {RecomputeName(RecomputeKind::kSelective), Checkpointing::kSelective},
     {RecomputeName(RecomputeKind::kProducts), Checkpointing::kProducts},
     {RecomputeName(RecomputeKind::kFull), Checkpointing::kFull},
     {"all", Checkpointing::kAll},
     {"auto", Checkpointing::kSearched}}};

// kOn: offloaded states are staged in page-locked memory.
enum class PinMemory : uint8_t { kOn, kOff };
template <>
inline constexpr WordTable<PinMemory, 2> kWords<PinMemory> = {
    {{"on", PinMemory::kOn}, {"off", PinMemory::kOff}}};

// kOn: saves run concurrently with steps, from a copy of the states in host memory.
enum class AsyncSave : uint8_t { kOn, kOff, kIfItFits };
template <>
inline constexpr WordTable<AsyncSave, 3> kWords<AsyncSave> = {
    {{"on", AsyncSave::kOn}, {"off", AsyncSave::kOff}, {"auto", AsyncSave::kIfItFits}}};

enum class CompileKind : uint8_t { kLayers, kAll };
template <>
inline constexpr WordTable<CompileKind, 2> kWords<CompileKind> = {
    {{"layers", CompileKind::kLayers}, {"all", CompileKind::kAll}}};

namespace setting {
#define RECORD(id, ...) inline constexpr SettingRow id = SettingRow{__VA_ARGS__}.Named(#id);
#define SETTING(id, Type, parse, ...) RECORD(id, __VA_ARGS__)
#define OPTION(id, Type, parse, ...) RECORD(id, __VA_ARGS__)
#include "core/settings/setting_rows.inc"
#undef SETTING
#undef OPTION
#undef RECORD
}  // namespace setting

// All rows, in the order of the help and of records.
inline constexpr auto kSettingRows = std::to_array<const SettingRow*>({
#define RECORD(id, ...) &setting::id,
#define SETTING(id, Type, parse, ...) RECORD(id, )
#define OPTION(id, Type, parse, ...) RECORD(id, )
#include "core/settings/setting_rows.inc"
#undef SETTING
#undef OPTION
#undef RECORD
});

// The value in a default-constructed setup.
SettingValue DefaultValue(const SettingRow& row);
// True if `row` has a `set` and the setup's value is not the default.
bool SetsOwnKey(const SettingRow& row, const TrainSetup& setup);

// "⟦micro_batch⟧", which messages contain in place of the option's name.
std::string FieldName(const SettingRow& row);
// True if the setting is part of another program's recipe.
constexpr bool IsRecipe(const SettingRow& row) {
  return row.group == SettingGroup::kRecipe || &row == &setting::offload_activations;
}

// The row of that name, or nullptr.
const SettingRow* FindSetting(std::string_view name);

// The value in the record of a choice. `recipe`: the recipe of another program; null: the choice is
// for zeroplan's executor.
SettingValue RecordValue(const SettingRow& row, const TrainSetup& setup,
                         const TorchRecipe* recipe = nullptr);

}  // namespace zeroplan
