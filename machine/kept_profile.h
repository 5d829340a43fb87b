// The profile that 'zeroplan hw measure' kept of this machine, so that plan, estimate and train
// find it by themselves.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hwprofiles/profile.h"
#include "machine/detect.h"

namespace zeroplan {

// What must be the same for a measurement to hold.
struct MachineIdentity {
  std::vector<DetectedGpu> gpus;
  std::string driver;  // "" if not known
  int cores = 0;

  bool operator==(const MachineIdentity&) const = default;
};
// Identity of this machine with these GPUs.
MachineIdentity IdentityOf(std::vector<DetectedGpu> gpus);

// Where the profile of that many GPUs of this host is kept, in CacheFolder (core/base/files.h); ""
// if nothing is. One file a host and number of GPUs: homes are shared between hosts.
std::string KeptProfileFile(size_t gpus);

// Writes the file, whole or not at all. `profile`: the profile's text; `when`: the day. Throws
// Error(kRuntime) naming the file if that fails.
void KeepProfile(const std::string& file, const MachineIdentity& machine,
                 const std::string& profile, const std::string& when);

struct KeptProfile {
  std::optional<HardwareProfile> profile;  // its source is the file
  std::string when;
  std::string note;  // why a file that is there is not used, and the fix; else ""
};
// What `file` holds, if it was measured on this very machine. Never throws: a damaged file is a
// note.
KeptProfile ReadKeptProfile(const std::string& file, const MachineIdentity& machine);

}  // namespace zeroplan
