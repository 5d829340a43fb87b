// AdamW over every kind of states on a GPU, beside the CPU's, which takes the same roundings, and
// beside double arithmetic.
#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>

#include "core/base/dynamic8.h"
#include "core/base/split_master.h"
#include "executor/kernels/stochastic_rounding.h"
#include "tests/executor/kernels/unit_fixture.h"

namespace zeroplan::kernel_test {
namespace {

constexpr Dtype kMasters[] = {Dtype::kF32, Dtype::kI16, Dtype::kBF16, Dtype::kF16};
constexpr Dtype kMoments[] = {Dtype::kF32, Dtype::kBF16, Dtype::kDynamic8};
constexpr int64_t kBlock8 = kDynamic8Group * kDynamic8Groups;

Dtype SecondMoment(Dtype first) {
  return first == Dtype::kDynamic8 ? Dtype::kUnsignedDynamic8 : first;
}
std::string KindName(Dtype master, Dtype moments) {
  return std::string(DtypeName(master)) + " masters, " + std::string(DtypeName(moments)) +
         " moments";
}

// A decayed matrix, a vector that is not decayed and another matrix, none of whole vectors, as a
// unit with 8-bit moments has them.
ParamLayout StatesLayout(uint64_t shards) {
  ParamLayout layout;
  layout.tensors = std::make_shared<std::vector<ParamTensor>>(std::vector<ParamTensor>{
      TestTensor(701, 513, true, InitKind::kNormal, 701),
      TestTensor(1111, 1, false, InitKind::kOnes, 1111),
      TestTensor(299, 77, true, InitKind::kNormal, 299),
  });
  layout.shards = shards;
  Unit unit{.layer = 0, .persistent = false, .in_blocks = true, .slots = {}};
  for (size_t i = 0; i < layout.tensors->size(); ++i) {
    const uint64_t n = (*layout.tensors)[i].elements();
    const uint64_t offset = (unit.elements + kDynamic8Group - 1) / kDynamic8Group * kDynamic8Group;
    unit.slots.push_back({static_cast<int>(i), offset, n});
    unit.elements = offset + n;
  }
  const uint64_t piece = shards * kBlock8;
  unit.padded_elements = (unit.elements + piece - 1) / piece * piece;
  unit.shard_elements = unit.padded_elements / shards;
  layout.units.push_back(unit);
  return layout;
}

struct GpuBench : Bench {
  explicit GpuBench(uint64_t shards, int on_rank = 0) : Bench(2) {
    program.layout = StatesLayout(shards);
    program.setup.optimizer.betas = {0.9, 0.99};
    program.setup.optimizer.eps = 1e-6;
    program.setup.optimizer.weight_decay = 0.1;
    rank = on_rank;
    seed = 0x1234567890abcdef;
  }
  const Unit& unit() const { return program.layout.units[0]; }
  int64_t shard() const { return static_cast<int64_t>(unit().shard_elements); }

  void RunOnCpu(KernelId id, const KernelDims& dims, const std::vector<Tensor*>& tensors,
                int flags = 0) {
    std::vector<KernelArg> args;
    for (Tensor* tensor : tensors) args.push_back(tensor == nullptr ? KernelArg{} : tensor->arg());
    const KernelContext cpu{&program, rank, seed, &pool};
    CpuKernels().rows[static_cast<size_t>(id)](
        {id, static_cast<uint8_t>(flags), dims, args, cpu, UsualScalars(id)});
  }
};

StepState StateOf(int64_t step) {
  StepState state;
  state.step = step;
  state.lr = 0.01f;
  state.grad_factor = 0.25f;
  state.bias_correction1 = 1 - std::pow(0.9f, static_cast<float>(step));
  state.bias_correction2 = 1 - std::pow(0.99f, static_cast<float>(step));
  return state;
}

// The fp32 numbers, kept as `dtype`.
Tensor Kept(GpuBench& bench, Tensor wide, Dtype dtype) {
  const int64_t n = wide.size();
  Tensor kept(dtype, IsDynamic8(dtype) ? n / kBlock8 : n);
  bench.RunOnCpu(KernelId::kConvert, {n}, {&wide, &kept});
  return kept;
}
Tensor Widened(GpuBench& bench, Tensor kept, int64_t n) {
  Tensor wide(Dtype::kF32, n);
  bench.RunOnCpu(KernelId::kConvert, {n}, {&kept, &wide});
  return wide;
}

struct KindOfStates {
  Dtype master, moments;
  bool has_param = true;
  Dtype param = Dtype::kBF16;
  bool halves() const { return master == Dtype::kI16; }
};

struct States {
  KindOfStates kind;
  Tensor master, m, v, param;

  // Padding holds random numbers, too.
  States(Rng& rng, GpuBench& bench, const KindOfStates& of, int64_t n)
      : kind(of), param(of.param, of.has_param ? n : 0) {
    Tensor p = Tensor::Random(rng, Dtype::kF32, n),
           first = Tensor::Random(rng, Dtype::kF32, n, 0.1);
    Tensor second(Dtype::kF32, n);
    for (int64_t i = 0; i < n; ++i) second.Set(i, 0.01 + std::abs(rng.Normal(0.1)));
    if (kind.halves()) {
      master = Tensor(Dtype::kI16, n);
      bench.RunOnCpu(KernelId::kSplitMaster, {n}, {&p, &param, &master});
    } else {
      master = kind.master == Dtype::kF32 ? p : Kept(bench, p, kind.master);
    }
    m = kind.moments == Dtype::kF32 ? first : Kept(bench, first, kind.moments);
    v = kind.moments == Dtype::kF32 ? second : Kept(bench, second, SecondMoment(kind.moments));
  }

  int flags() const { return kind.halves() ? kAccumulate : kNoFlags; }
  std::vector<Tensor*> Arguments(Tensor& grad, Tensor& state) {
    return {&grad, &state, &master, &m, &v, kind.has_param ? &param : nullptr};
  }
  void Step(GpuBench& bench, Tensor& grad, Tensor state, int64_t begin = 0, int more = kOnRank) {
    bench.Run(KernelId::kAdamW, {grad.size(), 0, begin}, Arguments(grad, state), flags() | more);
  }
  void StepOnCpu(GpuBench& bench, Tensor& grad, Tensor state, int64_t begin = 0,
                 int more = kOnRank) {
    bench.RunOnCpu(KernelId::kAdamW, {grad.size(), 0, begin}, Arguments(grad, state),
                   flags() | more);
  }
  Tensor Master(GpuBench& bench) {
    const int64_t n = master.size();
    if (!kind.halves()) return kind.master == Dtype::kF32 ? master : Widened(bench, master, n);
    Tensor wide(Dtype::kF32, n);
    bench.RunOnCpu(KernelId::kJoinMaster, {n}, {&param, &master, &wide});
    return wide;
  }
};

void CheckSame(const States& got, const States& want) {
  CHECK(got.master == want.master);
  CHECK(got.m == want.m);
  CHECK(got.v == want.v);
  CHECK(got.param == want.param);
}

TEST_CASE("gpu adamw: every kind of states has the CPU's bits, on either rank") {
  ZEROPLAN_TEST_RNG(rng);
  for (const Dtype master : kMasters) {
    for (const Dtype moments : kMoments) {
      for (const Dtype grad_dtype : FloatDtypes()) {
        const int rank = static_cast<int>(rng.Below(2));
        const bool adam_w = rng.Below(2) == 0,
                   narrow = master == Dtype::kBF16 || master == Dtype::kF16;
        const KindOfStates kind = {.master = master,
                                   .moments = moments,
                                   .has_param = master == Dtype::kI16 || rng.Below(3) > 0,
                                   .param = narrow ? master
                                            : master == Dtype::kI16
                                                ? Dtype::kBF16
                                                : FloatDtypes()[static_cast<size_t>(rng.Below(3))]};
        INFO(KindName(master, moments), ", ", DtypeName(grad_dtype), " gradients, rank ", rank,
             ", parameters in ", DtypeName(kind.param),
             std::string(kind.has_param ? "" : " are absent"));
        GpuBench bench(2, rank);
        bench.program.setup.optimizer.adam_w_mode = adam_w;
        States gpu(rng, bench, kind, bench.shard());
        States cpu = gpu;
        for (int64_t step = 1; step <= 3; ++step) {
          Tensor grad = Tensor::Random(rng, grad_dtype, bench.shard());
          gpu.Step(bench, grad, Tensor::State(StateOf(step)));
          cpu.StepOnCpu(bench, grad, Tensor::State(StateOf(step)));
        }
        CheckSame(gpu, cpu);
      }
    }
  }
}

TEST_CASE("gpu adamw: halves are fp32 masters, bit for bit, over 20 steps") {
  ZEROPLAN_TEST_RNG(rng);
  for (const Dtype moments : kMoments) {
    CAPTURE(DtypeName(moments));
    GpuBench bench(1);
    const int64_t n = bench.shard();
    States halves(rng, bench, {.master = Dtype::kI16, .moments = moments}, n);
    States whole = halves;
    whole.kind.master = Dtype::kF32;
    whole.master = halves.Master(bench);
    for (int64_t step = 1; step <= 20; ++step) {
      Tensor grad = Tensor::Random(rng, Dtype::kBF16, n);
      halves.Step(bench, grad, Tensor::State(StateOf(step)));
      whole.Step(bench, grad, Tensor::State(StateOf(step)));
      REQUIRE(halves.param == whole.param);
    }
    CHECK(halves.Master(bench) == whole.master);
    CHECK(halves.m == whole.m);
    CHECK(halves.v == whole.v);
  }
}

// Of numbers that are known exactly: weights of 1 that decay, second moments of 1 that fade.
TEST_CASE("gpu adamw: bf16 is rounded by the element's word, up as often as the mean asks") {
  for (const int rank : {0, 1}) {
    GpuBench bench(2, rank);
    const int64_t n = bench.shard();
    Tensor grad(Dtype::kBF16, n), master(Dtype::kBF16, n), m(Dtype::kBF16, n), v(Dtype::kBF16, n);
    for (int64_t i = 0; i < n; ++i) {
      master.Set(i, 1);
      v.Set(i, 1);
    }
    const StepState step = StateOf(11);
    Tensor state = Tensor::State(step);
    bench.Run(KernelId::kAdamW, {n, 0, 0}, {&grad, &state, &master, &m, &v, nullptr}, kOnRank);
    // Each of the kernel's operations is rounded by itself: no fused 1 - lr * 0.1 here, either.
    const float faded = 0.99f;
    const auto decay = static_cast<float>(static_cast<double>(step.lr) * static_cast<double>(0.1f));
    double sum_p = 0, sum_v = 0;
    int64_t decayed = 0, all = 0;
    for (int64_t i = 0; i < n; ++i) {
      const uint64_t position = static_cast<uint64_t>(rank * n + i);
      const TensorSlot* slot = SlotAt(bench.unit(), position);
      if (slot == nullptr) {
        REQUIRE(master[i] == 1);
        REQUIRE(v[i] == 1);
        continue;
      }
      const bool decays = slot->tensor != 1;
      const float weight = decays ? 1 - decay : 1.0f;
      const uint32_t word =
          RoundingWord(RoundingKey(bench.seed, static_cast<uint32_t>(slot->tensor), step.step),
                       static_cast<uint32_t>(position - slot->offset));
      const auto rounded = [](float x, uint32_t random) {
        return static_cast<double>(std::bit_cast<float>(
            static_cast<uint32_t>(RoundedBf16(std::bit_cast<uint32_t>(x), random)) << 16));
      };
      REQUIRE(master[i] == rounded(weight, word & 0xffffu));
      REQUIRE(v[i] == rounded(faded, word >> 16));
      sum_v += v[i];
      ++all;
      if (!decays) continue;
      sum_p += master[i];
      ++decayed;
    }
    // bf16 numbers below 1 are 2^-8 apart: a rounding deviates by at most half of that.
    const auto sigma = [](int64_t count) { return 0x1p-9 / std::sqrt(static_cast<double>(count)); };
    const auto mean = [](double sum, int64_t count) { return sum / static_cast<double>(count); };
    CHECK(std::abs(mean(sum_v, all) - static_cast<double>(faded)) < 5 * sigma(all));
    const auto weight = static_cast<double>(1 - decay);
    CHECK(std::abs(mean(sum_p, decayed) - weight) < 5 * sigma(decayed));
  }
}

struct Wide {
  double p, m, v;
};
Wide UpdatedInDouble(const OptimizerConfig& c, const StepState& s, bool decays, double grad,
                     Wide x) {
  const double g = grad * static_cast<double>(s.grad_factor), lr = static_cast<double>(s.lr);
  x.m = c.betas[0] * x.m + (1 - c.betas[0]) * g;
  x.v = c.betas[1] * x.v + (1 - c.betas[1]) * g * g;
  const double m_hat = x.m / static_cast<double>(s.bias_correction1);
  const double v_hat = x.v / static_cast<double>(s.bias_correction2);
  x.p -= lr * (m_hat / (std::sqrt(v_hat) + c.eps) + (decays ? c.weight_decay * x.p : 0));
  return x;
}

// A few fp32 roundings of numbers near 1.
constexpr double kFewRoundings = 12 * 0x1p-24;

// Codes of one group, of numbers `want` that fp32 arithmetic knows to within a few roundings: each
// is the nearest number's, or at a border between two of them either's.
void CheckCodes(Dtype dtype, const Dynamic8Block& block, int group, const Doubles& want) {
  const Dynamic8Map& map = Dynamic8MapOf(dtype);
  double scale = 0;
  for (const double x : want) {
    if (std::abs(x) > std::abs(scale)) scale = x;
  }
  REQUIRE(Close(static_cast<double>(block.scales[group]), scale, Dtype::kF32, kFewRoundings));
  const double slack = 2 * kFewRoundings / std::max(std::abs(scale), 1e-30);
  const double least = dtype == Dtype::kDynamic8 ? -1.0 : 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double x = scale == 0 ? 0 : want[i] / scale;
    const int code = block.codes[group][i];
    const int low = Dynamic8Code(map, static_cast<float>(std::max(x - slack, least)));
    const int high = Dynamic8Code(map, static_cast<float>(std::min(x + slack, 1.0)));
    CAPTURE(i);
    CAPTURE(x);
    REQUIRE(code >= std::min(low, high));
    REQUIRE(code <= std::max(low, high));
  }
}

TEST_CASE("gpu adamw: every kind against double arithmetic") {
  ZEROPLAN_TEST_RNG(rng);
  for (const Dtype master : kMasters) {
    for (const Dtype moments : kMoments) {
      INFO(KindName(master, moments));
      GpuBench bench(2, 1);
      const int64_t n = bench.shard();
      const StepState step = StateOf(2);
      Tensor grad = Tensor::Random(rng, Dtype::kF32, n);
      const bool whole = master == Dtype::kF32 || master == Dtype::kI16;
      States states(rng, bench,
                    {.master = master, .moments = moments, .param = whole ? Dtype::kBF16 : master},
                    n);
      const Tensor p0 = states.Master(bench), m0 = Widened(bench, states.m, n);
      const Tensor v0 = Widened(bench, states.v, n);
      states.Step(bench, grad, Tensor::State(step));
      const Tensor p = states.Master(bench), m1 = Widened(bench, states.m, n);
      const Tensor v1 = Widened(bench, states.v, n);
      Doubles m(static_cast<size_t>(n)), v(static_cast<size_t>(n));
      for (int64_t i = 0; i < n; ++i) {
        const TensorSlot* slot = SlotAt(bench.unit(), static_cast<uint64_t>(n + i));
        CAPTURE(i);
        if (slot == nullptr) {  // in groups it counts as 0
          REQUIRE(p[i] == p0[i]);
          if (moments == Dtype::kDynamic8) continue;
          REQUIRE(m1[i] == m0[i]);
          REQUIRE(v1[i] == v0[i]);
          continue;
        }
        const Wide want = UpdatedInDouble(bench.program.setup.optimizer, step, slot->tensor != 1,
                                          grad[i], {p0[i], m0[i], v0[i]});
        const double slack = kFewRoundings * (1 + std::abs(want.p));
        // Stochastic rounding takes either neighbour: twice as far as the nearest.
        if (whole) {
          REQUIRE(Close(p[i], want.p, Dtype::kF32, slack));
          REQUIRE(Close(states.param[i], want.p, Dtype::kBF16, slack));
        } else {
          REQUIRE(std::abs(p[i] - want.p) <=
                  2 * RoundOff(master) * std::abs(want.p) + 0x1p-24 + slack);
          REQUIRE(states.param[i] == p[i]);
        }
        m[static_cast<size_t>(i)] = want.m;
        v[static_cast<size_t>(i)] = want.v;
        if (moments == Dtype::kDynamic8) continue;
        REQUIRE(Close(m1[i], want.m, moments, kFewRoundings));
        REQUIRE(std::abs(v1[i] - want.v) <=
                2 * RoundOff(moments) * want.v + kFewRoundings * (1 + want.v));
      }
      if (moments != Dtype::kDynamic8) continue;
      for (int64_t group = 0; group < n / kDynamic8Group; ++group) {
        const uint64_t position = static_cast<uint64_t>(n + group * kDynamic8Group);
        if (SlotAt(bench.unit(), position) == nullptr) continue;  // padding alone: left alone
        const auto of = [&](const Doubles& all) {
          const auto begin = all.begin() + group * kDynamic8Group;
          return Doubles(begin, begin + kDynamic8Group);
        };
        const int64_t block = group / kDynamic8Groups;
        const int within = static_cast<int>(group % kDynamic8Groups);
        CAPTURE(group);
        CheckCodes(Dtype::kDynamic8, states.m.arg().as<Dynamic8Block>()[block], within, of(m));
        CheckCodes(Dtype::kUnsignedDynamic8, states.v.arg().as<Dynamic8Block>()[block], within,
                   of(v));
      }
    }
  }
}

// Elements [begin, begin + n) of an array.
Tensor Cut(Tensor from, int64_t begin, int64_t n) {
  Tensor cut(from.dtype(), n);
  const auto size = static_cast<int64_t>(DtypeBytes(from.dtype()));
  std::memcpy(cut.arg().data, from.arg().as<char>() + begin * size, static_cast<size_t>(n * size));
  return cut;
}

// Pieces that begin anywhere; those of 8-bit moments at blocks.
TEST_CASE("gpu adamw: the same bits whatever the pieces") {
  ZEROPLAN_TEST_RNG(rng);
  for (const Dtype master : kMasters) {
    for (const Dtype moments : kMoments) {
      INFO(KindName(master, moments));
      const bool blocks = moments == Dtype::kDynamic8,
                 narrow = master == Dtype::kBF16 || master == Dtype::kF16;
      const int64_t together = blocks ? kBlock8 : 1;
      GpuBench bench(1);
      const int64_t n = bench.shard();
      Tensor grad = Tensor::Random(rng, Dtype::kBF16, n);
      const Tensor state = Tensor::State(StateOf(3));
      States whole(rng, bench,
                   {.master = master, .moments = moments, .param = narrow ? master : Dtype::kBF16},
                   n);
      const States before = whole;
      whole.Step(bench, grad, state, 0, kNoFlags);
      for (int64_t begin = 0, size = together; begin < n;
           begin += size, size = size * 2 + together) {
        size = std::min(size, n - begin);
        const auto cut = [&](const States& from) {
          States piece = from;
          piece.master = Cut(from.master, begin, size);
          piece.param = Cut(from.param, begin, size);
          piece.m = Cut(from.m, begin / together, size / together);
          piece.v = Cut(from.v, begin / together, size / together);
          return piece;
        };
        States piece = cut(before);
        Tensor piece_grad = Cut(grad, begin, size);
        piece.Step(bench, piece_grad, state, begin, kNoFlags);
        CAPTURE(begin);
        CheckSame(piece, cut(whole));
      }
    }
  }
}

TEST_CASE("gpu adamw: a skipped step writes a parameter beside the master and nothing else") {
  ZEROPLAN_TEST_RNG(rng);
  for (const Dtype master : kMasters) {
    for (const Dtype moments : kMoments) {
      INFO(KindName(master, moments));
      const bool narrow = master == Dtype::kBF16 || master == Dtype::kF16;
      GpuBench bench(1);
      const int64_t n = bench.shard();
      Tensor grad(Dtype::kBF16, n);
      for (int64_t i = 0; i < n; ++i) grad.Set(i, NAN);
      StepState state = StateOf(4);
      state.skip = 1;
      States states(rng, bench,
                    {.master = master, .moments = moments, .param = narrow ? master : Dtype::kBF16},
                    n);
      States want = states;
      if (narrow) {
        want.param = want.master;
      } else if (master == Dtype::kF32) {
        bench.RunOnCpu(KernelId::kConvert, {n}, {&want.master, &want.param}, kHalfAway);
      }
      states.Step(bench, grad, Tensor::State(state));
      CheckSame(states, want);
    }
  }
}

TEST_CASE("gpu split and join: every pair of halves, and what is no number") {
  GpuBench bench(1);
  constexpr int64_t kN = (int64_t{1} << 20) + 3;  // the last vector is not whole
  Tensor wide(Dtype::kF32, kN), param(Dtype::kBF16, kN), rest(Dtype::kI16, kN);
  Tensor joined(Dtype::kF32, kN), away(Dtype::kBF16, kN);
  auto* bits = wide.arg().as<uint32_t>();
  for (uint32_t i = 0; i < kN; ++i) bits[i] = i * 4099u;  // all over 2^32
  bits[0] = 0x7f800000u;
  bits[1] = 0xffffffffu;
  bits[2] = 0x7f7fffffu;
  for (uint32_t i = 0; i < 0x10000; ++i) bits[3 + i] = 0x3f800000u + i;  // all lower halves
  bench.Run(KernelId::kSplitMaster, {kN}, {&wide, &param, &rest});
  bench.Run(KernelId::kConvert, {kN}, {&wide, &away}, kHalfAway);
  bench.Run(KernelId::kJoinMaster, {kN}, {&param, &rest, &joined});
  CHECK(away == param);
  for (int64_t i = 0; i < kN; ++i) {
    CAPTURE(i);
    const SplitMaster want = SplitBits(bits[i]);
    REQUIRE(param.arg().as<uint16_t>()[i] == want.param);
    REQUIRE(rest.arg().as<int16_t>()[i] == want.rest);
    const bool nan = (bits[i] & 0x7fffffffu) > 0x7f800000u;
    REQUIRE(joined.arg().as<uint32_t>()[i] == (nan ? 0x7fc00000u : bits[i]));
  }
}

TEST_CASE("gpu convert: 8-bit moments have the CPU's bytes, odd groups too") {
  ZEROPLAN_TEST_RNG(rng);
  GpuBench bench(1);
  const int64_t n = 2000 * kBlock8;
  for (const Dtype dtype : {Dtype::kDynamic8, Dtype::kUnsignedDynamic8}) {
    CAPTURE(DtypeName(dtype));
    Tensor wide(Dtype::kF32, n);
    for (int64_t i = 0; i < n; ++i) {  // magnitudes of all decades
      const double x = rng.Normal() * std::pow(10.0, static_cast<double>(-rng.Below(9)));
      wide.Set(i, dtype == Dtype::kDynamic8 ? x : std::abs(x));
    }
    const auto fill = [&](int64_t group, double value) {
      for (int64_t i = 0; i < kDynamic8Group; ++i) wide.Set(group * kDynamic8Group + i, value);
    };
    fill(0, 0);
    fill(1, 0x1p-140);
    fill(2, -3);
    fill(3, -0.0);
    wide.Set(5 * kDynamic8Group + 17, HUGE_VAL);
    wide.Set(6 * kDynamic8Group + 33, NAN);
    wide.Set(7 * kDynamic8Group + 1, -100);  // of two equal magnitudes
    wide.Set(7 * kDynamic8Group + 201, 100);
    Tensor kept(dtype, n / kBlock8), want = kept, read(Dtype::kF32, n), want_read = read;
    bench.Run(KernelId::kConvert, {n}, {&wide, &kept});
    bench.RunOnCpu(KernelId::kConvert, {n}, {&wide, &want});
    CHECK(kept == want);
    bench.Run(KernelId::kConvert, {n}, {&want, &read});
    bench.RunOnCpu(KernelId::kConvert, {n}, {&want, &want_read});
    for (int64_t i = 0; i < n; ++i) {
      const float a = read.arg().as<float>()[i], b = want_read.arg().as<float>()[i];
      CAPTURE(i);
      REQUIRE((std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) ||
               (std::isnan(a) && std::isnan(b))));
    }
  }
}

}  // namespace
}  // namespace zeroplan::kernel_test
