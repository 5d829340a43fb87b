// A planned step as text for people: its memory, its timeline, and its waits.
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

// The bytes that one GPU holds while a step runs, by class, over predicted time.

using ClassBytes = std::array<uint64_t, kMemoryClasses>;
uint64_t TotalOf(const ClassBytes& bytes);

// Live device bytes from `seconds` on, until the next moment. Several moments may begin at one
// time: allocations and frees while the compute stream stands still.
struct MemoryMoment {
  double seconds = 0;
  size_t part = 0;  // index into StepMemory::parts
  Phase phase = Phase::kForward;
  ClassBytes live{};
};

struct StepMemory {
  struct Part {
    std::string name;  // "first micro-step"
    double begin_seconds = 0;
    int64_t times = 1;  // number of identical parts, of which this one is shown
  };
  std::vector<Part> parts;
  std::vector<MemoryMoment> moments;  // in the order of the program
  double seconds = 0;                 // the sum over all parts, each once
  size_t peak = 0;                    // index of the moment with the most bytes
  // Live bytes at the peak of each phase, outside of the step too. All 0: there is no such phase.
  std::array<ClassBytes, kPhases> at_phase_peak{};
};

// The memory of a program over a step. An instruction takes effect when the compute stream reaches
// its place in the list. Micro-steps of one kind are shown once; among the middle ones the last
// that runs unlike those before. The peaks are WalkMemory's.
StepMemory MemoryOverStep(const Program& program, const CostModel& costs);

// "micro-step", "middle micro-step", "update". Middle micro-steps that run unlike the others are
// numbered; they come first. `i` is an index into `step`, the result of StepTimer::PlayStep.
std::string PartName(const std::vector<PlayedPart>& step, size_t i);

// Explains a step in several paragraphs, at most `columns` wide: the choice in a sentence; the peak
// of each phase and the classes; the seconds of each part of the step by cause; the streams of one
// micro-step and of the update as rows of text; the longest waits of the compute stream. Every
// number comes from walking and playing `program`. REQUIRES: `choice` is EstimateProgram's of
// `program`, `cluster` and `costs`.
std::string Explain(const Program& program, const ChoiceEstimate& choice, const Cluster& cluster,
                    const CostModel& costs, size_t columns);

// The waits of the compute stream in one section of a program, as the time model plays it.

// A time in which the compute stream stood still for one instruction of another stream.
struct ComputeWait {
  double seconds = 0;
  // Index into `section`; -1: no instruction was found.
  int64_t waited_for = -1;
  // differs from the played section if the instruction was carried in
  Section section = Section::kMicroStep;
};

// The waits of the compute stream in order, ending with the wait for the section's end. A wait is
// split from its end backwards: the instruction whose end ended it, then the one that this
// instruction had waited for, and so on. The waits and the slowdown by concurrent collectives
// (OverlapRates) add up to the exposed seconds.
std::vector<ComputeWait> ComputeWaits(const Program& program, const PlayedPart& played);

// A drawing of a section's streams as text, one row a stream.

// Characters of a row on a page of `page_columns` columns: 80, or fewer if the page has fewer than
// 100.
int LaneColumns(size_t page_columns);

// Rows of LaneColumns(page_columns) characters, each column an equal share of the section's time;
// streams that are never busy are left out. A column shows the letter of its stream's main
// activity:
//   F forward, B backward (recompute too), U update: kernels on the compute stream;
//   g gather, r reduce, h to the device, d from the device, c host kernels, s disk;
//   - busy for less than half of the column; . idle.
// Below the rows an axis in milliseconds. Empty if nothing takes time.
std::string DrawLanes(const Program& program, const PlayedPart& played, size_t page_columns);

// Explains the letters in `drawn`, in one line: "F forward, g gather, . idle".
std::string LaneLegend(std::string_view drawn);

}  // namespace zeroplan
