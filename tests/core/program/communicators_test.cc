#include "core/program/communicators.h"

#include <doctest/doctest.h>

#include <vector>

#include "core/lowering/lower.h"
#include "tests/core/lowering/matrix.h"

namespace zeroplan {
namespace {

TEST_CASE("a program needs a communicator for each axis and stream that has collectives") {
  for (const testing::Cell& cell : testing::AllCells({1, 3}, {Dtype::kBF16})) {
    CAPTURE(cell.name);
    const Program program = Lower(testing::TinyModel(), cell.setup);
    const bool alone = cell.setup.batch.world_size == 1;
    std::vector<CommunicatorKey> wanted;
    // Stage 0 keeps everything whole, so nothing is ever gathered.
    if (!alone && cell.setup.zero.stage > 0) wanted.push_back({RankAxis::kAll, Stream::kGather});
    if (!alone) wanted.push_back({RankAxis::kAll, Stream::kReduce});
    CHECK(CommunicatorsOf(program) == wanted);
  }
}

}  // namespace
}  // namespace zeroplan
