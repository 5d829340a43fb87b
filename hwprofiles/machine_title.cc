#include "hwprofiles/machine_title.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <string_view>
#include <vector>

#include "hwprofiles/loader.h"
#include "hwprofiles/parts.h"

namespace zeroplan {
namespace {

// "H100 SXM 80 GB": without the maker's names, which every card has, and with the memory as sold.
std::string CardName(const GpuProfile& gpu) {
  std::string name = gpu.name;
  for (const std::string_view idle : {"NVIDIA ", "GeForce ", " Generation"}) {
    if (const size_t at = name.find(idle); at != std::string::npos) name.erase(at, idle.size());
  }
  const std::string memory = fmt::format("{:.0f} GB", gpu.memory.written);
  return name.ends_with(memory) ? name : fmt::format("{} {}", name, memory);
}

// "8 x H100 SXM 80 GB"; of several kinds each.
std::string CardsText(const HardwareProfile& profile, int gpus) {
  if (profile.kinds.empty()) return fmt::format("{} x {}", gpus, CardName(profile.gpu));
  std::vector<std::string> texts;
  for (const GpuKind& kind : profile.kinds) {
    texts.push_back(fmt::format("{:.0f} x {}", kind.gpus.value, CardName(kind.gpu)));
  }
  return fmt::format("{}", fmt::join(texts, " + "));
}

// The place of the GPUs by the description: "DGX B300", "server"; "": it names none.
std::string PlaceOf(const HardwareProfile& profile) {
  for (const std::string_view in : {" in a ", " in an ", " in one "}) {
    const size_t at = profile.description.find(in);
    if (at == std::string::npos) continue;
    const std::string rest = profile.description.substr(at + in.size());
    return rest.substr(0, rest.find(','));
  }
  return "";
}

// "40 GB" of a profile that differs from another one by its memory, "dgx-a100-40gb"; "": none.
std::string MemoryInName(const std::string& name) {
  if (!name.ends_with("gb")) return "";
  const std::string size = name.substr(name.rfind('-') + 1);
  return size.substr(0, size.size() - 2) + " GB";
}

// A machine with a name of its own; "": it is any server, desktop or laptop.
std::string NameOfPlace(const HardwareProfile& profile, const std::string& place) {
  const bool proper = std::any_of(place.begin(), place.end(), [](unsigned char c) {
    return std::isupper(c) != 0 || std::isdigit(c) != 0;
  });
  if (!proper) return "";
  constexpr std::string_view kNode = " node";
  if (place.ends_with(kNode)) {  // an HGX node is called by its GPU
    const std::string card = CardName(profile.gpu);
    return place.substr(0, place.size() - kNode.size()) + ' ' + card.substr(0, card.find(' '));
  }
  const std::string memory = MemoryInName(profile.name);
  return memory.empty() ? place : fmt::format("{} {}", place, memory);
}

}  // namespace

std::string MachineTitle(const HardwareProfile& profile, int gpus, int nodes, bool cards) {
  if (cards) return CardsText(profile, gpus);
  if (profile.source == kFoundSource) return CardsText(profile, gpus) + " in this machine";
  // The description of a user's own file has no fixed form.
  const bool built_in = profile.source == "built in";
  const std::string place = built_in ? PlaceOf(profile) : "";
  const std::string name = built_in ? NameOfPlace(profile, place) : profile.name;
  if (name.empty()) {
    if (place.empty()) return CardsText(profile, gpus);
    return nodes == 1 ? fmt::format("{} in a {}", CardsText(profile, gpus), place)
                      : fmt::format("{} in {} {}s", CardsText(profile, gpus), nodes, place);
  }
  const int whole = nodes * profile.node.gpu_count();
  const std::string several = nodes == 1 ? name : fmt::format("{} x {}", nodes, name);
  return gpus == whole
             ? fmt::format("{} ({} GPU{})", several, gpus, gpus == 1 ? "" : "s")
             : fmt::format("{} ({} of {} GPU{})", several, gpus, whole, whole == 1 ? "" : "s");
}

bool NamesCards(const std::string& hw) {
  if (hw.empty()) return false;
  const NamedProfile named = FindProfile(hw, 1);
  return named.gpus > 0 || IsCard(named.profile.name);
}

}  // namespace zeroplan
