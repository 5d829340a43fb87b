// Programs whose layers' products take eight bits, for tests of them: that they are sound, and what
// they launch.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/lowering/passes.h"
#include "tests/core/lowering/matrix.h"
#include "tests/fp8_models.h"

namespace zeroplan::testing {

inline constexpr Fp8Recipe kBothRecipes[] = {Fp8Recipe::kTensor, Fp8Recipe::kBlocks};
inline constexpr size_t kQuantizedFrom = 0, kTransposedCopy = 2, kPlainCopy = 4;

inline std::vector<ModelSpec> BothModels(Fp8Recipe recipe) {
  return {Fp8Gpt2(recipe), Fp8Llama(recipe)};
}

inline TrainSetup Fp8Setup(Fp8Recipe recipe, RecomputeConfig recompute, int64_t accumulation = 1) {
  return WithFp8(BaseSetup(0, 1, Dtype::kBF16, accumulation, recompute), recipe);
}

inline void CheckSound(const ModelSpec& model, const std::vector<Cell>& cells,
                       const LowerOptions& options) {
  const auto tensors = std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(model));
  for (const Cell& cell : cells) {
    CAPTURE(cell.name);
    const PassRunner verified{.input = {options}, .verify = true};
    Program program;
    REQUIRE_NOTHROW(program = verified.Run(EmptyProgram(model, tensors, cell.setup, options)));
    CHECK_NOTHROW(VerifyOrThrow(program));
  }
}

inline std::vector<Cell> In8(std::vector<Cell> cells, Fp8Recipe recipe, Dtype gradients) {
  for (Cell& cell : cells) {
    cell.setup = WithFp8(cell.setup, recipe, gradients);
    cell.name += " " + std::string(Fp8RecipeName(recipe));
  }
  return cells;
}

// A launch in a program.
struct Seen {
  const Instruction& instruction;
  const LaunchKernel& launch;
  const Program& program;

  Ref Arg(size_t index) const {
    return index < launch.arg_count ? program.args(launch)[index] : Ref{};
  }
  const Buffer& Of(size_t index) const { return program.buffers[Arg(index).buffer]; }
  std::string label(size_t index) const { return Of(index).label; }
};

inline std::vector<Seen> Launches(const Program& program, Section section, KernelId kernel) {
  std::vector<Seen> seen;
  for (const Instruction& instruction : program.section(section)) {
    const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
    if (launch != nullptr && launch->kernel == kernel) {
      seen.push_back({instruction, *launch, program});
    }
  }
  return seen;
}
inline std::vector<Seen> Launches(const Program& program, KernelId kernel) {
  return Launches(program, Section::kMicroStep, kernel);
}

template <typename Fn>
int CountIf(const std::vector<Seen>& seen, const Fn& fn) {
  return static_cast<int>(std::count_if(seen.begin(), seen.end(), fn));
}
inline bool Forward(const Seen& s) { return s.instruction.phase == Phase::kForward; }
inline bool OfWeight(const Seen& s) { return s.Of(kQuantizedFrom).role == Role::kParamFull; }

}  // namespace zeroplan::testing
