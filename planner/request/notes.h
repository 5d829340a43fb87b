// What estimate and plan say beside their answer.
#pragma once

#include <span>
#include <string>

#include "core/config/zero_config.h"
#include "core/lowering/lower.h"
#include "core/model/model_spec.h"
#include "hwprofiles/profile.h"
#include "planner/request/resolve.h"

namespace zeroplan {

// One paragraph where attention is not one call of cuDNN's fused kernel: what runs instead, why,
// and what to change; else "". `lower`: what `setup` is lowered with, for CUDA. `ordered_program`:
// whether it was lowered as deterministic, which a plan that `train
// --deterministic` runs may not have been.
std::string AttentionNote(const ModelSpec& model, const TrainSetup& setup,
                          const LowerOptions& lower, const GpuProfile& gpu, bool ordered_program);
inline std::string AttentionNote(const ModelSpec& model, const TrainSetup& setup,
                                 const LowerOptions& lower, const GpuProfile& gpu) {
  return AttentionNote(model, setup, lower, gpu, setup.deterministic);
}

// Why attention within packed documents would run on plain kernels on this GPU: "cuDNN takes packed
// documents from compute capability 9.0 on, the GPU has 8.9". "" where it would not, or where whole
// rows run on slow kernels too (fp32).
std::string PlainWithinDocuments(const ModelSpec& model, const TrainSetup& setup,
                                 const GpuProfile& gpu);

// Adds a note where attention is not cuDNN's fused kernel in one call.
void NoteAttention(const ModelSpec& model, const TrainSetup& setup, const LowerOptions& lower,
                   const HardwareProfile& hardware, bool ordered_program, Assumptions& assumptions);
// Adds a note of the guessed figures that these setups' times rest on (hwprofiles/guesses.h).
void NoteGuesses(const HardwareProfile& hardware, const Cluster& cluster,
                 std::span<const TrainSetup> setups, Assumptions& assumptions);
// Applies the packing: with documents the program has their borders, and a note says where that
// runs.
void ApplyPacking(const Request& request, LowerOptions& lower, Assumptions& assumptions);
// Adds a note where sums in fp32 that a setup asks for change nothing.
void NoteIdleSums(std::span<const TrainSetup> setups, Assumptions& assumptions);

// Drops what a config's reader said of zeroplan's own executor, which says nothing of another
// program.
void DropOwnNotes(const Request& request, Assumptions& assumptions);

}  // namespace zeroplan
