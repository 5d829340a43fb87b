// The hardware of the machine zeroplan runs on, as far as it can be asked for: what is planned for
// where nobody names a profile.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hwprofiles/profile.h"

namespace zeroplan {

struct DetectedGpu {
  std::string name;  // as the driver says it: "NVIDIA GeForce RTX 4090"
  double memory_bytes = 0;

  bool operator==(const DetectedGpu&) const = default;
};

struct DetectedHost {
  double memory_bytes = 0;                         // 0: not known
  int cores = 0;                                   // that this process may use; 0: not known
  double triad_bandwidth = 0, adam_bandwidth = 0;  // bytes/s, as MemoryRates; 0: not measured
};

// The NVIDIA GPUs that a CUDA process would see here (CUDA_VISIBLE_DEVICES by index is honoured),
// from libnvidia-ml.so.1, which comes with the driver. Empty without a driver or GPU, and with
// ZEROPLAN_NO_DETECT=1 in the environment. Never throws.
std::vector<DetectedGpu> QueryGpus();

// Its version ("580.82.07"); "" where it cannot be asked for. As QueryGpus otherwise.
std::string QueryDriver();

// Memory (that of the control group, where it is less) and cores of this host.
DetectedHost QueryHost();

// The variables NCCL_* of a process, sorted: "NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1"; "" without
// one. `environment` ends with a null pointer.
std::string NcclEnvironment(const char* const* environment);
std::string NcclEnvironment();  // this process's

// "1 x NVIDIA GeForce RTX 4090, 1 x NVIDIA GeForce RTX 3090": in the order of their first.
std::string GpusText(const std::vector<DetectedGpu>& gpus);

// The built-in GPU with that name and, within a tenth, that memory; "" if there is none.
std::string MatchGpu(const DetectedGpu& gpu);

struct DetectedMachine {
  std::optional<HardwareProfile> profile;  // absent: a GPU is none of the built-in ones
  std::string found;                       // "2 x NVIDIA GeForce RTX 4090"
  std::string note;                        // one line for the user, or ""
};

// The built-in machine with that GPU and that many of them; else that many of the GPU in a generic
// host; of several kinds UnequalProfile (hwprofiles/unequal.h). Host memory, cores and memory
// bandwidth are those of `host` where known. REQUIRES: gpus is not empty.
DetectedMachine MatchMachine(const std::vector<DetectedGpu>& gpus, const DetectedHost& host);

// The profile that 'zeroplan hw measure' kept of this machine, so that plan, estimate and train
// find it by themselves.

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

// The machine zeroplan runs on, as the hardware that is planned for where nobody names a profile.

// What 'hw measure' kept of this machine, else its GPUs (detect.h).
// `measure_host`: where nothing is kept, the bandwidth of the host's memory too.
FoundMachine FindThisMachine(bool measure_host);

}  // namespace zeroplan
