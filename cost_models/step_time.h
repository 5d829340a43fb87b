// Seconds of one optimizer step: its micro-steps and its update, each played by the Timeline.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/program/chrome_trace.h"
#include "core/program/program.h"
#include "cost_models/cost_model.h"
#include "cost_models/timeline.h"

namespace zeroplan {

// One step's time by what it is spent on; the first four add up to `total`. What only overlaps
// with compute costs nothing and shows in `by_stream.busy_seconds` alone.
struct StepTime {
  double compute_seconds = 0;          // forward, backward, recompute
  double exposed_comm_seconds = 0;     // compute waits for, or is slowed by, gathers and reductions
  double exposed_offload_seconds = 0;  // compute waits for PCIe, host kernels or the disk
  double optimizer_seconds = 0;        // norm, AdamW and the like on the GPU
  double total_seconds = 0;
  SectionTime by_stream;
};

// The parts a step is made of. They do not depend on how many micro-steps lie in the middle, so
// that one program lowered for 3 or more micro-steps gives the time of any such number.
struct StepParts {
  int64_t grad_accum = 1;  // of the program played
  SectionTime first, middle, last, step;

  // REQUIRES: grad_accum is the program's, or both are 3 and more.
  StepTime Of(int64_t grad_accum) const;
};

// Plays the parts of a step as those of a step among others: an update is over when the compute
// stream is, and the first micro-step finds what the update before it left under way.
class StepTimer {
 public:
  // `costs` must outlive the timer.
  explicit StepTimer(const CostModel& costs) : costs_(costs) {}

  StepParts Play(const Program& program);
  StepTime Time(const Program& program);

  // One part alone: micro-steps of one of `kinds`, or the update. `spans`, if given, gets what ran
  // when, as Timeline::Play gives it.
  SectionTime PlayPart(const Program& program, Section section, uint8_t kinds,
                       std::vector<PlayedSpan>* spans = nullptr);

  // Every instruction of a step as predicted: first micro-step, up to `max_middle` of the middle
  // ones, the last one, the update. What an update leaves to the next step shows at the begin,
  // where the step before left it; what of that was under way already, from there on.
  std::vector<TraceSpan> Trace(const Program& program, int64_t max_middle);

 private:
  const std::vector<double>& Costs(const Program& program, Section section);
  // The update; what it leaves is carried_ then.
  SectionTime PlayUpdate(const Program& program, std::vector<PlayedSpan>* spans = nullptr);
  // REQUIRES: `seconds` are the section's costs; an update was played, if `kinds` come first.
  SectionTime PlayMicroStep(const Program& program, uint8_t kinds, std::span<const double> seconds,
                            std::vector<PlayedSpan>* spans = nullptr);

  const CostModel& costs_;
  Timeline timeline_;
  std::vector<double> seconds_;
  CarriedWork carried_;
};

}  // namespace zeroplan
