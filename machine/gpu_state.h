// How the NVIDIA GPUs of this machine are set up and used now, as the driver's management library
// says it: what 'zeroplan doctor' looks at. Names and memory for planning are detect.h's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace zeroplan {

struct GpuProcess {
  unsigned pid = 0;
  std::optional<uint64_t> bytes;  // of this GPU's memory
};

// What the driver does not say is empty.
struct GpuState {
  unsigned index = 0;   // the driver's
  bool visible = true;  // CUDA_VISIBLE_DEVICES leaves it
  std::string name;     // "NVIDIA H200"
  std::string bus;      // "00000000:3b:00.0"
  uint64_t memory_bytes = 0;
  std::optional<uint64_t> used_bytes;  // without what the driver keeps for itself
  std::optional<int> compute_major, compute_minor;
  std::optional<bool> ecc, mig;
  std::optional<double> limit_watts, default_limit_watts;  // the one enforced now
  std::optional<int> pcie_generation, most_pcie_generation;
  std::optional<int> pcie_width, most_pcie_width;  // lanes
  std::optional<int> performance_state;            // 0: full clocks, 8 and more: at rest
  enum class ComputeMode { kDefault, kExclusiveThread, kProhibited, kExclusiveProcess };
  std::optional<ComputeMode> compute_mode;
  std::optional<std::vector<GpuProcess>> processes;  // that compute; those this user may see
  int links = 0, active_links = 0;                   // NVLink; 0: none
  std::optional<int> numa_node;
};

struct GpuPair {
  unsigned a = 0, b = 0;     // indices of the driver
  std::optional<bool> peer;  // reads and writes each other's memory
  std::string why_not;       // where it does not
  bool nvlink = false;
};

struct GpuStates {
  bool is_off = false;         // ZEROPLAN_NO_DETECT: nothing was asked
  bool library = false;        // libnvidia-ml.so.1 is there
  bool answers = false;        // and has a driver to ask
  std::string why;             // why it does not answer, in its words
  std::string driver;          // "580.82.07"
  std::optional<int> cuda;     // the newest CUDA that the driver takes: 13000
  std::vector<GpuState> gpus;  // all, also those that are not visible
  std::vector<GpuPair> pairs;  // of the visible ones
};

// Never throws.
GpuStates QueryGpuStates();

// GB/s that one lane of that generation moves each way, after line coding (8b/10b in generations 1
// and 2, 128b/130b from 3 to 5, PAM4 with FLITs of 242/256 in 6). 0: not known.
double PcieLaneBandwidth(int generation);

}  // namespace zeroplan
