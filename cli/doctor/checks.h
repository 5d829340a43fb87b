// What zeroplan doctor says of what it found: one line a check, each with what it costs and the
// command that mends it. Pure functions of the facts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/doctor/facts.h"

namespace zeroplan {

enum class CheckState : uint8_t {
  kOk,
  kCosts,    // works, with a loss
  kMissing,  // something cannot be done
  kUnknown   // cannot be told here
};
// "ok", "costs", "missing", "unknown".
const char* CheckStateName(CheckState state);

struct Finding {
  const char* check;  // its name, for programs: "power_limit"
  CheckState state = CheckState::kUnknown;
  std::string fact{};
  std::string cost{};  // or consequence; may be ""
  std::string fix{};  // the command that mends it, or what to do; "" where there is nothing to mend
};

struct FindingGroup {
  const char* title;
  std::vector<Finding> findings;
};

// Whether training is possible here, by backend.
struct Readiness {
  std::string why_not_cpu, why_not_cuda;  // "": it is
  int gpus = 0;                           // that CUDA can use
  bool cpu() const { return why_not_cpu.empty(); }
  bool cuda() const { return why_not_cuda.empty(); }
};
Readiness ReadinessOf(const MachineFacts& facts);

// Whether kernels compiled for `architectures` (CMAKE_CUDA_ARCHITECTURES, with commas) run on that
// compute capability: machine code ("90-real") on its major version from its minor one on ("90a"
// on that one alone), "80-virtual" on all later ones. A word that names no number counts as not.
bool HasCodeFor(const std::string& architectures, int major, int minor);

std::vector<Finding> ExecutorFindings(const MachineFacts& facts);
std::vector<Finding> GpuFindings(const MachineFacts& facts);
std::vector<Finding> HostFindings(const MachineFacts& facts);
// The folder's disk, and the machine's measured profile.
std::vector<Finding> StoredFindings(const MachineFacts& facts);

std::vector<FindingGroup> AllFindings(const MachineFacts& facts);

// What zeroplan doctor prints.

// "Training on GPUs is possible here (2 GPUs)."
std::string ReadinessText(const Readiness& ready);
// Lines of each group of findings, below its title.
std::string FindingsText(const std::vector<FindingGroup>& groups);
std::string DoctorText(const MachineFacts& facts);
// Schema zeroplan.doctor/1 (docs/metrics.md).
std::string DoctorJson(const MachineFacts& facts);

}  // namespace zeroplan
