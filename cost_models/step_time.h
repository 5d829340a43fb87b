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

// What the instructions of a section take as Timeline::Play wants it: at the clock that its kernels
// keep within the power limit, as if they never waited. A record or a wait parts the
// kernels around it on the compute stream; what that costs is counted with the kernel after it.
struct SectionCosts {
  std::vector<double> seconds, beside_collective;
};
void FindSectionCosts(const CostModel& costs, const Program& program, Section section,
                      SectionCosts* found);

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

// The parts a step is made of. The program does not depend on how many micro-steps lie in the
// middle, so that one lowered for 3 or more micro-steps gives the time of any such number.
struct StepParts {
  int64_t grad_accum = 1;  // of the program played
  SectionTime first, step;
  // The middle micro-steps in order, of 3 and more, until one finds what the one before it found;
  // all after that are like the last of these.
  std::vector<SectionTime> middle;
  // The last micro-step. Of 2 micro-steps one entry; of more, [i] is the one after i + 1 middle
  // ones, as many entries as `middle`.
  std::vector<SectionTime> last;

  // REQUIRES: grad_accum is the program's, or both are 3 and more.
  StepTime Of(int64_t grad_accum) const;
};

// Repetitions of a part of a step that run alike.
struct PlayedPart {
  Section section;
  uint8_t kinds;                  // of micro-step; kEvery of the update
  int64_t first_micro_step;       // the number of the first repetition; of the update grad_accum
  int64_t times;                  // how many there are
  SectionTime time;               // of each
  std::vector<double> seconds;    // of the section's instructions, alone on their streams
  std::vector<PlayedSpan> spans;  // of each, as Timeline::Play gives them
};

// Plays the parts of a step as those of a step among others: an update, and every micro-step but
// the last, is over when the compute stream is, and what comes next finds what it left under way.
class StepTimer {
 public:
  // Middle micro-steps that are played at most. What they leave grows from one to the next where
  // the host takes longer than the GPU; it is bounded, and has mostly been so long before.
  static constexpr int64_t kMostMiddle = 32;

  // `costs` must outlive the timer.
  explicit StepTimer(const CostModel& costs) : costs_(costs) {}

  StepParts Play(const Program& program);
  StepTime Time(const Program& program);

  // The program's own step in order, middle micro-steps that run alike as one part.
  std::vector<PlayedPart> PlayStep(const Program& program);

  // Every instruction of a step as issued, with its times as predicted: first micro-step, up to
  // `max_middle` of the middle ones, the last one, the update. Work that an update leaves to the
  // next step comes first, where the step before left it; work that was under way already starts at
  // 0. What this step's update leaves has no times.
  std::vector<TracedInstruction> Trace(const Program& program, int64_t max_middle);

 private:
  const SectionCosts& CostsOf(const Program& program, Section section) {
    FindSectionCosts(costs_, program, section, &section_);
    return section_;
  }
  // The update; what it leaves is carried_ then.
  SectionTime PlayUpdate(const Program& program, std::vector<PlayedSpan>* spans = nullptr);
  // Work that it leaves is carried_ then, work that it found left_before_. REQUIRES: `costs` are
  // the section's costs; what comes before it in a step was played last.
  SectionTime PlayMicroStep(const Program& program, uint8_t kinds, const SectionCosts& costs,
                            std::vector<PlayedSpan>* spans = nullptr);
  // Whether the micro-step played last, of `seconds`, left what it found.
  bool Repeats(double seconds) const;

  const CostModel& costs_;
  Timeline timeline_;
  SectionCosts section_;
  CarriedWork carried_, left_before_;
};

}  // namespace zeroplan
