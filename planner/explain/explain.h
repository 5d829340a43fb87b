// A planned step as a person reads it: what it holds, what it does when, and what it waits for.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/program/program.h"
#include "cost_models/cost_model.h"
#include "cost_models/memory_walk.h"
#include "cost_models/step_time.h"
#include "planner/cluster.h"
#include "planner/estimate/estimate.h"

namespace zeroplan {

// What one GPU holds while a step runs, by class, over predicted time.

using ClassBytes = std::array<uint64_t, kMemoryClasses>;
uint64_t TotalOf(const ClassBytes& bytes);

// Live device bytes from `seconds` on, until the next moment. Several may begin at one instant:
// what is allocated and freed while the compute stream stands still.
struct MemoryMoment {
  double seconds = 0;
  size_t part = 0;  // of StepMemory::parts
  Phase phase = Phase::kForward;
  ClassBytes live{};
};

struct StepMemory {
  struct Part {
    std::string name;  // "first micro-step"
    double begin_seconds = 0;
    int64_t times = 1;  // how many are alike, of which this one is shown
  };
  std::vector<Part> parts;
  std::vector<MemoryMoment> moments;  // in the order of the program
  double seconds = 0;                 // of all parts, each once
  size_t peak = 0;                    // the moment that holds most
  // What is live at the peak of each phase, outside of the step too. All 0: there is no such phase.
  std::array<ClassBytes, kPhases> at_phase_peak{};
};

// An instruction of the program counts when the compute stream comes to its place in the list.
// Micro-steps of one kind are shown once; of the middle ones it is the last that runs unlike those
// before. The peaks are WalkMemory's.
StepMemory MemoryOverStep(const Program& program, const CostModel& costs);

// "micro-step", "middle micro-step", "update". Of the middle ones those have a number that run
// unlike the others: they come first. `i` is into `step`, StepTimer::PlayStep's.
std::string PartName(const std::vector<PlayedPart>& step, size_t i);

// Several paragraphs, at most `columns` wide: the choice in a sentence; the peak of each phase
// and the classes; the seconds of each part of the step and what they are spent on; the streams of
// one micro-step and of the update as rows of text; the longest waits of the compute stream. Every
// number comes from walking and playing `program`. REQUIRES: `choice` is EstimateProgram's of
// `program`, `cluster` and `costs`.
std::string Explain(const Program& program, const ChoiceEstimate& choice, const Cluster& cluster,
                    const CostModel& costs, size_t columns);

// What the compute stream waits for in one section of a program as the time model plays it.

// Time that the compute stream stood still for one instruction of another stream.
struct ComputeWait {
  double seconds = 0;
  // Into `section`; -1: none was found.
  int64_t waited_for = -1;
  Section section = Section::kMicroStep;  // may be another than the played one: carried in
};

// The waits of the compute stream in order, a last one until the section's end included. A wait is
// taken apart from its end backwards: the instruction whose end ended it, the one that this had
// waited for, and so on. They and the time lost beside collectives (OverlapRates) make the exposed
// seconds.
std::vector<ComputeWait> ComputeWaits(const Program& program, const PlayedPart& played);

// A section's streams drawn as text, one row a stream.

// Characters of a row on a page of so many columns: 80, or fewer where that is less than 100.
int LaneColumns(size_t page_columns);

// Rows of LaneColumns(page_columns) characters, each column an equal share of the section's time;
// streams that are never busy are left out. A column shows the letter of what its stream does for
// most of it:
//   F forward, B backward (recompute too), U update: kernels on the compute stream;
//   g gather, r reduce, h to the device, d from the device, c host kernels, s disk;
//   - busy for less than half of the column; . idle.
// Below the rows an axis in milliseconds. Empty if nothing takes time.
std::string DrawLanes(const Program& program, const PlayedPart& played, size_t page_columns);

// What the letters in `drawn` stand for, in one line: "F forward, g gather, . idle".
std::string LaneLegend(std::string_view drawn);

}  // namespace zeroplan
