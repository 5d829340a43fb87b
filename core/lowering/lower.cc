#include "core/lowering/lower.h"

#include "core/lowering/passes.h"

namespace zeroplan {

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
              const TrainSetup& setup, const LowerOptions& options) {
  Program program = EmptyProgram(model, std::move(tensors), setup, options);
  for (const Pass& pass : kPasses) program = pass.run(std::move(program), options);
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
