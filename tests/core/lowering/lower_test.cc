// Every cell of the grid lowers to a program that Verify accepts and that is placed tightly.
#include "core/lowering/lower.h"

#include <doctest/doctest.h>

#include <memory>

#include "core/families/qwen2_moe/qwen2_moe.h"
#include "core/lowering/passes.h"
#include "core/program/verify.h"
#include "tests/core/families/tiny_mixture.h"
#include "tests/core/lowering/matrix.h"

namespace zeroplan {
namespace {

void CheckValid(const std::vector<testing::Cell>& cells, bool flash_attention,
                const ModelSpec& model = testing::TinyModel()) {
  for (Backend backend : {Backend::kCpu, Backend::kCuda}) {
    for (const testing::Cell& cell : cells) {
      CAPTURE(cell.name);
      LowerOptions options;
      options.backend = backend;
      options.flash_attention = flash_attention;
      options.logits_chunk_bytes = 400;
      options.checkpoint_chunk_elements = 700;
      const Program program = Lower(model, cell.setup, options);
      const std::vector<Violation> violations = Verify(program, 1);
      if (!violations.empty()) {
        FAIL(violations[0].rule << " in " << SectionName(violations[0].section) << ":\n"
                                << violations[0].message);
      }
    }
  }
}

TEST_CASE("every supported setup lowers to a valid program") {
  CheckValid(testing::AllCells({1, 2, 3}, {Dtype::kBF16}, {1, 2, 3}), true);
  CheckValid(testing::AllCells({1, 3}, {Dtype::kF32}, {1, 3}), true);
}
TEST_CASE("every supported setup lowers to a valid program that reduces in fp32") {
  std::vector<testing::Cell> cells;
  for (testing::Cell& cell : testing::AllCells({2, 3}, {Dtype::kBF16}, {1, 3})) {
    if (cell.setup.recompute != kNoRecompute) continue;
    cell.setup.precision.fp32_reduction = true;
    for (const int variant : {0, 1, 2, 3}) {
      testing::Cell other = cell;
      other.name += " variant " + std::to_string(variant);
      if (variant == 1) other.setup.precision.grad_accum_dtype = Dtype::kF32;
      if (variant == 2) other.setup.zero.overlap_comm = false;
      if (variant == 3) other.setup.zero.reduce_scatter = false;
      cells.push_back(std::move(other));
    }
  }
  CheckValid(cells, true);
}
TEST_CASE("every supported setup lowers to a valid program without fused attention") {
  CheckValid(testing::AllCells({1, 3}, {Dtype::kF16}, {1, 2, 3}), false);
}

// Each pass leaves a sound draft of every one, too.
TEST_CASE("every supported setup of a mixture of experts lowers to a valid program") {
  ModelSpec model = testing::TinyMixture(Qwen2Moe());
  model.router_aux_loss = 0.02f;
  const auto cells = testing::AllCells({1, 2, 3}, {Dtype::kBF16}, {1, 2, 3});
  CheckValid(cells, true, model);
  CheckValid(testing::HybridCells({{4, 2}}, Dtype::kBF16), true, model);
  const auto table = std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(model));
  for (const testing::Cell& cell : cells) {
    CAPTURE(cell.name);
    const LowerOptions options;
    PassRunner runner{{options}};
    runner.verify = true;
    runner.Run(EmptyProgram(model, table, cell.setup, options));
  }
}

}  // namespace
}  // namespace zeroplan
