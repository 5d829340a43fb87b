#include "executor/train/run_identity.h"

#include <algorithm>
#include <iterator>

#include "core/base/dtype.h"
#include "core/base/error.h"

namespace zeroplan {
namespace {

std::string OfRunText(const RunScheduleConfig& run, int64_t total) {
  const std::string warmup =
      run.warmup_steps > 0 ? fmt::format("warm-up in {} steps, then ", run.warmup_steps) : "";
  if (run.shape == DecayShape::kConstant) return warmup + "constant";
  return fmt::format("{}{} to {} of the rate at step {}", warmup,
                     run.shape == DecayShape::kLinear ? "linear" : "cosine", run.min_ratio, total);
}

std::string ScheduleText(const ScheduleConfig& s, int64_t steps) {
  const OneCycleConfig& cycle = s.one_cycle;
  const RangeTestConfig& range = s.range_test;
  const int64_t total = s.total_steps > 0 ? s.total_steps : steps;
  switch (s.kind) {
    case ScheduleKind::kConstant:
      return "constant";
    case ScheduleKind::kWarmup:
    case ScheduleKind::kWarmupDecay:
      return fmt::format("{} from {} to {} in {} steps{}{}",
                         s.log_warmup ? "logarithmic warm-up" : "linear warm-up", s.warmup_min_lr,
                         s.warmup_max_lr, s.warmup_steps,
                         s.kind == ScheduleKind::kWarmup ? "" : ", decay to step ",
                         s.kind == ScheduleKind::kWarmup ? "" : std::to_string(total));
    case ScheduleKind::kWarmupCosine:
      return fmt::format("{} warm-up from {} in {} steps, cosine to {} at step {}",
                         s.log_warmup ? "logarithmic" : "linear", s.warmup_min_ratio,
                         s.warmup_steps, s.cos_min_ratio, total);
    case ScheduleKind::kOneCycle:
      return fmt::format("one cycle {} to {}, {} + {} steps, {} + {} stairs, decay {} by {}",
                         cycle.min_lr, cycle.max_lr, cycle.first_steps, cycle.second_steps,
                         cycle.first_stairs, cycle.second_stairs, cycle.decay_steps,
                         cycle.decay_rate);
    case ScheduleKind::kRangeTest:
      return fmt::format("range test from {}, {} every {} steps{}", range.min_lr, range.step_rate,
                         range.step_size, range.staircase ? ", in stairs" : "");
    case ScheduleKind::kOfRun:
      return OfRunText(s.of_run, total);
  }
  ZEROPLAN_CHECK(false);
}

std::string PrecisionText(const PrecisionConfig& p) {
  std::string text =
      fmt::format("{}, gradients summed in {}{}", DtypeName(p.dtype), DtypeName(p.grad_accum_dtype),
                  p.fp32_reduction ? " and reduced in fp32" : "");
  if (p.dtype != Dtype::kF16) return text;
  return text +
         (p.loss_scale > 0
              ? fmt::format(", loss scale {}", p.loss_scale)
              : fmt::format(", loss scale from 2^{}, window {}, hysteresis {}{}, at least {}",
                            p.initial_scale_power, p.loss_scale_window, p.hysteresis,
                            p.consecutive_hysteresis ? " refilled" : "", p.min_loss_scale));
}

std::string OrderText(bool shuffle, Packing packing) {
  const std::string order = shuffle ? "shuffled" : "the stream's (--no-shuffle)";
  if (packing == Packing::kStream) return order;
  return fmt::format("{}, --packing {}", order, PackingName(packing));
}

bool IsHeld(const std::string& name) {
  return std::find(std::begin(kHeldFacts), std::end(kHeldFacts), name) != std::end(kHeldFacts);
}

}  // namespace

NamedFacts DecidingFacts(const TrainSetup& setup, int64_t steps, bool shuffle,
                         const std::string& data, Packing packing) {
  const OptimizerConfig& o = setup.optimizer;
  return {{"data", data},
          {"order", OrderText(shuffle, packing)},
          {"seq-len", std::to_string(setup.batch.seq_len)},
          {"global batch", fmt::format("{} sequences", setup.batch.global_batch())},
          {"lr", fmt::format("{}", o.lr)},
          {"betas", fmt::format("{}, {}", o.betas[0], o.betas[1])},
          {"eps", fmt::format("{}", o.eps)},
          {"weight decay",
           fmt::format("{}{}", o.weight_decay, o.adam_w_mode ? "" : ", added to the gradient")},
          {"bias correction", o.bias_correction ? "on" : "off"},
          {"gradient clipping", fmt::format("{}", o.gradient_clipping)},
          {"schedule", ScheduleText(o.schedule, steps)},
          {"precision", PrecisionText(setup.precision)}};
}

std::vector<RunChange> CompareWithCheckpoint(const NamedFacts& now,
                                             const std::map<std::string, std::string>& saved,
                                             const std::vector<std::string>& allowed,
                                             const std::string& checkpoint) {
  std::vector<RunChange> changes;
  std::string refused, names;
  for (const auto& [name, value] : now) {
    const auto found = saved.find(name);
    const std::string before = found == saved.end() ? "not known" : found->second;
    if (before == value) continue;
    const bool may =
        !IsHeld(name) || std::find(allowed.begin(), allowed.end(), name) != allowed.end();
    const std::string line =
        fmt::format("{}: {} in the checkpoint, {} from here on", name, before, value);
    if (may) {
      changes.push_back({name, line});
      continue;
    }
    refused += (refused.empty() ? "" : "; ") + line;
    names += (names.empty() ? "" : ",") + name;
  }
  if (!refused.empty()) {
    ThrowUsage(
        "--resume: {} was saved by a run of other samples: {}. Give what it was saved with; "
        "--allow-change {} trains on all the same",
        checkpoint, refused, names);
  }
  return changes;
}

}  // namespace zeroplan
