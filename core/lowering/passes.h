// The passes that Lower() runs, in this order. Each takes a program and returns it changed; none
// looks at anything but the program (and what PassInput gives it). Each leaves a sound program:
// CheckDraft (core/program/verify.h) accepts it at the stage that kPasses names.
//
// Until InsertLifetimes, instructions use buffers without Alloc or Free (but for explicit early
// decisions), and their list order is the order in which one stream would run them. The streams
// they carry say where they will run; AssignEvents adds what orders the streams.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "core/lowering/lower.h"
#include "core/program/program.h"
#include "core/program/verify.h"

namespace zeroplan {

// How much is lowered: all that an engine runs, or what those read who count and time a step.
// kWalk: sections other than micro_step and optimizer_step get no events, and save and load only
// what their memory follows from. kWalkStep: the same without evaluation.
enum class Extent : uint8_t { kWhole, kWalk, kWalkStep };

// Forward, loss and backward over whole parameters and whole gradients; evaluation or generation.
Program BuildCompute(Program program, const LowerOptions& options, Extent extent = Extent::kWhole);
// Products of the layers' linears take copies of eight bits.
Program InsertFp8(Program program);
// Drops a segment's activations after its forward and computes them again before its backward.
Program InsertRecompute(Program program);
// Drops what leads to no gradient of a tensor that is trained.
Program RemoveDead(Program program);
// Kernels that take rows by themselves run by tiles of rows, where that holds less.
Program TileRows(Program program, const LowerOptions& options, Extent extent = Extent::kWhole);
// Stage 3: parameters become shards, gathered before use (ahead by the prefetch plan), freed after.
Program InsertUnshard(Program program);
// Copies in the compute dtype of what is kept in NF4, in front of each product with it.
Program InsertDequantize(Program program);
// Buffers of optimizer states and of reduced gradients where the config puts them, and their slots.
Program InsertStates(Program program);
// Accumulates and reduces gradients by buckets; at stages 2 and 3 whole gradients become transient.
Program InsertReduction(Program program);
// Sections init and optimizer_step: fresh states, norm, clip, AdamW, gathers.
Program InsertOptimizer(Program program);
// Sections save and load.
Program InsertCheckpoint(Program program, const LowerOptions& options,
                         Extent extent = Extent::kWhole);
// Gradients to the host, parameter shards from host or disk.
Program InsertOffload(Program program);
// Gathers of parameters that products of eight bits alone read send eight bits.
Program GatherFp8(Program program);
// Gathers of parameters and reductions of gradients at stage 3 send blocks of integers.
Program InsertQuantize(Program program);
// What is kept for the backward pass goes to host memory meanwhile, where the config says so.
Program OffloadActivations(Program program);
// Alloc before the first and Free after the last use of each transient buffer.
Program InsertLifetimes(Program program);
// RecordEvent and WaitEvent, no more than needed, so that any order the streams allow is right.
Program AssignEvents(Program program, Extent extent = Extent::kWhole);
// Offsets in the arenas and the arenas' sizes; `cache` may know what it has placed before.
Program PlaceArenas(Program program, PlacementCache* cache = nullptr);

// ---- the table, and what runs it ----

// Beside the program, all that a pass is given.
struct PassInput {
  const LowerOptions& options;
  Extent extent = Extent::kWhole;
  PlacementCache* places = nullptr;
};

struct Pass {
  std::string_view name;
  Program (*run)(Program, const PassInput&);
  DraftStage leaves;  // how far its programs have come
};

template <Program (*kRun)(Program)>
Program OnProgram(Program program, const PassInput&) {
  return kRun(std::move(program));
}
template <Program (*kRun)(Program, const LowerOptions&, Extent)>
Program WithOptions(Program program, const PassInput& in) {
  return kRun(std::move(program), in.options, in.extent);
}

inline constexpr std::array kPasses = {
    Pass{"BuildCompute", WithOptions<BuildCompute>, DraftStage::kMeaning},
    Pass{"InsertFp8", OnProgram<InsertFp8>, DraftStage::kMeaning},
    Pass{"InsertRecompute", OnProgram<InsertRecompute>, DraftStage::kMeaning},
    Pass{"RemoveDead", OnProgram<RemoveDead>, DraftStage::kMeaning},
    Pass{"TileRows", WithOptions<TileRows>, DraftStage::kMeaning},
    Pass{"InsertUnshard", OnProgram<InsertUnshard>, DraftStage::kMeaning},
    Pass{"InsertDequantize", OnProgram<InsertDequantize>, DraftStage::kMeaning},
    Pass{"InsertStates", OnProgram<InsertStates>, DraftStage::kMeaning},
    Pass{"InsertReduction", OnProgram<InsertReduction>, DraftStage::kMeaning},
    Pass{"InsertOptimizer", OnProgram<InsertOptimizer>, DraftStage::kMeaning},
    Pass{"InsertCheckpoint", WithOptions<InsertCheckpoint>, DraftStage::kMeaning},
    Pass{"InsertOffload", OnProgram<InsertOffload>, DraftStage::kReachable},
    Pass{"GatherFp8", OnProgram<GatherFp8>, DraftStage::kReachable},
    Pass{"InsertQuantize", OnProgram<InsertQuantize>, DraftStage::kReachable},
    Pass{"OffloadActivations", OnProgram<OffloadActivations>, DraftStage::kReachable},
    Pass{"InsertLifetimes", OnProgram<InsertLifetimes>, DraftStage::kLifetimes},
    Pass{"AssignEvents",
         [](Program p, const PassInput& in) { return AssignEvents(std::move(p), in.extent); },
         DraftStage::kEvents},
    Pass{"PlaceArenas",
         [](Program p, const PassInput& in) { return PlaceArenas(std::move(p), in.places); },
         DraftStage::kPlaced},
};

// Every pass runs through this, whoever lowers.
struct PassRunner {
  PassInput input;
  std::span<const std::string_view> only = {};  // names of those to run; empty: all
  std::string_view until = {};                  // the last to run; empty: all
  // CheckDraft after each: throws CheckFailure that names the pass which left a violation.
  bool verify = false;
  std::array<double, kPasses.size()>* seconds = nullptr;  // what each took is added to it

  Program Run(Program program) const;
};

}  // namespace zeroplan
