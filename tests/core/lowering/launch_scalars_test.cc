// What launches carry of the model, in every section and whatever is run again.
#include <doctest/doctest.h>

#include "core/families/load_model.h"
#include "core/lowering/lower.h"

namespace zeroplan {
namespace {

// The scalar is the same for all rows that have one so far.
void CheckEpsilons(const Program& program, Section section, int expected) {
  int norms = 0;
  for (const Instruction& instruction : program.section(section)) {
    const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
    if (launch == nullptr || KernelInfo(launch->kernel).scalars.size() == 0) continue;
    CHECK(launch->kernel == KernelId::kLayerNormForward);
    CHECK(launch->scalars[0] == program.model.layer_norm_eps);
    ++norms;
  }
  CHECK(norms == expected);
}

TEST_CASE("launches: every layer norm has the model's epsilon") {
  ModelSpec model = LoadModel("gpt2");
  model.layers = 3;
  model.layer_norm_eps = 3e-6f;
  TrainSetup setup;
  setup.precision.dtype = setup.precision.grad_accum_dtype = Dtype::kF32;
  setup.batch = {1, 1, 1, 64};
  // Two a layer and the last; the seven again but for the last one.
  for (const RecomputeConfig& recompute : {kNoRecompute, kSelectiveRecompute, FullRecompute()}) {
    setup.recompute = recompute;
    const Program program = Lower(model, setup);
    CheckEpsilons(program, Section::kMicroStep, recompute == kNoRecompute ? 7 : 13);
    CheckEpsilons(program, Section::kEval, 7);
  }
  setup.recompute = kNoRecompute;
  LowerOptions options;
  options.purpose = Purpose::kGenerate;
  options.keep_keys_values = true;
  const Program generate = Lower(model, setup, options);
  CheckEpsilons(generate, Section::kGenerate, 7);
  CheckEpsilons(generate, Section::kDecode, 7);
}

}  // namespace
}  // namespace zeroplan
