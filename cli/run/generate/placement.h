// Where generate runs and in which precision, and whether its memory is there: settled before any
// of it is taken.
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

// Of `cluster`, gpu_memory and the reserves alone count.
struct PlacementOptions {
  Given<BackendChoice> backend;
  Given<Dtype> dtype;
  ClusterFields cluster;
};

struct Placement {
  Backend backend = Backend::kCpu;
  Dtype dtype = Dtype::kF32;
  bool flash_attention = true;        // see LowerOptions
  std::string device;                 // "the CPU", or the GPU's name
  uint64_t runtime_bytes = 0;         // of the GPU, outside the arenas
  uint64_t reserve_bytes = 0;         // of the GPU, to be left free
  std::optional<uint64_t> gpu_bytes;  // that generation may take of the GPU, without the reserve;
                                      // unset: not known, or none is used
  HostRoom host;                      // that it may take of the host
};

// Adds them to `command`. `options` must outlive it.
void AddPlacementOptions(Command& command, PlacementOptions& options);

// The GPU in bf16 where there is one (in fp16 where it has no bf16), else the CPU in fp32. Throws
// Error(kUsage) for a backend that the build or a precision that the GPU does not have, and for
// options of a GPU's memory on the CPU.
Placement ResolvePlacement(const PlacementOptions& options, const ModelSpec& model);

// Options for a TextGenerator there. `context` 0: all the model has positions for.
GeneratorOptions GeneratorAt(const Placement& place, int64_t context, bool keep_keys_values);

// The tokens that a text of `needed` looks back at where nothing else is asked for: so many, as far
// as the model has positions; on a GPU in whole tiles of its products and attention.
int64_t DefaultContext(const Placement& place, const ModelSpec& model, int64_t needed);

// Throws Error(kNothingFits) if `program`, which is LowerGenerator's of `options`, takes more
// memory than there is. The message says which is short by how much, and the smallest change that
// fits, if any does: lowered and added up, not guessed.
void CheckGeneratorFits(const Program& program, const GeneratorOptions& options,
                        const Placement& place);

}  // namespace zeroplan
