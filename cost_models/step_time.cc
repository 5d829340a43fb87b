#include "cost_models/step_time.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/model/model_flops.h"
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

StepParts StepTimer::Play(const Program& program) {
  StepParts parts;
  const int64_t g = program.setup.batch.grad_accum;
  parts.grad_accum = g;
  const OverlapRates& rates = costs_.overlap();
  // A step among others: its first micro-step finds what the update before it left under way.
  const std::vector<double>& step = Costs(program, Section::kOptimizerStep);
  parts.step = timeline_.Play(program, Section::kOptimizerStep, kEvery, step, rates, nullptr,
                              nullptr, &carried_);
  const std::vector<double>& micro = Costs(program, Section::kMicroStep);
  auto play = [&](uint8_t kinds, const CarriedWork* before = nullptr) {
    return timeline_.Play(program, Section::kMicroStep, kinds, micro, rates, nullptr, before);
  };
  parts.first = play(g == 1 ? kOnly : kFirst, &carried_);
  if (g >= 3) parts.middle = play(kMiddle);
  if (g >= 2) parts.last = play(kLast);
  return parts;
}

StepTime StepTimer::Time(const Program& program) {
  return Play(program).Of(program.setup.batch.grad_accum);
}

std::vector<TraceSpan> StepTimer::Trace(const Program& program, int64_t max_middle) {
  std::vector<TraceSpan> trace;
  std::vector<PlayedSpan> spans;
  double begin = 0;
  timeline_.Play(program, Section::kOptimizerStep, kEvery, Costs(program, Section::kOptimizerStep),
                 costs_.overlap(), nullptr, nullptr, &carried_);
  bool first = true;
  for (const SectionRun& run : WalkOrder(program)) {
    const std::vector<double>& seconds = Costs(program, run.section);
    const int64_t times = run.kinds == kMiddle ? std::min(run.times, max_middle) : run.times;
    for (int64_t i = 0; i < times; ++i) {
      spans.clear();
      const CarriedWork* before = first ? &carried_ : nullptr;
      CarriedWork* after = run.section == Section::kOptimizerStep ? &left_ : nullptr;
      const SectionTime time = timeline_.Play(program, run.section, run.kinds, seconds,
                                              costs_.overlap(), &spans, before, after);
      first = false;
      for (const PlayedSpan& span : spans) {
        trace.push_back({span.section, static_cast<int32_t>(span.index),
                         begin + std::max(0.0, span.begin_seconds), begin + span.end_seconds});
      }
      begin += time.total_seconds;
    }
  }
  return trace;
}

double ModelFlopsUtilisation(const ModelSpec& model, int64_t seq_len, double tokens_per_second,
                             int gpus, double dense_peak) {
  return TrainFlopsPerToken(model, seq_len) * tokens_per_second / (gpus * dense_peak);
}

}  // namespace zeroplan
