#include "core/lowering/lower.h"

#include "core/lowering/passes.h"

namespace zeroplan {
namespace {

// Before the first pass.
Program StartProgram(const ModelSpec& model,
                     std::shared_ptr<const std::vector<ParamTensor>> tensors,
                     const TrainSetup& setup, const LowerOptions& options) {
  Program program;
  program.model = model;
  program.setup = setup;
  program.backend = options.backend;
  program.layout = BuildParamLayout(std::move(tensors), setup.zero, setup.batch.world_size);
  return program;
}

}  // namespace

Program Lower(const ModelSpec& model, std::shared_ptr<const std::vector<ParamTensor>> tensors,
              const TrainSetup& setup, const LowerOptions& options) {
  Program program = StartProgram(model, std::move(tensors), setup, options);
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

Program LowerMicroStep(const ModelSpec& model,
                       std::shared_ptr<const std::vector<ParamTensor>> tensors, TrainSetup setup,
                       const LowerOptions& options) {
  setup.zero = ZeroConfig{};
  setup.batch.world_size = 1;
  setup.batch.grad_accum = 1;
  setup.precision.grad_accum_dtype = setup.precision.dtype;
  Program program = StartProgram(model, std::move(tensors), setup, options);
  program = BuildCompute(std::move(program), options);
  program.section(Section::kEval).clear();
  return PlaceArenas(InsertLifetimes(InsertRecompute(std::move(program))));
}

Program Lower(const ModelSpec& model, const TrainSetup& setup, const LowerOptions& options) {
  return Lower(model, std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(model)),
               setup, options);
}

}  // namespace zeroplan
