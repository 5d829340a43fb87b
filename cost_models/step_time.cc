#include "cost_models/step_time.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "core/base/error.h"
#include "core/program/step_order.h"

namespace zeroplan {

namespace {

// Whether what is under way takes as long, and is waited for alike, but for rounding.
bool Alike(const CarriedWork& a, const CarriedWork& b, double slack_seconds) {
  using Item = CarriedWork::Item;
  const auto alike = [&](const Item& x, const Item& y) {
    if (x.kind != y.kind) return false;
    if (x.kind != Item::Kind::kTimed) return x.event == y.event && x.records == y.records;
    return x.resource == y.resource && std::abs(x.seconds - y.seconds) <= slack_seconds;
  };
  for (size_t s = 0; s < a.lanes.size(); ++s) {
    if (!std::equal(a.lanes[s].begin(), a.lanes[s].end(), b.lanes[s].begin(), b.lanes[s].end(),
                    alike)) {
      return false;
    }
  }
  return true;
}

}  // namespace

void FindSectionCosts(const CostModel& costs, const Program& program, Section section,
                      SectionCosts* found) {
  const std::vector<Instruction>& list = program.section(section);
  found->seconds.resize(list.size());
  found->beside_collective.resize(list.size());
  bool parted = false;
  // The clock is that of the micro-step that a step repeats.
  const int64_t g = program.setup.batch.grad_accum;
  uint8_t repeated = kEvery;
  if (section == Section::kMicroStep) repeated = g == 1 ? kOnly : g == 2 ? kFirst | kLast : kMiddle;
  GpuWork work;
  std::vector<std::pair<size_t, double>>
      clocked;  // instruction, and its seconds that the clock sets
  for (size_t i = 0; i < list.size(); ++i) {
    const Instruction& instruction = list[i];
    if (std::holds_alternative<Alloc>(instruction.op) ||
        std::holds_alternative<Free>(instruction.op)) {  // most of a list
      found->seconds[i] = 0;
      found->beside_collective[i] = 1;
      continue;
    }
    const CostModel::InstructionCost cost = costs.CostOf(program, instruction);
    double& seconds = found->seconds[i];
    seconds = cost.seconds;
    found->beside_collective[i] = cost.beside_collective;
    const int times = std::popcount(static_cast<unsigned>(instruction.when & repeated));
    if (instruction.stream != Stream::kCompute) {
      // Beside kernels a collective takes no time of theirs, but of the power.
      if (std::holds_alternative<Collective>(instruction.op)) {
        work.joules += times * cost.work.joules;
      }
      continue;
    }
    work += cost.work * times;
    if (cost.work.clocked_seconds > 0) clocked.emplace_back(i, cost.work.clocked_seconds);
    if (std::holds_alternative<RecordEvent>(instruction.op) ||
        std::holds_alternative<WaitEvent>(instruction.op)) {
      parted = true;
    } else if (parted && std::holds_alternative<LaunchKernel>(instruction.op)) {
      seconds += costs.EventSeconds();
      work.fixed_seconds += times * costs.EventSeconds();
      parted = false;
    }
  }
  const double longer = 1 / costs.Clock(work) - 1;
  if (longer > 0) {
    for (const auto& [i, seconds] : clocked) found->seconds[i] += longer * seconds;
  }
  const double slowest = costs.SlowestRank();
  if (slowest == 1) return;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].stream == Stream::kCompute) found->seconds[i] *= slowest;
  }
}

StepTime StepParts::Of(int64_t micro_steps) const {
  ZEROPLAN_CHECK(std::min<int64_t>(micro_steps, 3) == std::min<int64_t>(grad_accum, 3));
  StepTime time;
  SectionTime& sum = time.by_stream;
  sum = first;
  const auto played = static_cast<int64_t>(middle.size());
  const int64_t own = std::min(std::max<int64_t>(micro_steps - 2, 0), played);
  for (int64_t m = 0; m < own; ++m) sum += middle[static_cast<size_t>(m)];
  if (micro_steps - 2 > own) sum += middle.back() * static_cast<double>(micro_steps - 2 - own);
  if (micro_steps >= 2) sum += last[static_cast<size_t>(std::max<int64_t>(own - 1, 0))];
  sum += step;
  time.compute_seconds = sum.compute_seconds;
  time.optimizer_seconds = sum.optimizer_seconds;
  time.exposed_comm_seconds = sum.exposed(Stream::kGather) + sum.exposed(Stream::kReduce);
  time.exposed_offload_seconds = sum.exposed(Stream::kHostToDevice) +
                                 sum.exposed(Stream::kDeviceToHost) + sum.exposed(Stream::kHost) +
                                 sum.exposed(Stream::kStorage) + sum.exposed(Stream::kStorageWrite);
  time.total_seconds = sum.total_seconds;
  return time;
}

SectionTime StepTimer::PlayUpdate(const Program& program, std::vector<PlayedSpan>* spans) {
  const SectionCosts& costs = CostsOf(program, Section::kOptimizerStep);
  return timeline_.Play(program, Section::kOptimizerStep, kEvery, costs.seconds, costs_.overlap(),
                        spans, nullptr, &carried_, costs.beside_collective);
}

SectionTime StepTimer::PlayMicroStep(const Program& program, uint8_t kinds,
                                     const SectionCosts& costs, std::vector<PlayedSpan>* spans) {
  std::swap(carried_, left_before_);
  const bool leaves = (kinds & kLeavesToMicroStep) != 0;
  if (!leaves) carried_.Clear();
  return timeline_.Play(program, Section::kMicroStep, kinds, costs.seconds, costs_.overlap(), spans,
                        &left_before_, leaves ? &carried_ : nullptr, costs.beside_collective);
}

bool StepTimer::Repeats(double seconds) const {
  return Alike(carried_, left_before_, 1e-9 * seconds);
}

StepParts StepTimer::Play(const Program& program) {
  StepParts parts;
  const int64_t g = program.setup.batch.grad_accum;
  parts.grad_accum = g;
  parts.step = PlayUpdate(program);
  const SectionCosts& micro = CostsOf(program, Section::kMicroStep);
  parts.first = PlayMicroStep(program, g == 1 ? kOnly : kFirst, micro);
  if (g == 2) parts.last.push_back(PlayMicroStep(program, kLast, micro));
  bool repeats = g < 3;
  while (!repeats && static_cast<int64_t>(parts.middle.size()) < kMostMiddle) {
    parts.middle.push_back(PlayMicroStep(program, kMiddle, micro));
    repeats = Repeats(parts.middle.back().total_seconds);
    if (repeats && !parts.last.empty()) {
      parts.last.push_back(parts.last.back());
      break;
    }
    CarriedWork left = carried_;
    parts.last.push_back(PlayMicroStep(program, kLast, micro));
    carried_ = std::move(left);
  }
  return parts;
}

std::vector<PlayedPart> StepTimer::PlayStep(const Program& program) {
  const int64_t g = program.setup.batch.grad_accum;
  std::vector<PlayedPart> parts;
  PlayUpdate(program);
  const SectionCosts micro = CostsOf(program, Section::kMicroStep);
  bool repeats = false;
  for (int64_t m = 0; m < g; ++m) {
    const When kind = MicroStepKind(m, g);
    if (kind == kMiddle && repeats) {
      ++parts.back().times;
      continue;
    }
    PlayedPart part{Section::kMicroStep, kind, m, 1, {}, micro.seconds, {}};
    part.time = PlayMicroStep(program, kind, micro, &part.spans);
    repeats = kind == kMiddle && (m == kMostMiddle || Repeats(part.time.total_seconds));
    parts.push_back(std::move(part));
  }
  PlayedPart update{Section::kOptimizerStep, kEvery, g, 1, {}, {}, {}};
  update.time = PlayUpdate(program, &update.spans);
  update.seconds = CostsOf(program, Section::kOptimizerStep).seconds;
  parts.push_back(std::move(update));
  return parts;
}

StepTime StepTimer::Time(const Program& program) {
  return Play(program).Of(program.setup.batch.grad_accum);
}

std::vector<TracedInstruction> StepTimer::Trace(const Program& program, int64_t max_middle) {
  std::vector<TracedInstruction> issued;
  std::vector<TraceSpan> trace;
  std::vector<PlayedSpan> spans;
  double begin = 0;
  PlayUpdate(program);
  for (const auto& lane : carried_.lanes) {
    for (const CarriedWork::Item& item : lane) {
      issued.push_back({item.section, static_cast<int32_t>(item.index)});
    }
  }
  // As issued: records come before the waits for them.
  std::sort(issued.begin(), issued.end(),
            [](const auto& a, const auto& b) { return a.index < b.index; });
  for (const SectionRun& run : WalkOrder(program)) {
    const int64_t times = run.kinds == kMiddle ? std::min(run.times, max_middle) : run.times;
    for (int64_t i = 0; i < times; ++i) {
      const std::vector<Instruction>& list = program.section(run.section);
      for (size_t at = 0; at < list.size(); ++at) {
        if (!RunsIn(list[at], run.section, run.kinds)) continue;
        issued.push_back({run.section, static_cast<int32_t>(at)});
      }
      spans.clear();
      const SectionTime time =
          run.section == Section::kOptimizerStep
              ? PlayUpdate(program, &spans)
              : PlayMicroStep(program, run.kinds, CostsOf(program, run.section), &spans);
      for (const PlayedSpan& span : spans) {
        trace.push_back({span.section, static_cast<int32_t>(span.index),
                         std::max(0.0, begin + span.begin_seconds), begin + span.end_seconds});
      }
      begin += time.total_seconds;
    }
  }
  GiveTimes(program, std::move(trace), &issued);
  return issued;
}

}  // namespace zeroplan
