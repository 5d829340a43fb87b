#include "core/settings/settings.h"

#include <fmt/format.h>

namespace zeroplan {

std::string SettingText(const SettingValue& value) {
  return std::visit(
      []<typename T>(const T& of) {
        if constexpr (std::same_as<T, std::monostate>) {
          return std::string();
        } else {
          return fmt::format("{}", of);
        }
      },
      value);
}

const char* SettingGroupName(SettingGroup group) {
  constexpr const char* kNames[] = {"Batch and precision", "ZeRO, offload and recompute", "Run",
                                    "Runtime"};
  return kNames[static_cast<size_t>(group)];
}

std::string FieldName(const SettingRow& row) { return fmt::format("⟦{}⟧", row.name); }

SettingValue DefaultValue(const SettingRow& row) { return row.get(TrainSetup()); }

bool SetsOwnKey(const SettingRow& row, const TrainSetup& setup) {
  return row.set != nullptr && row.get(setup) != DefaultValue(row);
}

const SettingRow* FindSetting(std::string_view name) {
  for (const SettingRow* row : kSettingRows) {
    if (row->name == name) return row;
  }
  return nullptr;
}

SettingValue RecordValue(const SettingRow& row, const TrainSetup& setup,
                         const TorchRecipe* recipe) {
  if (recipe == nullptr) return row.get(setup);
  if (row.own) return {};
  // The recipe sets them, not the setup.
  if (&row == &setting::offload_activations) {
    return ValueOf(OffloadDeviceName(recipe->offload_activations ? OffloadDevice::kCpu
                                                                 : OffloadDevice::kNone));
  }
  if (&row == &setting::optimizer_in_backward) return recipe->optimizer_in_backward;
  return row.get(setup);
}

}  // namespace zeroplan
