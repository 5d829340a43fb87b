#include "cost_models/step_time.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/program/step_order.h"

namespace zeroplan {

StepTime StepParts::Of(int64_t micro_steps) const {
  ZEROPLAN_CHECK(std::min<int64_t>(micro_steps, 3) == std::min<int64_t>(grad_accum, 3));
  StepTime time;
  SectionTime& sum = time.by_stream;
  sum = first;
  if (micro_steps >= 2) sum += last;
  if (micro_steps >= 3) sum += middle * static_cast<double>(micro_steps - 2);
  sum += step;
  time.compute_seconds = sum.compute_seconds;
  time.optimizer_seconds = sum.optimizer_seconds;
  time.exposed_comm_seconds = sum.exposed(Stream::kGather) + sum.exposed(Stream::kReduce);
  time.exposed_offload_seconds = sum.exposed(Stream::kHostToDevice) +
                                 sum.exposed(Stream::kDeviceToHost) + sum.exposed(Stream::kHost) +
                                 sum.exposed(Stream::kStorage);
  time.total_seconds = sum.total_seconds;
  return time;
}

const std::vector<double>& StepTimer::Costs(const Program& program, Section section) {
  const std::vector<Instruction>& list = program.section(section);
  seconds_.resize(list.size());
  for (size_t i = 0; i < list.size(); ++i) seconds_[i] = costs_.Seconds(program, list[i]);
  return seconds_;
}

SectionTime StepTimer::PlayUpdate(const Program& program, std::vector<PlayedSpan>* spans) {
  return timeline_.Play(program, Section::kOptimizerStep, kEvery,
                        Costs(program, Section::kOptimizerStep), costs_.overlap(), spans, nullptr,
                        &carried_);
}

SectionTime StepTimer::PlayMicroStep(const Program& program, uint8_t kinds,
                                     std::span<const double> seconds,
                                     std::vector<PlayedSpan>* spans) {
  const bool first = (kinds & (kOnly | kFirst)) != 0;
  return timeline_.Play(program, Section::kMicroStep, kinds, seconds, costs_.overlap(), spans,
                        first ? &carried_ : nullptr);
}

SectionTime StepTimer::PlayPart(const Program& program, Section section, uint8_t kinds,
                                std::vector<PlayedSpan>* spans) {
  ZEROPLAN_CHECK(section == Section::kMicroStep || section == Section::kOptimizerStep);
  if (section == Section::kOptimizerStep) return PlayUpdate(program, spans);
  PlayUpdate(program);
  return PlayMicroStep(program, kinds, Costs(program, section), spans);
}

StepParts StepTimer::Play(const Program& program) {
  StepParts parts;
  const int64_t g = program.setup.batch.grad_accum;
  parts.grad_accum = g;
  parts.step = PlayUpdate(program);
  const std::vector<double>& micro = Costs(program, Section::kMicroStep);
  parts.first = PlayMicroStep(program, g == 1 ? kOnly : kFirst, micro);
  if (g >= 3) parts.middle = PlayMicroStep(program, kMiddle, micro);
  if (g >= 2) parts.last = PlayMicroStep(program, kLast, micro);
  return parts;
}

StepTime StepTimer::Time(const Program& program) {
  return Play(program).Of(program.setup.batch.grad_accum);
}

std::vector<TraceSpan> StepTimer::Trace(const Program& program, int64_t max_middle) {
  std::vector<TraceSpan> trace;
  std::vector<PlayedSpan> spans;
  double begin = 0;
  PlayUpdate(program);
  for (const SectionRun& run : WalkOrder(program)) {
    const int64_t times = run.kinds == kMiddle ? std::min(run.times, max_middle) : run.times;
    for (int64_t i = 0; i < times; ++i) {
      spans.clear();
      const SectionTime time =
          run.section == Section::kOptimizerStep
              ? PlayUpdate(program, &spans)
              : PlayMicroStep(program, run.kinds, Costs(program, run.section), &spans);
      for (const PlayedSpan& span : spans) {
        trace.push_back({span.section, static_cast<int32_t>(span.index),
                         begin + std::max(0.0, span.begin_seconds), begin + span.end_seconds});
      }
      begin += time.total_seconds;
    }
  }
  return trace;
}

}  // namespace zeroplan
