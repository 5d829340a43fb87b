#include "core/lowering/lower.h"

#include "core/lowering/passes.h"

namespace zeroplan {

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
