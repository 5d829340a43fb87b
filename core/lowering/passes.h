// The passes that Lower() runs, in this order. Each takes a program and returns it changed; none
// reads anything but the program and PassInput. Each leaves a sound program: CheckDraft
// (core/program/verify.h) accepts it at the stage that kPasses names.
//
// Until InsertLifetimes, instructions use buffers without Alloc or Free (except for explicit early
// decisions), and list order is the order in which one stream would run them. Each instruction
// names the stream on which it will run; AssignEvents adds the events that order the streams.
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

// The extent of lowering: all that an engine runs, or what is needed to count and time a step.
// kWalk: sections other than micro_step and optimizer_step get no events; save and load only what
// determines their memory. kWalkStep: the same without evaluation.
enum class Extent : uint8_t { kWhole, kWalk, kWalkStep };

// Forward, loss and backward over whole parameters and whole gradients; evaluation or generation.
Program BuildCompute(Program program, const LowerOptions& options, Extent extent = Extent::kWhole);
// Gives the matmuls of the layers' linears 8-bit copies of their operands.
Program InsertFp8(Program program);
// Drops a segment's activations after its forward and computes them again before its backward.
Program InsertRecompute(Program program);
// Drops instructions that lead to no gradient of a trained tensor.
Program RemoveDead(Program program);
// Runs kernels that are independent by row on tiles of rows, where that needs less memory.
Program TileRows(Program program, const LowerOptions& options, Extent extent = Extent::kWhole);
// Stage 3: parameters become shards, gathered before use (ahead by the prefetch plan), freed after.
Program InsertUnshard(Program program);
// Puts copies in the compute dtype of NF4 parameters in front of each matmul that uses them.
Program InsertDequantize(Program program);
// Adds buffers of optimizer states and of reduced gradients, in the places that the config sets,
// and their slots.
Program InsertStates(Program program);
// Accumulates and reduces gradients by buckets; at stages 2 and 3 whole gradients become transient.
Program InsertReduction(Program program);
// Sections init and optimizer_step: fresh states, norm, clip, AdamW, gathers.
Program InsertOptimizer(Program program);
// Sections save and load.
Program InsertCheckpoint(Program program, const LowerOptions& options,
                         Extent extent = Extent::kWhole);
// Moves gradients to the host, and parameter shards from host or disk.
Program InsertOffload(Program program);
// Gathers 8-bit values for parameters that only 8-bit matmuls read.
Program GatherFp8(Program program);
// Sends blocks of integers in stage 3's gathers of parameters and reductions of gradients.
Program InsertQuantize(Program program);
// Moves activations to host memory until the backward pass, if the config sets so.
Program OffloadActivations(Program program);
// Adds Alloc before the first and Free after the last use of each transient buffer.
Program InsertLifetimes(Program program);
// Adds RecordEvent and WaitEvent, no more than needed, so that any order the streams allow is
// right.
Program AssignEvents(Program program, Extent extent = Extent::kWhole);
// Sets offsets in the arenas and the arenas' sizes; `cache` holds earlier placements.
Program PlaceArenas(Program program, PlacementCache* cache = nullptr);

// ---- the table of passes, and their runner ----

// A pass's input in addition to the program.
struct PassInput {
  const LowerOptions& options;
  Extent extent = Extent::kWhole;
  PlacementCache* places = nullptr;
};

struct Pass {
  std::string_view name;
  Program (*run)(Program, const PassInput&);
  DraftStage leaves;  // the stage of the programs that it returns
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

// Runs the passes, for every caller.
struct PassRunner {
  PassInput input;
  std::span<const std::string_view> only = {};  // names of the passes to run; empty: all
  std::string_view until = {};                  // the last pass to run; empty: the last of all
  // Runs CheckDraft after each pass: throws CheckFailure naming the pass that left a violation.
  bool verify = false;
  std::array<double, kPasses.size()>* seconds = nullptr;  // each pass's time is added to it

  Program Run(Program program) const;
};

}  // namespace zeroplan
