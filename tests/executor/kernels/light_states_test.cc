// AdamW over every kind of master weights and moments, against double arithmetic, against fp32
// states, and of every instruction set.
#include <algorithm>
#include <bit>
#include <cmath>

#include "core/base/split_master.h"
#include "executor/kernels/cpu_levels.h"
#include "executor/kernels/stochastic_rounding.h"
#include "tests/executor/kernels/unit_fixture.h"

namespace zeroplan::kernel_test {
namespace {

constexpr int64_t kStateBlock = kDynamic8Group * kDynamic8Groups;

// How master weights and moments are kept.
struct StateKind {
  Dtype master, moments;
  Dtype Second() const { return moments == Dtype::kDynamic8 ? Dtype::kUnsignedDynamic8 : moments; }
  bool split() const { return master == Dtype::kI16; }
  bool by_chance() const { return master == Dtype::kBF16 || master == Dtype::kF16; }
  std::string name() const {
    return std::string(DtypeName(master)) + " masters, " + std::string(DtypeName(moments)) +
           " moments";
  }
};
std::vector<StateKind> AllStateKinds() {
  std::vector<StateKind> kinds;
  for (Dtype master : {Dtype::kF32, Dtype::kI16, Dtype::kBF16, Dtype::kF16}) {
    for (Dtype moments : {Dtype::kF32, Dtype::kBF16, Dtype::kDynamic8}) {
      kinds.push_back({master, moments});
    }
  }
  return kinds;
}

// One tensor after another, each from a multiple of a group on, padded to whole blocks of each of
// `shards` ranks.
ParamLayout BlockLayout(uint64_t shards) {
  ParamLayout layout;
  layout.tensors = std::make_shared<std::vector<ParamTensor>>(std::vector<ParamTensor>{
      TestTensor(211, 97, true, InitKind::kNormal, 211),
      TestTensor(613, 1, false, InitKind::kOnes, 613),
      TestTensor(130, 301, true, InitKind::kNormal, 130),
  });
  layout.shards = shards;
  Unit unit{.layer = 0, .persistent = false, .slots = {}};
  for (size_t i = 0; i < layout.tensors->size(); ++i) {
    const uint64_t n = (*layout.tensors)[i].elements();
    const uint64_t offset = (unit.elements + kDynamic8Group - 1) / kDynamic8Group * kDynamic8Group;
    unit.slots.push_back({static_cast<int>(i), offset, n});
    unit.elements = offset + n;
  }
  const uint64_t piece = shards * kStateBlock;
  unit.padded_elements = (unit.elements + piece - 1) / piece * piece;
  unit.shard_elements = unit.padded_elements / shards;
  layout.units.push_back(unit);
  return layout;
}

void SetUpBench(Bench& bench, uint64_t shards) {
  bench.program.layout = BlockLayout(shards);
  OptimizerConfig& config = bench.program.setup.optimizer;
  config.betas = {0.9, 0.99};
  config.eps = 1e-6;
  config.weight_decay = 0.1;
}

StepState AdamStateAt(int64_t step) {
  StepState state;
  state.step = step;
  state.lr = 0.01f;
  state.grad_factor = 0.25f;
  state.bias_correction1 = static_cast<float>(1 - std::pow(0.9, static_cast<double>(step)));
  state.bias_correction2 = static_cast<float>(1 - std::pow(0.99, static_cast<double>(step)));
  return state;
}

// The arrays of a launch over n elements, a multiple of a block.
struct States {
  StateKind kind;
  Tensor grad, master, m, v, param;

  // Of fp32 numbers, as a checkpoint's are read.
  States(Bench& bench, StateKind k, Tensor grads, Tensor p, Tensor first, Tensor second)
      : kind(k), grad(std::move(grads)) {
    const int64_t n = p.size();
    const bool in_blocks = k.moments == Dtype::kDynamic8;
    m = Tensor(k.moments, in_blocks ? n / kStateBlock : n);
    v = Tensor(k.Second(), m.size());
    bench.Run(KernelId::kConvert, {n}, {&first, &m});
    bench.Run(KernelId::kConvert, {n}, {&second, &v});
    master = Tensor(k.master, n);
    if (k.split()) {
      param = Tensor(Dtype::kBF16, n);
      bench.Run(KernelId::kSplitMaster, {n}, {&p, &param, &master});
      return;
    }
    bench.Run(KernelId::kConvert, {n}, {&p, &master});
    param = Tensor(k.master == Dtype::kF16 ? Dtype::kF16 : Dtype::kBF16, n);
  }

  void Step(Bench& bench, StepState state, int64_t begin = 0, int flags = 0) {
    Tensor state_tensor = Tensor::State(state);
    bench.Run(KernelId::kAdamW, {grad.size(), 0, begin},
              {&grad, &state_tensor, &master, &m, &v, &param},
              flags | (kind.split() ? kAccumulate : 0));
  }
  Doubles Masters(Bench& bench) {
    if (!kind.split()) return master.values();
    Tensor whole(Dtype::kF32, master.size());
    bench.Run(KernelId::kJoinMaster, {whole.size()}, {&param, &master, &whole});
    return whole.values();
  }
  Doubles Moment(Bench& bench, Tensor& moment) const {
    Tensor whole(Dtype::kF32, grad.size());
    bench.Run(KernelId::kConvert, {whole.size()}, {&moment, &whole});
    return whole.values();
  }
  bool operator==(const States& other) const {
    return master == other.master && m == other.m && v == other.v && param == other.param;
  }
};

States RandomStates(Bench& bench, StateKind kind, Rng& rng, Dtype grad, int64_t n) {
  Tensor second = Tensor::Random(rng, Dtype::kF32, n);
  for (int64_t i = 0; i < n; ++i) second.Set(i, second[i] * second[i] + 0.01);
  return {bench,
          kind,
          Tensor::Random(rng, grad, n),
          Tensor::Random(rng, Dtype::kF32, n),
          Tensor::Random(rng, Dtype::kF32, n),
          second};
}

// Whether `got` may be what `want` became in 16 bits by chance: one of the two beside it. `slack`
// is what arithmetic before lost.
bool IsBeside(double got, double want, Dtype dtype, double slack) {
  const double spacing =
      std::max(2 * RoundOff(dtype) * std::abs(want), dtype == Dtype::kF16 ? 0x1p-24 : 0.0);
  return std::abs(got - want) <= spacing + slack;
}

TEST_CASE("adamw: every kind of states, against double arithmetic, on either rank") {
  ZEROPLAN_TEST_RNG(rng);
  for (const StateKind kind : AllStateKinds()) {
    for (const Dtype grad : FloatDtypes()) {
      for (const int rank : {0, 1}) {
        CAPTURE(kind.name());
        CAPTURE(DtypeName(grad));
        Bench bench(2);
        SetUpBench(bench, 2);
        bench.rank = rank;
        bench.seed = rng.Word();
        const Unit& unit = bench.program.layout.units[0];
        const auto n = static_cast<int64_t>(unit.shard_elements);
        States a = RandomStates(bench, kind, rng, grad, n);
        const Doubles p = a.Masters(bench), m = a.Moment(bench, a.m), v = a.Moment(bench, a.v);
        const StepState state = AdamStateAt(7);
        a.Step(bench, state, 0, kOnRank);
        const Doubles new_p = a.Masters(bench), new_m = a.Moment(bench, a.m);
        const Doubles new_v = a.Moment(bench, a.v);
        Doubles want_m, want_v;
        for (int64_t i = 0; i < n; ++i) {
          const auto at = static_cast<size_t>(i);
          const TensorSlot* slot =
              SlotAt(unit, static_cast<uint64_t>(rank) * unit.shard_elements + at);
          const double g = a.grad[i] * 0.25;
          want_m.push_back(slot == nullptr ? m[at] : 0.9 * m[at] + 0.1 * g);
          want_v.push_back(slot == nullptr ? v[at] : 0.99 * v[at] + 0.01 * g * g);
        }
        constexpr double kSlack = 12 * 0x1p-24;
        for (int64_t i = 0; i < n; ++i) {
          CAPTURE(i);
          const auto at = static_cast<size_t>(i);
          const TensorSlot* slot =
              SlotAt(unit, static_cast<uint64_t>(rank) * unit.shard_elements + at);
          if (slot == nullptr) {
            REQUIRE(new_p[at] == p[at]);
            // A group that is all padding stays; what pads a tensor's last group is 0.
            if (kind.moments != Dtype::kDynamic8) {
              REQUIRE(new_m[at] == m[at]);
              REQUIRE(new_v[at] == v[at]);
            }
            continue;
          }
          // The parameter is made of the moments before they are rounded.
          const double step =
              want_m[at] / static_cast<double>(state.bias_correction1) /
              (std::sqrt(want_v[at] / static_cast<double>(state.bias_correction2)) + 1e-6);
          const double decay = slot->tensor == 1 ? 0 : 0.1;
          const double want_p = p[at] - 0.01 * (step + decay * p[at]);
          const double slack = kSlack * (1 + std::abs(want_p));
          if (kind.by_chance()) {
            REQUIRE(IsBeside(new_p[at], want_p, kind.master, slack));
            REQUIRE(a.param[i] == new_p[at]);
          } else {
            REQUIRE(Close(new_p[at], want_p, Dtype::kF32, slack));
            REQUIRE(a.param[i] == static_cast<double>(std::bit_cast<float>(
                                      uint32_t{Split(static_cast<float>(new_p[at])).param} << 16)));
          }
          if (kind.moments == Dtype::kF32) {
            REQUIRE(Close(new_m[at], want_m[at], Dtype::kF32, kSlack));
            REQUIRE(Close(new_v[at], want_v[at], Dtype::kF32, kSlack * (1 + want_v[at])));
          } else if (kind.moments == Dtype::kBF16) {
            REQUIRE(Close(new_m[at], want_m[at], Dtype::kBF16, kSlack));
            REQUIRE(IsBeside(new_v[at], want_v[at], Dtype::kBF16, kSlack));
          }
        }
        if (kind.moments != Dtype::kDynamic8) continue;
        // Codes: those of the new moments, with zeros where a tensor's last group is padded.
        for (int64_t g = 0; g < n; g += kDynamic8Group) {
          const auto position =
              static_cast<uint64_t>(rank) * unit.shard_elements + static_cast<uint64_t>(g);
          if (SlotAt(unit, position) == nullptr) continue;
          double most_m = 0, most_v = 0;
          for (int64_t i = g; i < g + kDynamic8Group; ++i) {
            if (SlotAt(unit, position + static_cast<uint64_t>(i - g)) == nullptr) continue;
            most_m = std::max(most_m, std::abs(want_m[static_cast<size_t>(i)]));
            most_v = std::max(most_v, want_v[static_cast<size_t>(i)]);
          }
          for (int64_t i = g; i < g + kDynamic8Group; ++i) {
            const auto at = static_cast<size_t>(i);
            if (SlotAt(unit, position + static_cast<uint64_t>(i - g)) == nullptr) {
              REQUIRE(new_m[at] == 0);
              REQUIRE(new_v[at] == 0);
              continue;
            }
            // Half the largest step there is: 0.9 / 64 with a sign, 0.9 / 128 without; and of -1.
            REQUIRE(std::abs(new_m[at] - want_m[at]) <= 0.0071 * most_m + kSlack);
            REQUIRE(std::abs(new_v[at] - want_v[at]) <= 0.0036 * most_v + kSlack * most_v);
          }
        }
      }
    }
  }
}

// Both kinds of moments, since these do not hang on how master weights are kept.
TEST_CASE("adamw: two halves are whole fp32 master weights, bit for bit, over many steps") {
  ZEROPLAN_TEST_RNG(rng);
  for (const Dtype moments : {Dtype::kF32, Dtype::kBF16, Dtype::kDynamic8}) {
    Bench bench(2);
    SetUpBench(bench, 1);
    bench.seed = rng.Word();
    const auto n = static_cast<int64_t>(bench.program.layout.units[0].padded_elements);
    Tensor zeros(Dtype::kF32, n), p(Dtype::kF32, n);
    // Ties between two bf16 numbers among them.
    for (int64_t i = 0; i < n; ++i) {
      const auto bits = std::bit_cast<uint32_t>(static_cast<float>(rng.Normal()));
      p.Set(i, static_cast<double>(
                   std::bit_cast<float>(i % 8 == 0 ? (bits & 0xffff0000u) | 0x8000u : bits)));
    }
    const Tensor grad(Dtype::kBF16, n);
    States whole(bench, {Dtype::kF32, moments}, grad, p, zeros, zeros);
    States halves(bench, {Dtype::kI16, moments}, grad, p, zeros, zeros);
    for (int step = 1; step <= 60; ++step) {
      for (int64_t i = 0; i < n; ++i) whole.grad.Set(i, rng.Normal());
      halves.grad = whole.grad;
      whole.Step(bench, AdamStateAt(step));
      halves.Step(bench, AdamStateAt(step));
    }
    CHECK(halves.Masters(bench) == whole.Masters(bench));
    CHECK(halves.m == whole.m);
    CHECK(halves.v == whole.v);
    const Unit& unit = bench.program.layout.units[0];
    for (int64_t i = 0; i < n; ++i) {
      if (SlotAt(unit, static_cast<uint64_t>(i)) != nullptr) {
        REQUIRE(halves.param[i] == whole.param[i]);
      }
    }
  }
}

// Elements [begin, begin + size) of `whole`.
States PieceOf(const States& whole, int64_t begin, int64_t size) {
  States piece = whole;
  const auto cut = [&](Tensor& to, const Tensor& from) {
    const bool in_blocks = IsDynamic8(from.dtype());
    const int64_t first = in_blocks ? begin / kStateBlock : begin;
    to = Tensor(from.dtype(), in_blocks ? size / kStateBlock : size);
    Tensor copy = from;
    std::memcpy(to.arg().data,
                copy.arg().as<char>() + static_cast<uint64_t>(first) * DtypeBytes(from.dtype()),
                to.arg().bytes);
  };
  cut(piece.grad, whole.grad);
  cut(piece.master, whole.master);
  cut(piece.m, whole.m);
  cut(piece.v, whole.v);
  cut(piece.param, whole.param);
  return piece;
}

TEST_CASE("adamw: states have the same bits whatever the pieces, threads and ranks") {
  ZEROPLAN_TEST_RNG(rng);
  for (const StateKind kind : AllStateKinds()) {
    CAPTURE(kind.name());
    Bench one(1), three(3);
    SetUpBench(one, 1);
    one.seed = three.seed = rng.Word();
    const auto n = static_cast<int64_t>(one.program.layout.units[0].padded_elements);
    const States before = RandomStates(one, kind, rng, Dtype::kBF16, n);
    States after = before;
    after.Step(one, AdamStateAt(3));
    // In pieces, of odd sizes where no block is in the way.
    three.program = one.program;
    const int64_t grain = kind.moments == Dtype::kDynamic8 ? kStateBlock : 1;
    for (int64_t begin = 0, size = grain; begin < n; begin += size, size = size * 2 + grain) {
      size = std::min(size, n - begin);
      States piece = PieceOf(before, begin, size);
      piece.Step(three, AdamStateAt(3), begin);
      CAPTURE(begin);
      CHECK(piece == PieceOf(after, begin, size));
    }
    // On ranks: units of more shards are padded further.
    for (const uint64_t shards : {2, 3}) {
      SetUpBench(three, shards);
      const auto shard = static_cast<int64_t>(three.program.layout.units[0].shard_elements);
      for (int rank = 0; rank < static_cast<int>(shards); ++rank) {
        const int64_t begin = rank * shard, size = std::min(shard, n - begin);
        if (size <= 0) continue;
        States piece = PieceOf(before, begin, size);
        three.rank = rank;
        piece.Step(three, AdamStateAt(3), 0, kOnRank);
        CAPTURE(shards);
        CHECK(piece == PieceOf(after, begin, size));
      }
      three.rank = 0;
    }
    // Another step, seed or tensor rounds otherwise.
    if (!kind.by_chance() && kind.moments != Dtype::kBF16) continue;
    States other = before;
    one.seed += 1;
    other.Step(one, AdamStateAt(3));
    CHECK_FALSE(other == after);
  }
}

TEST_CASE("adamw: a skipped step changes no states of any kind, and writes the parameter") {
  ZEROPLAN_TEST_RNG(rng);
  for (const StateKind kind : AllStateKinds()) {
    CAPTURE(kind.name());
    Bench bench(2);
    SetUpBench(bench, 1);
    const auto n = static_cast<int64_t>(bench.program.layout.units[0].padded_elements);
    States a = RandomStates(bench, kind, rng, Dtype::kBF16, n);
    for (int64_t i = 0; i < n; ++i) a.grad.Set(i, NAN);
    const States before = a;
    StepState state = AdamStateAt(3);
    state.skip = kGradientsNotFinite;
    a.Step(bench, state);
    CHECK(a.master == before.master);
    CHECK(a.m == before.m);
    CHECK(a.v == before.v);
    if (kind.split()) CHECK(a.param == before.param);
    const Doubles masters = a.Masters(bench);
    for (int64_t i = 0; i < n; ++i) {
      const auto x = static_cast<float>(masters[static_cast<size_t>(i)]);
      const double want =
          kind.by_chance()
              ? static_cast<double>(x)
              : static_cast<double>(std::bit_cast<float>(uint32_t{Split(x).param} << 16));
      REQUIRE(a.param[i] == want);
    }
  }
}

// Steps that differ by their number alone, from the same states: the mean of what they round is the
// number itself. Of k steps the mean of a fair choice of two neighbours is within 6 standard
// deviations, each at most half their distance / sqrt(k); over a tensor's elements together as
// well.
TEST_CASE("adamw: what is rounded by chance has the number as its mean") {
  ZEROPLAN_TEST_RNG(rng);
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    CAPTURE(DtypeName(dtype));
    Bench bench(2);
    SetUpBench(bench, 1);
    bench.seed = rng.Word();
    const Unit& unit = bench.program.layout.units[0];
    const auto n = static_cast<int64_t>(unit.padded_elements);
    // Small ones too, which are fp16's subnormal numbers.
    Tensor p(Dtype::kF32, n), first = Tensor::Random(rng, Dtype::kF32, n), second = first;
    for (int64_t i = 0; i < n; ++i) {
      p.Set(i, rng.Normal(i % 3 == 0 ? 1e-4 : 0.5));
      second.Set(i, first[i] * first[i] + 0.01);
    }
    const Tensor grad = Tensor::Random(rng, Dtype::kBF16, n);
    const StateKind kind{dtype, Dtype::kBF16};
    const States start(bench, kind, grad, p, first, second);
    // The same in fp32, from what the states are.
    States exact = start;
    exact.kind = {Dtype::kF32, Dtype::kF32};
    exact.master = exact.m = exact.v = Tensor(Dtype::kF32, n);
    for (int64_t i = 0; i < n; ++i) {
      exact.master.Set(i, start.master[i]);
      exact.m.Set(i, start.m[i]);
      exact.v.Set(i, start.v[i]);
    }
    StepState state = AdamStateAt(5);
    exact.Step(bench, state);
    constexpr int kSteps = 400;
    Doubles sum_p(static_cast<size_t>(n)), sum_v(sum_p);
    for (int step = 0; step < kSteps; ++step) {
      States a = start;
      state.step = 1000 + step;
      a.Step(bench, state);
      for (int64_t i = 0; i < n; ++i) {
        sum_p[static_cast<size_t>(i)] += a.master[i];
        sum_v[static_cast<size_t>(i)] += a.v[i];
      }
    }
    double bias_p = 0, bias_v = 0;  // in distances of neighbours
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (SlotAt(unit, static_cast<uint64_t>(i)) == nullptr) continue;
      ++count;
      const auto distance = [](double x, Dtype to) {
        const double least = to == Dtype::kF16 ? 0x1p-14 : 0x1p-126;
        return std::exp2(std::floor(std::log2(std::max(std::abs(x), least)))) * 2 * RoundOff(to);
      };
      const auto at = static_cast<size_t>(i);
      const double off_p =
          (sum_p[at] / kSteps - exact.master[i]) / distance(exact.master[i], dtype);
      const double off_v = (sum_v[at] / kSteps - exact.v[i]) / distance(exact.v[i], Dtype::kBF16);
      // 100,000 numbers: 6 standard deviations happen once in ten thousand runs.
      REQUIRE(std::abs(off_p) < 6 * 0.5 / std::sqrt(kSteps));
      REQUIRE(std::abs(off_v) < 6 * 0.5 / std::sqrt(kSteps));
      bias_p += off_p;
      bias_v += off_v;
    }
    const double together =
        6 * 0.5 / std::sqrt(static_cast<double>(kSteps) * static_cast<double>(count));
    CHECK(std::abs(bias_p / static_cast<double>(count)) < together);
    CHECK(std::abs(bias_v / static_cast<double>(count)) < together);
  }
}

// Words: each bit is 1 as often as 0, also beside its neighbour element, step and tensor.
TEST_CASE("stochastic rounding: words of neighbours have nothing in common") {
  ZEROPLAN_TEST_RNG(rng);
  const uint64_t seed = rng.Word();
  constexpr uint32_t kWords = 1 << 18;
  const uint64_t key = RoundingKey(seed, 3, 11);
  const uint64_t others[] = {RoundingKey(seed, 4, 11), RoundingKey(seed, 3, 12),
                             RoundingKey(seed + 1, 3, 11)};
  const double most = 6 * 0.5 * std::sqrt(static_cast<double>(kWords));
  for (int bit = 0; bit < 32; ++bit) {
    double ones = 0, next = 0, other[3] = {};
    for (uint32_t i = 0; i < kWords; ++i) {
      const uint32_t word = RoundingWord(key, i);
      ones += word >> bit & 1;
      next += (word ^ RoundingWord(key, i + 1)) >> bit & 1;
      for (size_t k = 0; k < 3; ++k) {
        other[k] += (word ^ RoundingWord(others[k], i)) >> bit & 1;
      }
    }
    CAPTURE(bit);
    CHECK(std::abs(ones - kWords / 2) < most);
    CHECK(std::abs(next - kWords / 2) < most);
    for (const double differ : other) CHECK(std::abs(differ - kWords / 2) < most);
  }
}

TEST_CASE("adamw: every instruction set has the same bits, and rounds as the definitions say") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  const AdamConstants constants{0.01f, 0.9f, 0.99f, 1e-6f,  0.1f, 0.01f,
                                0.25f, 5.0f, 7.0f,  0.001f, 0.1f};
  constexpr int64_t kN = 37 * kStateBlock;
  for (const StateKind kind : AllStateKinds()) {
    CAPTURE(kind.name());
    for (const Dtype grad : FloatDtypes()) {
      const States start = RandomStates(bench, kind, rng, grad, kN);
      const uint64_t key = rng.Word();
      const auto run = [&](CpuLevel level) {
        const AdamLoops& loops = *CpuKernelsOf(level)->adam;
        States a = start;
        const AdamArrays arrays{grad,
                                kind.master,
                                a.param.dtype(),
                                a.grad.arg().data,
                                a.master.arg().data,
                                a.m.arg().data,
                                a.v.arg().data,
                                a.param.arg().data};
        // A tail that no vector holds whole.
        loops.UpdateOf(kind.moments)(constants, arrays,
                                     {.first = kDynamic8Group,
                                      .n = kN - 3 * kDynamic8Group - 11,
                                      .element = 12,
                                      .key = key});
        loops.write_param(arrays, kN - 2 * kDynamic8Group, 2 * kDynamic8Group - 3);
        return a;
      };
      const States portable = run(CpuLevel::kBaseline);
      CHECK_FALSE(portable == start);
      for (const CpuLevel level : CpuLevelsHere()) CHECK(run(level) == portable);
      if (!kind.by_chance() || kind.moments != Dtype::kF32) continue;
      // The words of the definition, on the same step with whole master weights.
      States whole = start;
      whole.kind.master = Dtype::kF32;
      whole.master = Tensor(Dtype::kF32, kN);
      for (int64_t i = 0; i < kN; ++i) whole.master.Set(i, start.master[i]);
      const AdamArrays arrays{grad,
                              Dtype::kF32,
                              Dtype::kF32,
                              whole.grad.arg().data,
                              whole.master.arg().data,
                              whole.m.arg().data,
                              whole.v.arg().data,
                              nullptr};
      CpuKernelsOf(CpuLevel::kBaseline)
          ->adam->f32(constants, arrays, {.first = 0, .n = kN, .element = 0, .key = key});
      for (int64_t i = kDynamic8Group; i < kN - 2 * kDynamic8Group - 11; ++i) {
        const auto x = static_cast<float>(whole.master[i]);
        const uint32_t random =
            RoundingWord(key, static_cast<uint32_t>(12 + i - kDynamic8Group)) & 0xffff;
        const float want =
            kind.master == Dtype::kF16
                ? RoundedF16(x, random)
                : std::bit_cast<float>(uint32_t{RoundedBf16(std::bit_cast<uint32_t>(x), random)}
                                       << 16);
        REQUIRE(portable.master[i] == static_cast<double>(want));
      }
    }
  }
}

}  // namespace
}  // namespace zeroplan::kernel_test
