#include "core/program/communicators.h"

#include <doctest/doctest.h>

#include "core/lowering/lower.h"
#include "tests/core/lowering/matrix.h"

namespace zeroplan {
namespace {

TEST_CASE("a program needs a communicator for each stream that has collectives") {
  for (const testing::Cell& cell : testing::AllCells({1, 3}, {Dtype::kBF16})) {
    CAPTURE(cell.name);
    const Program program = Lower(testing::TinyModel(), cell.setup);
    const bool alone = cell.setup.batch.world_size == 1;
    // Stage 0 keeps everything whole, so nothing is ever gathered.
    CHECK(RunsCollectives(program, Stream::kReduce) == !alone);
    CHECK(RunsCollectives(program, Stream::kGather) == (!alone && cell.setup.zero.stage > 0));
    CHECK(!RunsCollectives(program, Stream::kCompute));
    CHECK(CommunicatorCount(program) == (alone ? 0 : cell.setup.zero.stage == 0 ? 1 : 2));
  }
}

}  // namespace
}  // namespace zeroplan
