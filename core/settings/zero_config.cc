#include "core/settings/zero_config.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/settings/setup_facts.h"

namespace zeroplan {

std::optional<MasterWeights> ParseMasterWeights(std::string_view name, Dtype dtype) {
  const std::optional<MasterWeights> masters = ValueIn(kWords<MasterWeights>, name);
  const bool names_dtype = masters && name != MasterWeightsName(*masters);
  const bool known = !names_dtype || name == DtypeName(dtype);
  return known ? masters : std::nullopt;
}

RecomputeConfig OfModel(RecomputeConfig recompute, int64_t layers) {
  recompute.every = static_cast<int>(std::min<int64_t>(recompute.every, layers));
  if (recompute.layers >= layers) {
    recompute.layers = 0;
    recompute.above = RecomputeKind::kNone;
  }
  if (recompute.offload.layers + 1 >= layers) recompute.offload.layers = 0;
  return recompute;
}

void ValidateSetup(const TrainSetup& setup, std::string_view source) {
  if (const std::optional<SetupProblem> problem = FindSetupProblem(setup)) {
    ThrowUsage("{}: {}: {}", source, problem->key, problem->message);
  }
}

}  // namespace zeroplan
