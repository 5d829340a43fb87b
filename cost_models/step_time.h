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

// The costs of a section's instructions in the form of Timeline::Play: at the clock that its
// kernels keep within the power limit, as if they never waited. A record or a wait splits the
// kernels around it on the compute stream; its cost is added to the kernel after it.
struct SectionCosts {
  std::vector<double> seconds, beside_collective;
};
void FindSectionCosts(const CostModel& costs, const Program& program, Section section,
                      SectionCosts* found);

// One step's time by cause; the first four add up to `total`. Work that only overlaps with compute
// costs nothing and appears in `by_stream.busy_seconds` alone.
struct StepTime {
  double compute_seconds = 0;          // forward, backward, recompute
  double exposed_comm_seconds = 0;     // compute waits for, or is slowed by, gathers and reductions
  double exposed_offload_seconds = 0;  // compute waits for PCIe, host kernels or the disk
  double optimizer_seconds = 0;        // norm, AdamW and the like on the GPU
  double total_seconds = 0;
  SectionTime by_stream;
};

// The parts of a step. The program does not depend on the number of middle micro-steps, so one
// lowered for 3 or more micro-steps gives the time of any such number.
struct StepParts {
  int64_t grad_accum = 1;  // the played program's
  SectionTime first, step;
  // The middle micro-steps in order, of 3 and more, until one finds the same work as the one before
  // it; all later ones equal the last entry.
  std::vector<SectionTime> middle;
  // The last micro-step. For 2 micro-steps one entry; for more, [i] is the one after i + 1 middle
  // ones, with as many entries as `middle`.
  std::vector<SectionTime> last;

  // REQUIRES: grad_accum is the program's, or both are 3 and more.
  StepTime Of(int64_t grad_accum) const;
};

// Identical repetitions of a part of a step.
struct PlayedPart {
  Section section;
  uint8_t kinds;                  // kinds of micro-step; kEvery for the update
  int64_t first_micro_step;       // number of the first repetition; for the update grad_accum
  int64_t times;                  // number of repetitions
  SectionTime time;               // time of each repetition
  std::vector<double> seconds;    // times of the section's instructions, alone on their streams
  std::vector<PlayedSpan> spans;  // each repetition's, as Timeline::Play gives them
};

// Plays the parts of a step as one among other steps: an update, and every micro-step but the last,
// ends when the compute stream does, and the next part finds the work that it left.
class StepTimer {
 public:
  // The most middle micro-steps that are played. The work that they leave grows from one to the
  // next if the host is slower than the GPU; it is bounded, and has mostly reached its bound by
  // then.
  static constexpr int64_t kMostMiddle = 32;

  // `costs` must outlive the timer.
  explicit StepTimer(const CostModel& costs) : costs_(costs) {}

  StepParts Play(const Program& program);
  StepTime Time(const Program& program);

  // The program's own step in order, middle micro-steps that run alike as one part.
  std::vector<PlayedPart> PlayStep(const Program& program);

  // Every instruction of a step as issued, with its predicted times: first micro-step, up to
  // `max_middle` of the middle ones, the last one, the update. Work that an update leaves to the
  // next step comes first, at the times of the step before; work already under way starts at 0.
  // Work that this step's update leaves has no times.
  std::vector<TracedInstruction> Trace(const Program& program, int64_t max_middle);

 private:
  const SectionCosts& CostsOf(const Program& program, Section section) {
    FindSectionCosts(costs_, program, section, &section_);
    return section_;
  }
  // Plays the update; sets carried_ to the work that it leaves.
  SectionTime PlayUpdate(const Program& program, std::vector<PlayedSpan>* spans = nullptr);
  // Plays a micro-step; sets carried_ to the work that it leaves and left_before_ to the work that
  // it found. REQUIRES: `costs` are the section's costs; the part before it in a step was played
  // last.
  SectionTime PlayMicroStep(const Program& program, uint8_t kinds, const SectionCosts& costs,
                            std::vector<PlayedSpan>* spans = nullptr);
  // Whether the micro-step played last, of `seconds`, left the same work as it found.
  bool Repeats(double seconds) const;

  const CostModel& costs_;
  Timeline timeline_;
  SectionCosts section_;
  CarriedWork carried_, left_before_;
};

}  // namespace zeroplan
