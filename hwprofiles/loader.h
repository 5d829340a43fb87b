// Reads hardware profiles. Refuses figures without a source, because a plan is only as good as its
// numbers.
//
// A profile is composed of parts (parts.h); its fields are those of fields.h. A figure is {"value":
// 4.8, "unit": "TB/s", "source": "datasheet|measured|derived", "reference": "..."}. The loader
// throws Error(kUsage) that names file, key, value and the fix for: missing or unknown keys, a
// missing or unknown source, an empty reference, a unit of another dimension, values outside what
// physics and today's hardware allow, sparse peaks, and figures that contradict each other;
// measured tables (read_profile.cc) likewise.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hwprofiles/profile.h"

namespace zeroplan {

// The profile used without --hw.
inline constexpr std::string_view kDefaultProfile = "hgx-h200";

// A profile found by name, and how the name was understood.
struct NamedProfile {
  HardwareProfile profile;
  int gpus = 0;      // the number in the name ("8xh100"); 0: the profile's
  std::string note;  // one line if the name is neither the profile's nor one spelling of it
};

// Accepts all names of LoadProfile, and: a bare name that fits several cards, as the most common
// one ("h100", "a100"); a number of cards ("8xh100", "2x 4090") as the machine that has that many;
// several cards ("4090+3090") in one host. `gpus`: the wanted number of a card that is named alone;
// 0: not given. `option`: the option that names the profile, for messages.
NamedProfile FindProfile(const std::string& name_or_file, int gpus = 0,
                         std::string_view option = "⟦hw⟧");
// The name among `known` that `name` means. Throws Error(kUsage) naming `option`.
std::string MeantName(std::string_view option, const std::string& name,
                      const std::vector<std::string>& known);

// Loads a built-in name, or the path of a JSON file (anything with a '/' or ending in .json). A
// name matches without regard to case and separators, in the driver's spelling ("NVIDIA
// A100-SXM4-80GB"), and without a card's size and socket ("H200", "RTX 4090", "h100 sxm").
HardwareProfile LoadProfile(const std::string& name_or_file, std::string_view option = "⟦hw⟧");
HardwareProfile ParseProfile(std::string_view json, std::string_view source);
// A built-in network ("ib-400"). Throws Error(kUsage) for another name.
NetworkProfile LoadNetwork(const std::string& name);
std::vector<std::string> NetworkNames();
// Names of the built-in profiles.
std::vector<std::string> ProfileNames();
// The full text of a built-in profile or a file: every part composed, every number with its source.
// It loads as the same profile. A built-in part's name ("rtx4090" as a GPU, "ib-400") gives that
// part; if a machine has the same name, the machine.
std::string ProfileText(const std::string& name_or_file);

// --network: a built-in network ("eth-25", "ib-8x400") or one node's send rate over all its
// adapters in each direction ("25Gb", "100Gb/s", "8x400Gb", "12.5GB/s"). A rate keeps the latency
// of the profile's network; without one, it uses that of "eth-10" (TCP), the slower assumption.
// Throws Error(kUsage).
void ApplyNetwork(HardwareProfile& profile, const std::string& text);

// Throws Error(kUsage) where `gpus` are more nodes than one and the profile has no network, or than
// its network joins.
void CheckNetwork(const HardwareProfile& profile, int gpus, int gpus_per_node);

// --intra-node-bandwidth: one GPU's send rate to the others of its node, each direction ("300GB/s",
// "200Gb/s"). Replaces gpu_link and drops the profile's measured collectives: they were measured
// over another link and would hide the new one. The cost of overlap stays. Throws Error(kUsage).
void ApplyGpuLink(HardwareProfile& profile, const std::string& text);

// --nvme-drives: the number of drives of a node, each like those of the profile: multiplies the
// rates and capacity of one drive. A profile without a number of drives is assumed to describe one.
// Throws Error(kUsage) if the profile lacks rates of a disk, and if the result exceeds the limits
// of fields.h.
void ApplyNvmeDrives(HardwareProfile& profile, uint64_t drives);

}  // namespace zeroplan
