#include "cost_models/outside_arenas.h"

#include <doctest/doctest.h>

#include "core/lowering/lower.h"
#include "core/program/communicators.h"
#include "core/program/replay.h"
#include "tests/tiny_model.h"

namespace zeroplan {
namespace {

TEST_CASE("outside the arenas: graphs on GPUs alone, communicators on any backend") {
  for (const int ranks : {1, 2}) {
    TrainSetup setup;
    setup.batch = {1, 2, ranks, 8};
    LowerOptions options;
    CHECK(OutsideArenasOf(Lower(testing::TinyModel(), setup, options)).graph_bytes == 0);
    options.backend = Backend::kCuda;
    const Program program = Lower(testing::TinyModel(), setup, options);
    const OutsideArenas outside = OutsideArenasOf(program);
    CHECK(outside.communicators == static_cast<int>(CommunicatorsOf(program).size()));
    const ReplayCount replayed = CountReplayed(program);
    CHECK(replayed.graphs > 0);
    CHECK(replayed.nodes > replayed.graphs);
    CHECK(outside.graph_bytes == static_cast<uint64_t>(replayed.graphs) * kGraphBytes +
                                     static_cast<uint64_t>(replayed.nodes) * kGraphNodeBytes);
  }
}

}  // namespace
}  // namespace zeroplan
