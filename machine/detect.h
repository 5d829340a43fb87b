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
  double memory_bytes = 0;     // 0: not known
  int cores = 0;               // that this process may use; 0: not known
  double triad_bandwidth = 0;  // bytes/s, measured (host_bandwidth.h); 0: not measured
};

// The NVIDIA GPUs that a CUDA process would see here (CUDA_VISIBLE_DEVICES by index is honoured),
// from libnvidia-ml.so.1, which comes with the driver. Empty without a driver or GPU, and with
// ZEROPLAN_NO_DETECT=1 in the environment. Never throws.
std::vector<DetectedGpu> QueryGpus();

// Its version ("580.82.07"); "" where it cannot be asked for. As QueryGpus otherwise.
std::string QueryDriver();

// Memory (that of the control group, where it is less) and cores of this host.
DetectedHost QueryHost();

// The built-in GPU with that name and, within a tenth, that memory; "" if there is none.
std::string MatchGpu(const DetectedGpu& gpu);

struct DetectedMachine {
  std::optional<HardwareProfile> profile;  // absent: none of the built-in GPUs, or several kinds
  std::string found;                       // "2 x NVIDIA GeForce RTX 4090"
  std::string note;                        // one line for the user, or ""
};

// The built-in machine with that GPU and that many of them; else that many of the GPU in a generic
// host. Host memory, cores and memory bandwidth are those of `host` where known. REQUIRES: gpus is
// not empty.
DetectedMachine MatchMachine(const std::vector<DetectedGpu>& gpus, const DetectedHost& host);

}  // namespace zeroplan
