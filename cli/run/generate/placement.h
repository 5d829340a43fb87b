// The device and precision of generate, and the check of its memory, before any is allocated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/run/train/host_fit.h"
#include "cli/run/train/shared_options.h"
#include "core/model/model_spec.h"
#include "core/program/program.h"
#include "executor/train/text_generator.h"
#include "planner/request/fields.h"

namespace zeroplan {

// Only gpu_memory and the reserves of `cluster` are used.
struct PlacementOptions {
  Given<BackendChoice> backend;
  Given<Dtype> dtype;
  ClusterFields cluster;
};

struct Placement {
  Backend backend = Backend::kCpu;
  Dtype dtype = Dtype::kF32;
  bool flash_attention = true;  // see LowerOptions
  std::string device;           // "the CPU", or the GPU's name
  uint64_t runtime_bytes = 0;   // GPU bytes outside the arenas
  uint64_t reserve_bytes = 0;   // GPU bytes to leave free
  // GPU bytes for generation, without the reserve; unset: unknown, or no GPU is used
  std::optional<uint64_t> gpu_bytes;
  HostRoom host;  // host memory for generation
};

// Adds the options to `command`. `options` must outlive it.
void AddPlacementOptions(Command& command, PlacementOptions& options);

// The GPU in bf16 if there is one (in fp16 if it lacks bf16), else the CPU in fp32. Throws
// Error(kUsage) for a backend that the build lacks or a precision that the GPU lacks, and for
// options of a GPU's memory on the CPU.
Placement ResolvePlacement(const PlacementOptions& options, const ModelSpec& model);

// Options for a TextGenerator there. `context` 0: all positions of the model.
GeneratorOptions GeneratorAt(const Placement& place, int64_t context, bool keep_keys_values);

// The default number of tokens that attention sees for a text of `needed` tokens: `needed`, as far
// as the model has positions; on a GPU in whole tiles of its matmuls and attention.
int64_t DefaultContext(const Placement& place, const ModelSpec& model, int64_t needed);

// Throws Error(kNothingFits) if `program`, which is LowerGenerator's for `options`, needs more
// memory than there is. The message names the memory that is short, by how much, and the smallest
// change that fits, if any does: lowered and added up, not guessed.
void CheckGeneratorFits(const Program& program, const GeneratorOptions& options,
                        const Placement& place);

}  // namespace zeroplan
