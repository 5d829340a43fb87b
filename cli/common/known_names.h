// Built-in names that options take, for shells to complete (OptionInfo::known).
#pragma once

#include <string>
#include <vector>

namespace zeroplan {

std::vector<std::string> KnownModels();
std::vector<std::string> KnownFamilies();
// Profiles, and networks: what 'hw show' takes.
std::vector<std::string> KnownProfilesAndNetworks();

}  // namespace zeroplan
