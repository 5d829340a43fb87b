#include "planner/advice/loss_reason.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "core/base/units.h"
#include "core/settings/setup_facts.h"
#include "core/settings/zero_config.h"
#include "planner/estimate/estimate.h"

namespace zeroplan {
namespace {

// Why compute takes longer for a token.
std::string ComputeReason(const TrainSetup& other, const TrainSetup& best) {
  const RecomputeConfig &of_other = other.recompute, &of_best = best.recompute;
  if (of_other.kind != RecomputeKind::kNone && of_best.kind == RecomputeKind::kNone) {
    return "it recomputes activations";
  }
  if (of_other.kind >= RecomputeKind::kProducts && of_best.kind == RecomputeKind::kSelective) {
    return of_other.kind == RecomputeKind::kFull ? "it recomputes whole layers"
                                                 : "it runs products again";
  }
  const auto layers = [](const RecomputeConfig& recompute) {
    return recompute.layers > 0 ? recompute.layers : std::numeric_limits<int>::max();
  };
  if (of_other.kind != RecomputeKind::kNone && of_other.kind >= of_best.kind &&
      of_other.above >= of_best.above && layers(of_other) > layers(of_best)) {
    return "it recomputes more layers";
  }
  if (other.batch.micro_batch < best.batch.micro_batch) {
    return fmt::format("matrices of micro-batch {} run slower than of {}", other.batch.micro_batch,
                       best.batch.micro_batch);
  }
  return "its micro-steps use the GPU less well";
}

std::string CommReason(const TrainSetup& other, const TrainSetup& best) {
  if (Hybrid(best) && !Hybrid(other) && other.zero.stage > 0) {
    return "its collectives span all GPUs";
  }
  switch (other.zero.stage) {
    case 0:
      return "the all-reduce of all gradients is not hidden";
    case 1:
      return "reducing gradients and gathering parameters is not hidden";
    case 2:
      return other.batch.grad_accum > 1
                 ? "gradients are reduced in every micro-step"
                 : "reducing gradients and gathering parameters is not hidden";
    default:
      return "parameters are gathered twice in every micro-step";
  }
}

std::string OffloadReason(const TrainSetup& other) {
  const auto& zero = other.zero;
  if (other.recompute.offload.device != OffloadDevice::kNone &&
      zero.offload_optimizer.device == OffloadDevice::kNone &&
      zero.offload_param.device == OffloadDevice::kNone) {
    return "it waits for activations that PCIe copies";
  }
  if (zero.offload_optimizer.device == OffloadDevice::kNvme ||
      zero.offload_param.device == OffloadDevice::kNvme) {
    return "it waits for the disk";
  }
  return zero.offload_optimizer.device == OffloadDevice::kNone
             ? "it waits for PCIe"
             : "it waits for the host's optimizer and PCIe";
}

std::string OptimizerReason(const TrainSetup& other, const TrainSetup& best) {
  const auto ranks = [](const TrainSetup& setup) {
    return setup.zero.stage == 0 ? 1 : ShardRanks(setup.zero, setup.batch.world_size);
  };
  return ranks(other) < ranks(best) ? "each GPU updates more of the states"
                                    : "its optimizer takes longer";
}

}  // namespace

std::string LossReason(const ChoiceEstimate& other, const ChoiceEstimate& best,
                       const SearchInputs& inputs) {
  const CauseSeconds a = SecondsForTokens(other.time, 1), b = SecondsForTokens(best.time, 1);
  const double slower = a.total / b.total - 1;
  if (slower <= -0.0005) {
    const double gain = b.total / a.total - 1;
    // Other runtimes say themselves why what is faster was not taken (Runtime::WhyNotTaken).
    const bool tie = inputs.objective == Objective::kThroughput &&
                     inputs.runtime->facts().bounds_search && gain <= kTieMargin;
    return fmt::format("{} % faster{}", FormatPercent(gain),
                       tie ? ": a tie, and the simpler choice is preferred" : "");
  }
  if (slower < 0.0005) return "as fast";
  struct Part {
    double difference;
    std::string reason;
    const char* gain;  // the words for a negative difference
  };
  std::vector<Part> parts = {
      {a.compute - b.compute, ComputeReason(other.setup, best.setup), "less compute"},
      {a.exposed_comm - b.exposed_comm, CommReason(other.setup, best.setup),
       "less waiting for communication"},
      {a.exposed_offload - b.exposed_offload, OffloadReason(other.setup),
       "less waiting for offload"},
      {a.optimizer - b.optimizer, OptimizerReason(other.setup, best.setup), "a shorter optimizer"},
      {a.host_overhead - b.host_overhead, "it waits longer for the Python thread",
       "less waiting for the Python thread"}};
  std::sort(parts.begin(), parts.end(),
            [](const Part& x, const Part& y) { return x.difference > y.difference; });
  std::string text = fmt::format("{} % slower", FormatPercent(slower));
  double said = 0;  // a share of a step
  for (size_t i = 0; i < 2; ++i) {
    const double share = parts[i].difference / b.total;
    if (share < 0.001 || (i == 1 && share < 0.3 * parts[0].difference / b.total)) break;
    text += fmt::format("{} {} (+{} % of a step)", i == 0 ? ":" : "; and", parts[i].reason,
                        FormatPercent(share));
    said += share;
  }
  // Reasons larger than the loss need what offsets them.
  const double offset = -parts.back().difference / b.total;
  if (said > slower + 0.0005 && offset >= 0.0005) {
    text += fmt::format(", offset in part by {} (-{} % of a step)", parts.back().gain,
                        FormatPercent(offset));
  }
  return text;
}

}  // namespace zeroplan
