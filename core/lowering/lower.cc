#include "core/lowering/lower.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/base/error.h"
#include "core/lowering/passes.h"
#include "core/lowering/walk_cache.h"

namespace zeroplan {
namespace {

Program Run(Program program, const LowerOptions& options, Extent extent, PlacementCache* places) {
  return PassRunner{{options, extent, places}}.Run(std::move(program));
}

}  // namespace

Program PassRunner::Run(Program program) const {
  using Clock = std::chrono::steady_clock;
  for (size_t i = 0; i < kPasses.size(); ++i) {
    const Pass& pass = kPasses[i];
    if (!only.empty() && std::find(only.begin(), only.end(), pass.name) == only.end()) continue;
    const Clock::time_point begin = seconds == nullptr ? Clock::time_point{} : Clock::now();
    program = pass.run(std::move(program), input);
    if (seconds != nullptr) {
      (*seconds)[i] += std::chrono::duration<double>(Clock::now() - begin).count();
    }
    if (verify) {
      const std::vector<Violation> found = CheckDraft(program, pass.leaves, 1);
      ZEROPLAN_CHECK(found.empty(), "pass {} leaves {} in {}:\n{}", pass.name, found[0].rule,
                     SectionName(found[0].section), found[0].message);
    }
    if (pass.name == until) break;
  }
  return program;
}

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
  return Run(EmptyProgram(model, std::move(tensors), setup, options), options, Extent::kWhole,
             cache);
}

Program LowerToWalk(const ModelSpec& model, std::shared_ptr<const std::vector<ParamTensor>> tensors,
                    const TrainSetup& setup, const LowerOptions& options, PlacementCache* cache) {
  return Run(EmptyProgram(model, std::move(tensors), setup, options), options, Extent::kWalk,
             cache);
}

Program LowerToWalk(const ModelSpec& model, std::shared_ptr<const std::vector<ParamTensor>> tensors,
                    const TrainSetup& setup, const LowerOptions& options, WalkCache& cache) {
  if (const EvalMemory* eval = cache.evals.Find(tensors, setup, options)) {
    Program program = Run(EmptyProgram(model, tensors, setup, options), options, Extent::kWalkStep,
                          &cache.places);
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
  constexpr std::array<std::string_view, 4> kOnly = {"BuildCompute", "InsertRecompute",
                                                     "InsertLifetimes", "PlaceArenas"};
  return PassRunner{{options, Extent::kWalkStep}, kOnly}.Run(
      EmptyProgram(model, std::move(tensors), setup, options));
}

Program Lower(const ModelSpec& model, const TrainSetup& setup, const LowerOptions& options) {
  return Lower(model, std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(model)),
               setup, options);
}

}  // namespace zeroplan
