// Pictures of choices, from what an estimate or a search says of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/estimate/estimate.h"
#include "planner/page/html.h"

namespace zeroplan {

// One row, or bar, of a picture.
struct ShownChoice {
  std::string label;
  const ChoiceEstimate* estimate = nullptr;
  bool marked = false;  // the answer
};

// Classes of each choice on top of each other, against what a GPU may hold.
Picture GpuMemoryPicture(const std::vector<ShownChoice>& choices, const Cluster& cluster);
// The same of hosts; nothing where no choice takes more than a hundredth of one for its states.
std::optional<Picture> HostMemoryPicture(const std::vector<ShownChoice>& choices,
                                         const Cluster& cluster);
// What loading, evaluation, saving and resuming of a choice take, a table; nothing where it is not
// known.
std::optional<Picture> AroundPicture(const ChoiceEstimate& choice, const Cluster& cluster);
// What a step's time is spent on. `tokens`: for this many tokens in place of each choice's own
// step, for choices with other batches. Nothing where times are not known.
std::optional<Picture> StepTimePicture(const std::vector<ShownChoice>& choices,
                                       const std::optional<double>& tokens);

// What a run takes with each choice, a table; nothing where there is none, or no time is known.
std::optional<Picture> RunCostPicture(const std::vector<ShownChoice>& choices, const RunGoal& goal);

// Documents of the goal's data by length, and, a table, how they become sequences in such batches:
// as they do, and packed the other way, in steps of `step_seconds` (unset: not known). REQUIRES:
// goal.data.
Picture LengthsPicture(const RunGoal& goal);
Picture SequencesPicture(const RunGoal& goal, const BatchSpec& batch,
                         std::optional<double> step_seconds);
// Both, and DataParagraphs among the findings.
void AddData(const RunGoal& goal, const ChoiceEstimate& choice, const ModelSpec& model, Page& page);

// A choice as fast as this with this memory.
struct JudgedDot {
  std::string label;
  uint64_t gpu_bytes = 0;
  double tokens_per_second = 0;
  bool fits = false, chosen = false;
};
// The Pareto front: for each dot, whether it fits and no other one that fits is at least as good in
// both values and better in one. Of equal dots the first is on it.
std::vector<bool> OnFront(const std::vector<JudgedDot>& dots);
Picture FrontPicture(const std::vector<JudgedDot>& dots, const Cluster& cluster);

// Memory of one GPU over a step of `program`, which is called `label`, and the buffers that make
// each phase's peak. `footprint` and `report` are FootprintOf's and WalkMemory's of it.
Picture StepMemoryPicture(const Program& program, const Footprint& footprint,
                          const MemoryReport& report, const std::string& label,
                          const CostModel& costs);

}  // namespace zeroplan
