// The findings of zeroplan doctor: one line a check, each with its cost and the command that fixes
// it. Pure functions of the facts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/doctor/facts.h"

namespace zeroplan {

enum class CheckState : uint8_t {
  kOk,
  kCosts,    // works, with a loss of speed or memory
  kMissing,  // something is impossible
  kUnknown   // cannot be determined here
};
// "ok", "costs", "missing", "unknown".
const char* CheckStateName(CheckState state);

struct Finding {
  const char* check;  // its name, for programs: "power_limit"
  CheckState state = CheckState::kUnknown;
  std::string fact{};
  std::string cost{};  // the loss or consequence; may be ""
  std::string fix{};   // the command that fixes it, or advice; "" if there is nothing to fix
};

struct FindingGroup {
  const char* title;
  std::vector<Finding> findings;
};

// Whether training is possible here, by backend.
struct Readiness {
  std::string why_not_cpu, why_not_cuda;  // "": it is possible
  int gpus = 0;                           // usable by CUDA
  bool cpu() const { return why_not_cpu.empty(); }
  bool cuda() const { return why_not_cuda.empty(); }
};
Readiness ReadinessOf(const MachineFacts& facts);

// Whether kernels compiled for `architectures` (CMAKE_CUDA_ARCHITECTURES, with commas) run on that
// compute capability: machine code ("90-real") runs on its major version from its minor one on
// ("90a" on that one alone), "80-virtual" on all later ones. A word without a number counts as not.
bool HasCodeFor(const std::string& architectures, int major, int minor);

std::vector<Finding> ExecutorFindings(const MachineFacts& facts);
std::vector<Finding> GpuFindings(const MachineFacts& facts);
std::vector<Finding> HostFindings(const MachineFacts& facts);
// Findings about the folder's disk, and the machine's measured profile.
std::vector<Finding> StoredFindings(const MachineFacts& facts);

std::vector<FindingGroup> AllFindings(const MachineFacts& facts);

// The output of zeroplan doctor.

// "Training on GPUs is possible here (2 GPUs)."
std::string ReadinessText(const Readiness& ready);
// The lines of each group of findings, below its title.
// `all`: findings that are ok too; else these are counted.
std::string FindingsText(const std::vector<FindingGroup>& groups, bool all);
std::string DoctorText(const MachineFacts& facts, bool all);
// Schema zeroplan.doctor/1 (docs/metrics.md).
std::string DoctorJson(const MachineFacts& facts);

}  // namespace zeroplan
