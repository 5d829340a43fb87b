#include "core/config/zero_config.h"

#include "core/base/error.h"
#include "core/config/setup_check.h"

namespace zeroplan {

std::string_view OffloadDeviceName(OffloadDevice device) {
  switch (device) {
    case OffloadDevice::kNone:
      return "none";
    case OffloadDevice::kCpu:
      return "cpu";
    case OffloadDevice::kNvme:
      return "nvme";
  }
  return "unknown";
}

std::string_view DecayShapeName(DecayShape shape) {
  constexpr std::string_view kNames[] = {"constant", "linear", "cosine"};
  return kNames[static_cast<size_t>(shape)];
}

std::string_view RecomputeName(const RecomputeConfig& recompute) {
  switch (recompute.kind) {
    case RecomputeKind::kNone:
      return "none";
    case RecomputeKind::kSelective:
      return "selective";
    case RecomputeKind::kFull:
      return "full";
  }
  return "unknown";
}

void ValidateSetup(const TrainSetup& setup, std::string_view source) {
  if (const std::optional<SetupProblem> problem = FindSetupProblem(setup)) {
    ThrowUsage("{}: {}: {}", source, problem->key, problem->message);
  }
}

}  // namespace zeroplan
