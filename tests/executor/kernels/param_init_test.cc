#include <doctest/doctest.h>

#include <algorithm>

#include "executor/kernels/philox.h"
#include "tests/executor/kernels/unit_fixture.h"

namespace zeroplan::kernel_test {
namespace {

// Known answers from the Random123 library's kat_vectors (philox4x32, 10 rounds).
TEST_CASE("philox: known answers") {
  CHECK(Philox4x32({0, 0, 0, 0}, 0) == PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffffffffffff) ==
        PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822) ==
        PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

// The whole unit, made in pieces of `world_size` shards of `step` elements.
Doubles InitUnit(uint64_t world_size, uint64_t step, int threads, uint64_t seed) {
  Bench bench(threads);
  bench.seed = seed;
  bench.program.layout = TestLayout(world_size);
  const Unit& unit = bench.program.layout.units[0];
  Doubles all;
  for (uint64_t rank = 0; rank < world_size; ++rank) {
    bench.rank = static_cast<int>(rank);
    for (uint64_t begin = 0; begin < unit.shard_elements; begin += step) {
      const auto n = static_cast<int64_t>(std::min(step, unit.shard_elements - begin));
      Tensor master = Tensor(Dtype::kF32, n);
      std::memset(master.arg().data, 0xff, static_cast<size_t>(n) * 4);
      bench.Run(KernelId::kParamInit, {n, 0, static_cast<int64_t>(begin)}, {&master}, kOnRank);
      const Doubles values = master.values();
      all.insert(all.end(), values.begin(), values.end());
    }
  }
  return all;
}

TEST_CASE("fresh weights do not depend on shards, pieces or threads") {
  ZEROPLAN_TEST_RNG(rng);
  const uint64_t seed = rng.Word();
  const Doubles whole = InitUnit(1, 1 << 20, 1, seed);
  const Unit unit = TestLayout(1).units[0];
  for (uint64_t world_size : {2, 3, 8}) {
    for (uint64_t step : {uint64_t{1} << 20, uint64_t{64}, uint64_t{17}}) {
      const Doubles sharded = InitUnit(world_size, step, 2, seed);
      REQUIRE(sharded.size() >= unit.elements);
      CHECK(std::equal(sharded.begin(), sharded.begin() + static_cast<int64_t>(unit.elements),
                       whole.begin()));
      CHECK(std::all_of(sharded.begin() + static_cast<int64_t>(unit.elements), sharded.end(),
                        [](double v) { return v == 0; }));
    }
  }
  CHECK(InitUnit(1, 1 << 20, 1, seed + 1) != whole);

  // Without kOnRank `begin` counts from the unit's start, on any rank.
  Bench bench(2);
  bench.seed = seed;
  bench.rank = 1;
  bench.program.layout = TestLayout(2);
  Tensor part(Dtype::kF32, 100);
  bench.Run(KernelId::kParamInit, {100, 0, 1000}, {&part});
  const Doubles values = part.values();
  CHECK(std::equal(values.begin(), values.end(), whole.begin() + 1000));
}

TEST_CASE("each tensor's kind of values; padding and padded rows are zero") {
  const Doubles whole = InitUnit(1, 1 << 20, 1, 42);
  const ParamLayout layout = TestLayout(1);
  const Unit& unit = layout.units[0];
  for (uint64_t i = 0; i < whole.size(); ++i) {
    const TensorSlot* slot = SlotAt(unit, i);
    const double value = whole[i];
    if (slot == nullptr || slot->tensor == 3) {
      REQUIRE(value == 0);
    } else if (slot->tensor == 1) {
      REQUIRE(value == 1);
    } else if (slot->tensor == 0 && i - slot->offset >= 37 * 33) {
      REQUIRE(value == 0);
    } else {
      REQUIRE(std::isfinite(value));
      REQUIRE(value != 0);
    }
  }
}

TEST_CASE("normal values: mean, variance, tails") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  bench.seed = rng.Word();
  constexpr int64_t kRows = 2000, kCols = 500, kN = kRows * kCols;
  bench.program.layout.tensors = std::make_shared<std::vector<ParamTensor>>(
      std::vector<ParamTensor>{TestTensor(kRows, kCols, true, InitKind::kNormal, kRows)});
  bench.program.layout.units.push_back({.layer = 0, .persistent = false, .slots = {{0, 0, kN}}});
  Tensor master(Dtype::kF32, kN);
  bench.Run(KernelId::kParamInit, {kN, 0, 0}, {&master});
  double sum = 0, squares = 0, fourth = 0, neighbours = 0;
  int64_t far_out = 0;
  for (int64_t i = 0; i < kN; ++i) {
    const double z = master[i] / 0.5;
    sum += z;
    squares += z * z;
    fourth += z * z * z * z;
    if (i > 0) neighbours += z * master[i - 1] / 0.5;
    far_out += std::abs(z) > 3 ? 1 : 0;
  }
  // Five standard errors of each estimate from a million values (of mean 1e-3, of variance 1.4e-3,
  // of the fourth moment sqrt(96)e-3): false alarms once in a million runs.
  CHECK(std::abs(sum / kN) < 5e-3);
  CHECK(std::abs(squares / kN - 1) < 7.1e-3);
  CHECK(std::abs(fourth / kN - 3) < 49e-3);
  CHECK(std::abs(neighbours / kN) < 5e-3);
  CHECK(std::abs(static_cast<double>(far_out) / kN - 0.0027) < 5 * 5.2e-5);
}

}  // namespace
}  // namespace zeroplan::kernel_test
