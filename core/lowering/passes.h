// The passes that Lower() runs, in this order. Each takes a program and returns it changed; none
// looks at anything but the program (and the options it is given). Each leaves a sound program:
// CheckDraft (core/program/draft_check.h) accepts it at the stage that kPasses names.
//
// Until InsertLifetimes, instructions use buffers without Alloc or Free (but for explicit early
// decisions), and their list order is the order in which one stream would run them. The streams
// they carry say where they will run; AssignEvents adds what orders the streams.
#pragma once

#include <array>
#include <string_view>
#include <utility>

#include "core/lowering/lower.h"
#include "core/program/draft_check.h"
#include "core/program/program.h"

namespace zeroplan {

// Forward, loss and backward over whole parameters and whole gradients; evaluation or generation.
Program BuildCompute(Program program, const LowerOptions& options);
// Drops a segment's activations after its forward and computes them again before its backward.
Program InsertRecompute(Program program);
// Stage 3: parameters become shards, gathered before use (ahead by the prefetch plan), freed after.
Program InsertUnshard(Program program);
// Buffers of optimizer states and of reduced gradients where the config puts them, and their slots.
Program InsertStates(Program program);
// Accumulates and reduces gradients by buckets; at stages 2 and 3 whole gradients become transient.
Program InsertReduction(Program program);
// Sections init and optimizer_step: fresh states, norm, clip, AdamW, gathers.
Program InsertOptimizer(Program program);
// Sections save and load.
Program InsertCheckpoint(Program program, const LowerOptions& options);
// As much of these sections as their memory follows from: no step runs them.
Program InsertCheckpointMemory(Program program, const LowerOptions& options);
// Gradients to the host, parameter shards from host or disk.
Program InsertOffload(Program program);
// Alloc before the first and Free after the last use of each transient buffer.
Program InsertLifetimes(Program program);
// RecordEvent and WaitEvent, no more than needed, so that any order the streams allow is right.
Program AssignEvents(Program program);
// The same for micro_step and optimizer_step alone.
Program AssignStepEvents(Program program);
// Offsets in the arenas and the arenas' sizes.
Program PlaceArenas(Program program);
// The same; `cache` may know what it has placed before.
Program PlaceArenas(Program program, PlacementCache& cache);

// ---- the table ----

struct Pass {
  std::string_view name;
  Program (*run)(Program, const LowerOptions&);
  DraftStage leaves;  // how far its programs have come
};

template <Program (*kRun)(Program)>
Program WithoutOptions(Program program, const LowerOptions&) {
  return kRun(std::move(program));
}

inline constexpr std::array kPasses = {
    Pass{"BuildCompute", BuildCompute, DraftStage::kMeaning},
    Pass{"InsertRecompute", WithoutOptions<InsertRecompute>, DraftStage::kMeaning},
    Pass{"InsertUnshard", WithoutOptions<InsertUnshard>, DraftStage::kMeaning},
    Pass{"InsertStates", WithoutOptions<InsertStates>, DraftStage::kMeaning},
    Pass{"InsertReduction", WithoutOptions<InsertReduction>, DraftStage::kMeaning},
    Pass{"InsertOptimizer", WithoutOptions<InsertOptimizer>, DraftStage::kMeaning},
    Pass{"InsertCheckpoint", InsertCheckpoint, DraftStage::kMeaning},
    Pass{"InsertOffload", WithoutOptions<InsertOffload>, DraftStage::kReachable},
    Pass{"InsertLifetimes", WithoutOptions<InsertLifetimes>, DraftStage::kLifetimes},
    Pass{"AssignEvents", WithoutOptions<AssignEvents>, DraftStage::kEvents},
    Pass{"PlaceArenas", WithoutOptions<PlaceArenas>, DraftStage::kPlaced},
};

}  // namespace zeroplan
