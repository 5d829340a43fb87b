#include "core/lowering/lower.h"

#include <span>
#include <utility>

#include "core/lowering/passes.h"
#include "core/lowering/walk_cache.h"

namespace zeroplan {
namespace {

// kPasses, in which those that do less take the place of two.
constexpr auto kPassesToWalk = [] {
  auto passes = kPasses;
  for (Pass& pass : passes) {
    if (pass.run == InsertCheckpoint) pass.run = InsertCheckpointMemory;
    if (pass.leaves == DraftStage::kEvents) pass.run = WithoutOptions<AssignStepEvents>;
  }
  return passes;
}();

// The same for choices whose evaluation is known.
constexpr auto kPassesWithoutEval = [] {
  auto passes = kPassesToWalk;
  for (Pass& pass : passes) {
    if (pass.run == BuildCompute) pass.run = BuildStepCompute;
  }
  return passes;
}();

Program RunPasses(std::span<const Pass> passes, Program program, const LowerOptions& options,
                  PlacementCache* cache) {
  for (const Pass& pass : passes) {
    if (pass.leaves == DraftStage::kPlaced && cache != nullptr) {
      program = PlaceArenas(std::move(program), *cache);
    } else {
      program = pass.run(std::move(program), options);
    }
  }
  return program;
}

}  // namespace

Program EmptyProgram(const ModelSpec& model,
                     std::shared_ptr<const std::vector<ParamTensor>> tensors,
                     const TrainSetup& setup, const LowerOptions& options) {
  Program program;
  program.model = model;
  program.setup = setup;
  program.backend = options.backend;
  program.layout = BuildParamLayout(std::move(tensors), setup.zero, setup.batch.world_size);
  return program;
}

Program Lower(const ModelSpec& model, std::shared_ptr<const std::vector<ParamTensor>> tensors,
              const TrainSetup& setup, const LowerOptions& options, PlacementCache* cache) {
  return RunPasses(kPasses, EmptyProgram(model, std::move(tensors), setup, options), options,
                   cache);
}

Program LowerToWalk(const ModelSpec& model, std::shared_ptr<const std::vector<ParamTensor>> tensors,
                    const TrainSetup& setup, const LowerOptions& options, PlacementCache* cache) {
  return RunPasses(kPassesToWalk, EmptyProgram(model, std::move(tensors), setup, options), options,
                   cache);
}

Program LowerToWalk(const ModelSpec& model, std::shared_ptr<const std::vector<ParamTensor>> tensors,
                    const TrainSetup& setup, const LowerOptions& options, WalkCache& cache) {
  if (const EvalMemory* eval = cache.evals.Find(tensors, setup, options)) {
    Program program = RunPasses(kPassesWithoutEval, EmptyProgram(model, tensors, setup, options),
                                options, &cache.places);
    if (CoversEval(program, *eval)) return program;
  }
  Program program = LowerToWalk(model, std::move(tensors), setup, options, &cache.places);
  cache.evals.Keep(program, options);
  return program;
}

Program LowerMicroStep(const ModelSpec& model,
                       std::shared_ptr<const std::vector<ParamTensor>> tensors, TrainSetup setup,
                       const LowerOptions& options) {
  setup.zero = ZeroConfig{};
  setup.batch.world_size = 1;
  setup.batch.grad_accum = 1;
  setup.precision.grad_accum_dtype = setup.precision.dtype;
  Program program = EmptyProgram(model, std::move(tensors), setup, options);
  program = BuildCompute(std::move(program), options);
  program.section(Section::kEval).clear();
  return PlaceArenas(InsertLifetimes(InsertRecompute(std::move(program))));
}

Program Lower(const ModelSpec& model, const TrainSetup& setup, const LowerOptions& options) {
  return Lower(model, std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(model)),
               setup, options);
}

}  // namespace zeroplan
