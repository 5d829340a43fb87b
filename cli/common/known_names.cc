#include "cli/common/known_names.h"

#include "core/families/load_model.h"
#include "hwprofiles/loader.h"

namespace zeroplan {

std::vector<std::string> KnownModels() {
  std::vector<std::string> names;
  for (const ModelPreset& preset : ModelPresets()) names.push_back(preset.spec.name);
  return names;
}

std::vector<std::string> KnownFamilies() {
  std::vector<std::string> names;
  for (const ModelFamily* family : ModelFamilies()) names.emplace_back(family->name());
  return names;
}

std::vector<std::string> KnownProfilesAndNetworks() {
  std::vector<std::string> names = ProfileNames();
  for (std::string& network : NetworkNames()) names.push_back(std::move(network));
  return names;
}

}  // namespace zeroplan
