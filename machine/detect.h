// Detects the hardware of the machine that zeroplan runs on, as far as the system reports it: the
// default for planning if no profile is named.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hwprofiles/profile.h"

namespace zeroplan {

struct DetectedGpu {
  std::string name;  // the driver's name: "NVIDIA GeForce RTX 4090"
  double memory_bytes = 0;

  bool operator==(const DetectedGpu&) const = default;
};

struct DetectedHost {
  double memory_bytes = 0;                         // 0: unknown
  int cores = 0;                                   // available to this process; 0: unknown
  double triad_bandwidth = 0, adam_bandwidth = 0;  // bytes/s, as in MemoryRates; 0: not measured
};

// The NVIDIA GPUs visible to a CUDA process here (honours CUDA_VISIBLE_DEVICES by index), from
// libnvidia-ml.so.1, a part of the driver. Empty without a driver or GPU, and with
// ZEROPLAN_NO_DETECT=1 in the environment. Never throws.
std::vector<DetectedGpu> QueryGpus();

// The driver's version ("580.82.07"); "" if unknown. Otherwise as QueryGpus.
std::string QueryDriver();

// Memory (the control group's, if that is less) and cores of this host.
DetectedHost QueryHost();

// The variables NCCL_* of a process, sorted: "NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1"; "" without
// one. `environment` ends with a null pointer.
std::string NcclEnvironment(const char* const* environment);
std::string NcclEnvironment();  // this process's

// "1 x NVIDIA GeForce RTX 4090, 1 x NVIDIA GeForce RTX 3090": in the order of first occurrence.
std::string GpusText(const std::vector<DetectedGpu>& gpus);

// The built-in GPU with that name and, within a tenth, that memory; "" if there is none.
std::string MatchGpu(const DetectedGpu& gpu);

struct DetectedMachine {
  std::optional<HardwareProfile> profile;  // absent: some GPU matches no built-in one
  std::string found;                       // "2 x NVIDIA GeForce RTX 4090"
  std::string note;                        // one line for the user, or ""
};

// The built-in machine with that many of that GPU; else that many of the GPU in a generic host; for
// several kinds UnequalProfile (hwprofiles/unequal.h). Host memory, cores and memory bandwidth are
// those of `host` if known. REQUIRES: gpus is not empty.
DetectedMachine MatchMachine(const std::vector<DetectedGpu>& gpus, const DetectedHost& host);

// The profile of this machine that 'zeroplan hw measure' stored, so that plan, estimate and train
// find it by themselves.

// The properties that must be unchanged for a measurement to stay valid.
struct MachineIdentity {
  std::vector<DetectedGpu> gpus;
  std::string driver;  // "" if unknown
  int cores = 0;

  bool operator==(const MachineIdentity&) const = default;
};
// Identity of this machine with these GPUs.
MachineIdentity IdentityOf(std::vector<DetectedGpu> gpus);

// The file of the profile of this host with that many GPUs, in CacheFolder (core/base/files.h); ""
// if nothing is cached. One file a host and number of GPUs, because hosts share homes.
std::string KeptProfileFile(size_t gpus);

// Writes the file atomically. `profile`: the profile's text; `when`: the day. Throws
// Error(kRuntime) naming the file on failure.
void KeepProfile(const std::string& file, const MachineIdentity& machine,
                 const std::string& profile, const std::string& when);

struct KeptProfile {
  std::optional<HardwareProfile> profile;  // its source is the file
  std::string when;
  std::string note;  // the reason why an existing file is not used, and the fix; else ""
};
// The profile in `file`, if it was measured on this very machine. Never throws: a damaged file
// gives a note.
KeptProfile ReadKeptProfile(const std::string& file, const MachineIdentity& machine);

// The machine that zeroplan runs on, as the default hardware for planning.

// The profile stored by 'hw measure', else one of its GPUs (detect.h). `measure_host`: without a
// stored profile, also measures the bandwidth of the host's memory.
FoundMachine FindThisMachine(bool measure_host);

}  // namespace zeroplan
