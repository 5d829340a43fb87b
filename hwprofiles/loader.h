// Reads hardware profiles. A figure without a source is refused: a plan is as good as its numbers.
//
// A profile is put together from parts (parts.h); its fields are those of fields.h. A figure is
// {"value": 4.8, "unit": "TB/s", "source": "datasheet|measured|derived", "reference": "..."}. The
// loader throws Error(kUsage) that names file, key, value and the fix for: missing or
// unknown keys, a missing or unknown source, an empty reference, a unit of another dimension,
// values outside what physics and today's hardware allow, sparse peaks, and figures that contradict
// each other; measured tables (read_profile.cc) likewise.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hwprofiles/profile.h"

namespace zeroplan {

// The profile used without --hw.
inline constexpr std::string_view kDefaultProfile = "hgx-h200";

// What somebody named, and how it was understood.
struct NamedProfile {
  HardwareProfile profile;
  int gpus = 0;      // how many the name says ("8xh100"); 0: those of the profile
  std::string note;  // one line where the name is neither the profile's nor one spelling of it
};

// As LoadProfile, and beyond: of the cards that a bare name fits, the most common one ("h100",
// "a100"); a number of them ("8xh100", "2x 4090") as the machine that has so many; several cards
// ("4090+3090") in one host. `gpus`: that many are wanted of a card that is named alone; 0: not
// said. `option`: who named it, for messages.
NamedProfile FindProfile(const std::string& name_or_file, int gpus = 0,
                         std::string_view option = "⟦hw⟧");
// The name among `known` that `name` means. Throws Error(kUsage) naming `option`.
std::string MeantName(std::string_view option, const std::string& name,
                      const std::vector<std::string>& known);

// A built-in name, or the path of a JSON file (anything with a '/' or ending in .json). A name
// counts without regard to case and separators, as the driver has it ("NVIDIA A100-SXM4-80GB"), and
// without a card's size and socket ("H200", "RTX 4090", "h100 sxm").
HardwareProfile LoadProfile(const std::string& name_or_file, std::string_view option = "⟦hw⟧");
HardwareProfile ParseProfile(std::string_view json, std::string_view source);
// A built-in network ("ib-400"). Throws Error(kUsage) for another name.
NetworkProfile LoadNetwork(const std::string& name);
std::vector<std::string> NetworkNames();
// Names of the built-in profiles.
std::vector<std::string> ProfileNames();
// A built-in profile or a file in full: every part composed, every number with its source. It loads
// as the same profile. A built-in part's name ("rtx4090" as a GPU, "ib-400") gives that part; where
// a machine has the same name, the machine.
std::string ProfileText(const std::string& name_or_file);

// --network: a built-in network ("eth-25", "ib-8x400") or what one node sends over all its adapters
// in each direction ("25Gb", "100Gb/s", "8x400Gb", "12.5GB/s"). A rate keeps the latency of the
// profile's network; without one, it takes that of "eth-10" (TCP), the slower assumption. Throws
// Error(kUsage).
void ApplyNetwork(HardwareProfile& profile, const std::string& text);

// --intra-node-bandwidth: what one GPU sends to the others of its node, each direction ("300GB/s",
// "200Gb/s"). Replaces gpu_link and drops the profile's measured collectives: they were measured
// over another link and would hide the new one. What overlap costs stays. Throws Error(kUsage).
void ApplyGpuLink(HardwareProfile& profile, const std::string& text);

// --nvme-drives: a node has so many drives, each like those of the profile: rates and capacity are
// as many times those of one drive. A profile that does not say of how many drives its figures are
// is taken to have one. Throws Error(kUsage) where the profile has no rates of a disk, and where
// the product is past what fields.h allows.
void ApplyNvmeDrives(HardwareProfile& profile, uint64_t drives);

}  // namespace zeroplan
