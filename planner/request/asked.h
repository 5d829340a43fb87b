// The settings that a request sets. There is a member for each option of
// core/settings/setting_rows.inc.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/settings/settings.h"

namespace zeroplan {

// The value of a field, and its original text for messages. Empty: the field is not given.
template <typename T>
struct Given : std::optional<T> {
  std::string text;
};
// Sets a number as if the user had typed it.
template <typename T>
void Set(Given<T>& field, T value) {
  field.emplace(value);
  field.text = std::to_string(value);
}

inline constexpr int kWholeNode = -1;

struct AskedSettings {
// ⟦global_batch_tokens⟧ sets global_batch (resolve.h). ⟦matmul_dtype⟧ kE4M3 sets
// Fp8Config::enabled; another value is PrecisionConfig::dtype. An empty sequence_ranks stands for
// all numbers of GPUs that can share a sequence. shard_group: ranks, kWholeNode, or 0 for all.
// offload_activations is a part of another program's recipe, too.
#define SETTING(id, Type, parse, ...) Type id{};
#define OPTION(...) SETTING(__VA_ARGS__)
#define RECORD(id, ...)
#include "core/settings/setting_rows.inc"
#undef SETTING
#undef OPTION
#undef RECORD

  // Whether the request sets FP8 matmuls. Weights in NF4 do not support them.
  bool asks_fp8() const { return matmul_dtype == Dtype::kE4M3; }
};

template <typename T>
bool IsGiven(const Given<T>& field) {
  return field.has_value();
}
inline bool IsGiven(bool flag) { return flag; }
template <typename T>
const std::string& TextOf(const Given<T>& field) {
  return field.text;
}
inline const std::string& TextOf(bool /*flag*/) {
  static const std::string kTrue = "true";
  return kTrue;
}

// Calls visit(row, field) for each setting of `asked`, an AskedSettings or a const one.
template <typename AskedRef, typename Visit>
void ForEachSetting(AskedRef& asked, Visit&& visit) {
#define SETTING(id, Type, parse, ...) visit(setting::id, asked.id);
#define OPTION(...) SETTING(__VA_ARGS__)
#define RECORD(id, ...)
#include "core/settings/setting_rows.inc"
#undef SETTING
#undef OPTION
#undef RECORD
}

// The given settings that SettingRow::set writes into a setup, by name.
std::map<std::string_view, SettingValue> AskedValues(const AskedSettings& asked);
// Writes the AskedValues into a setup.
void SetAsked(const AskedSettings& asked, TrainSetup& setup);

// Resets the settings of one group. offload_activations counts as a part of a recipe.
inline void ClearSettings(AskedSettings& asked, SettingGroup group) {
  ForEachSetting(asked, [&]<typename T>(const SettingRow& row, T& field) {
    if ((IsRecipe(row) ? SettingGroup::kRecipe : row.group) == group) field = T();
  });
}

}  // namespace zeroplan
