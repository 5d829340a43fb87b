// Every cell of the grid lowers to a program that Verify accepts and that is placed tightly.
#include "core/lowering/lower.h"

#include <doctest/doctest.h>

#include "core/program/verify.h"
#include "tests/core/lowering/matrix.h"

namespace zeroplan {
namespace {

TEST_CASE("every supported setup lowers to a valid program") {
  const ModelSpec model = testing::TinyModel();
  for (Backend backend : {Backend::kCpu, Backend::kCuda}) {
    for (const testing::Cell& cell :
         testing::AllCells({1, 2, 3}, {Dtype::kBF16, Dtype::kF32}, {1, 2, 3})) {
      CAPTURE(cell.name);
      LowerOptions options;
      options.backend = backend;
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

}  // namespace
}  // namespace zeroplan
