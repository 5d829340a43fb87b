#include "executor/engine/resolve.h"

#include <doctest/doctest.h>

#include "tests/executor/engine/tiny_program.h"

namespace zeroplan {
namespace {

TEST_CASE("resolve: addresses, sizes and what is touched, by rank") {
  TinyProgram tiny(4);
  const BufferId x = tiny.Floats(16), y = tiny.Floats(4, Space::kPageable);
  tiny.In(Section::kEval).CopyTo({x, 8, 4, 12}, {y, 0, 4, 4});
  tiny.Launch(KernelId::kConvert, {tiny.All(x), Ref{}}, {0});
  const RankArenas arenas(tiny.program(), 2, "", false);
  const ResolvedProgram resolved(tiny.program(), arenas.bases(), CpuKernels(), 2);
  const auto section = resolved.section(Section::kEval);
  REQUIRE(section.size() == 2);
  const uint64_t at = tiny.program().buffers[x].offset + 8 + 24;
  CHECK(section[0].src == arenas.data(Space::kDevice) + at);
  CHECK(section[0].dst == arenas.data(Space::kPageable) + 8);
  CHECK(section[0].touched_end == std::array<uint64_t, kSpaces>{at + 4, 0, 12, 0});
  const auto args = resolved.args(section[1]);
  REQUIRE(args.size() == 2);
  CHECK(args[0].bytes == 64);
  CHECK(args[0].dtype == Dtype::kF32);
  CHECK(args[1].data == nullptr);
}

TEST_CASE("resolve: reduce-to-owners touches the overlap with the rank's shard") {
  TinyProgram tiny(3);
  Unit unit{};
  unit.shard_elements = 64;
  unit.padded_elements = 192;
  tiny.program().layout.units = {unit};
  const BufferId bucket = tiny.Floats(60), shard = tiny.Floats(64);
  tiny.Communicate(CollectiveKind::kReduceToOwners, {tiny.All(bucket), tiny.All(shard), 0, 30, 90});
  const uint64_t bucket_end = tiny.program().buffers[bucket].offset + 240;
  const uint64_t shard_begin = tiny.program().buffers[shard].offset;
  for (int rank = 0; rank < 3; ++rank) {
    const RankArenas arenas(tiny.program(), rank, "", false);
    const ResolvedProgram resolved(tiny.program(), arenas.bases(), CpuKernels(), rank);
    const ResolvedInstruction& it = resolved.section(Section::kMicroStep)[0];
    // Shard 0 gets [30, 64), shard 1 [64, 90), shard 2 nothing.
    const std::array<uint64_t, 3> ends = {shard_begin + 256, shard_begin + 104, bucket_end};
    CHECK(it.touched_end[0] == ends[static_cast<size_t>(rank)]);
    CHECK(it.bytes == 160);
  }
}

}  // namespace
}  // namespace zeroplan
