#include "core/lowering/lower.h"

#include <algorithm>

#include "core/lowering/passes.h"

namespace zeroplan {

bool Accumulates(const TrainSetup& setup) { return setup.batch.grad_accum > 1; }

bool GradsInPlace(const TrainSetup& setup) {
  if (setup.zero.stage <= 1) return true;
  return setup.batch.world_size == 1 && setup.zero.offload_optimizer.device == OffloadDevice::kNone;
}

Dtype FullGradDtype(const TrainSetup& setup) {
  return GradsInPlace(setup) ? setup.precision.grad_accum_dtype : setup.precision.dtype;
}

bool ParamsSharded(const TrainSetup& setup) {
  return setup.zero.stage == 3 &&
         (setup.batch.world_size > 1 || setup.zero.offload_param.device != OffloadDevice::kNone);
}

uint64_t ReduceBucketElements(const Program& program) {
  const uint64_t asked = program.setup.zero.reduce_bucket_elements;
  if (asked != kAuto) return asked;
  // Whole layers, at stage 3 their persistent units too: of two buckets at a time, one is then the
  // layer being reduced and one the layer being filled.
  uint64_t largest = 8'000'000;
  for (const auto& [layer, elements] : program.layout.padded_elements_by_layer()) {
    const bool in_layer = layer >= 0 && layer < program.model.layers;
    if (in_layer) largest = std::max(largest, elements);
  }
  return largest;
}

uint64_t GatherBucketElements(const Program& program) {
  const ZeroConfig& zero = program.setup.zero;
  const uint64_t asked = zero.allgather_bucket_elements;
  // Where gathers run beside the next forward pass, its first layers should not wait for the rest.
  const bool chosen = asked != ZeroConfig{}.allgather_bucket_elements;
  return zero.overlap_comm && !chosen ? std::min(asked, ReduceBucketElements(program)) : asked;
}

Program Lower(const ModelSpec& model, std::shared_ptr<const std::vector<ParamTensor>> tensors,
              const TrainSetup& setup, const LowerOptions& options) {
  Program program;
  program.model = model;
  program.setup = setup;
  program.backend = options.backend;
  program.layout = BuildParamLayout(std::move(tensors), setup.zero, setup.batch.world_size);
  program = BuildCompute(std::move(program), options);
  program = InsertRecompute(std::move(program));
  program = InsertUnshard(std::move(program));
  program = InsertReduction(std::move(program));
  program = InsertOptimizer(std::move(program));
  program = InsertCheckpoint(std::move(program), options);
  program = InsertOffload(std::move(program));
  program = InsertLifetimes(std::move(program));
  program = AssignEvents(std::move(program));
  return PlaceArenas(std::move(program));
}

Program Lower(const ModelSpec& model, const TrainSetup& setup, const LowerOptions& options) {
  return Lower(model, std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(model)),
               setup, options);
}

}  // namespace zeroplan
