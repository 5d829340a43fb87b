#include "cli/common/command_description.h"

#include <cctype>

namespace zeroplan {
namespace {

bool IsWord(const std::string& part) {
  const auto first = static_cast<unsigned char>(part[0]);
  return std::islower(first) != 0 || std::isdigit(first) != 0;
}

}  // namespace

Offers OffersOf(const OptionDescription& option) {
  Offers offers;
  for (size_t begin = 0, end = 0; end != std::string::npos && begin < option.type.size();
       begin = end + 1) {
    end = option.type.find('|', begin);
    const std::string part = option.type.substr(begin, end - begin);
    if (part.empty()) continue;
    if (IsWord(part)) offers.words.push_back(part);
    const bool path = part == "PATH";
    offers.files = offers.files || path || part == "PLAN" || part.starts_with("FILE");
    offers.folders = offers.folders || path || part == "DIR";
  }
  if (option.known != nullptr) {
    for (std::string& name : option.known()) offers.words.push_back(std::move(name));
  }
  return offers;
}

std::vector<const CommandDescription*> ShownCommands(const CommandDescription& command) {
  std::vector<const CommandDescription*> shown;
  for (const auto& below : command.commands) {
    if (!below->hidden) shown.push_back(below.get());
  }
  return shown;
}

}  // namespace zeroplan
