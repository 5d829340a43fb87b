#include "core/lowering/lower.h"

#include "core/lowering/passes.h"

namespace zeroplan {
namespace {

// kPasses, with `assign_events` for AssignEvents.
Program RunPasses(Program program, const LowerOptions& options, Program (*assign_events)(Program),
                  PlacementCache* cache) {
  for (const Pass& pass : kPasses) {
    if (pass.leaves == DraftStage::kEvents) {
      program = assign_events(std::move(program));
    } else if (pass.leaves == DraftStage::kPlaced && cache != nullptr) {
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
  return RunPasses(EmptyProgram(model, std::move(tensors), setup, options), options, AssignEvents,
                   cache);
}

Program LowerToWalk(const ModelSpec& model, std::shared_ptr<const std::vector<ParamTensor>> tensors,
                    const TrainSetup& setup, const LowerOptions& options, PlacementCache* cache) {
  return RunPasses(EmptyProgram(model, std::move(tensors), setup, options), options,
                   AssignStepEvents, cache);
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
