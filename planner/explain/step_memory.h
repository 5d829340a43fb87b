// What one GPU holds while a step runs, by class, over predicted time.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/program/program.h"
#include "cost_models/memory_walk.h"
#include "cost_models/step_time.h"

namespace zeroplan {

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

}  // namespace zeroplan
