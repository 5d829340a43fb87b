// Every cell of the grid lowers to a program that Verify accepts and that is placed tightly.
#include "core/lowering/lower.h"

#include <doctest/doctest.h>

#include "core/program/verify.h"
#include "tests/core/lowering/matrix.h"

namespace zeroplan {
namespace {

void CheckValid(const std::vector<testing::Cell>& cells, bool flash_attention) {
  const ModelSpec model = testing::TinyModel();
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
  CheckValid(testing::AllCells({1, 2, 3}, {Dtype::kBF16, Dtype::kF32}, {1, 2, 3}), true);
}
TEST_CASE("every supported setup lowers to a valid program without fused attention") {
  CheckValid(testing::AllCells({1, 3}, {Dtype::kF16}, {1, 2, 3}), false);
}

}  // namespace
}  // namespace zeroplan
