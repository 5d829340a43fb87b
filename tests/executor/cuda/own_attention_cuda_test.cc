// Own fused attention kernels against double: every padded head, lengths at the tiles' borders,
// documents, windows, soft caps, sinks, both sizes of tiles, in order and not. Legend: B
// micro-batch, T sequence, H heads of queries, G of keys and values, D head size.
#include <cuda_runtime_api.h>

#include <cmath>
#include <utility>

#include "executor/kernels/cuda/attention/attention_kernels.h"
#include "tests/executor/cuda/own_launch.h"
#include "tests/executor/kernels/attention_reference.h"
#include "tests/executor/kernels/sampled_attention.h"

namespace zeroplan::kernel_test::own_attention {
namespace {

// Parameters that no kernel row has yet.
struct Extras {
  int64_t window = 0;
  float soft_cap = 0;
  bool sinks = false;
};

struct Case {
  AttentionShape s;
  Extras extras;
  std::vector<int32_t> starts;  // [B, T]; empty: rows are whole texts
  std::vector<double> sinks;    // [H]
};

struct Want {
  Doubles out, lse, dqkv, dsinks;
};

Want Reference(const Case& c, const Doubles& qkv, const Doubles& dout) {
  const AttentionShape& s = c.s;
  const double scale = 1 / std::sqrt(static_cast<double>(s.D)), cap = c.extras.soft_cap;
  Want want;
  want.out.resize(static_cast<size_t>(s.out_size()));
  want.lse.resize(static_cast<size_t>(s.B * s.H * s.T));
  want.dqkv.resize(static_cast<size_t>(s.qkv_size()));
  want.dsinks.resize(static_cast<size_t>(s.H));
  ForEachQuery(s, [&](int64_t b, int64_t h, int64_t q) {
    int64_t first = c.starts.empty() ? 0 : c.starts[static_cast<size_t>(b * s.T + q)];
    if (c.extras.window > 0) first = std::max(first, q - c.extras.window + 1);
    Doubles p, slope;  // a number for each key that the query sees; slope: the cap's
    double sum = c.extras.sinks ? std::exp(c.sinks[static_cast<size_t>(h)]) : 0;
    for (int64_t k = first; k <= q; ++k) {
      double score = scale * Dot(qkv, s.Query(b, q, h), qkv, s.Key(b, k, h), s.D);
      slope.push_back(1);
      if (cap > 0) {
        const double share = std::tanh(score / cap);
        score = cap * share;
        slope.back() = 1 - share * share;
      }
      sum += p.emplace_back(std::exp(score));
    }
    want.lse[static_cast<size_t>((b * s.H + h) * s.T + q)] = std::log(sum);
    double delta = 0;
    Doubles dp;
    for (size_t i = 0; i < p.size(); ++i) {
      p[i] /= sum;
      const int64_t k = first + static_cast<int64_t>(i), value = s.Value(b, k, h);
      delta += p[i] * dp.emplace_back(Dot(dout, s.Out(b, q, h), qkv, value, s.D));
      for (int64_t d = 0; d < s.D; ++d) {
        want.out[static_cast<size_t>(s.Out(b, q, h) + d)] +=
            p[i] * qkv[static_cast<size_t>(value + d)];
        want.dqkv[static_cast<size_t>(value + d)] +=
            p[i] * dout[static_cast<size_t>(s.Out(b, q, h) + d)];
      }
    }
    for (size_t i = 0; i < p.size(); ++i) {
      const int64_t k = first + static_cast<int64_t>(i);
      const double dscore = scale * slope[i] * p[i] * (dp[i] - delta);
      for (int64_t d = 0; d < s.D; ++d) {
        const auto at_q = static_cast<size_t>(s.Query(b, q, h) + d);
        const auto at_k = static_cast<size_t>(s.Key(b, k, h) + d);
        want.dqkv[at_q] += dscore * qkv[at_k];
        want.dqkv[at_k] += dscore * qkv[at_q];
      }
    }
    if (c.extras.sinks) {
      const auto head = static_cast<size_t>(h);
      want.dsinks[head] -= std::exp(c.sinks[head]) / sum * delta;
    }
  });
  return want;
}

// The kernels with the extras, which reach them besides a launch's arguments.
Extras the_extras;
float *device_sinks = nullptr, *device_dsinks = nullptr;

cuda::OwnAttention OwnOf(const KernelCall& call, const KernelArg& qkv, const KernelArg& starts) {
  return {.dims = AttentionDimsOf(call),
          .dtype = qkv.dtype,
          .qkv_BTN = qkv.data,
          .starts_BT = Present(starts) ? starts.as<const int32_t>() : nullptr,
          .window = the_extras.window,
          .soft_cap = the_extras.soft_cap,
          .sinks_H = the_extras.sinks ? device_sinks : nullptr,
          .shared_bytes = TestLaunch().attention->shared_bytes()};
}
void ForwardWithExtras(const KernelCall& call) {
  CheckGpu(
      cuda::LaunchOwnAttentionForward(OwnOf(call, Arg(call, 0), Arg(call, 4)), Arg(call, 1).data,
                                      Arg(call, 2).as<float>(), TestLaunch().stream),
      "forward");
}
void BackwardWithExtras(const KernelCall& call) {
  CheckGpu(
      cuda::LaunchOwnAttentionBackward(OwnOf(call, Arg(call, 1), Arg(call, 6)),
                                       {.dout_BTHD = Arg(call, 0).data,
                                        .out_BTHD = Arg(call, 2).data,
                                        .lse_BHT = Arg(call, 3).as<const float>(),
                                        .dqkv_BTN = Arg(call, 4).data,
                                        .dsinks_H = the_extras.sinks ? device_dsinks : nullptr,
                                        .workspace = Arg(call, 5).data,
                                        .deterministic = TestLaunch().attention->deterministic()},
                                       TestLaunch().stream),
      "backward");
}

Case DrawCase(Rng& rng, const AttentionShape& s) {
  Case c{s, {}, {}, {}};
  if (rng.Below(2) == 0) {
    for (int64_t b = 0; b < s.B; ++b) {
      for (int64_t t = 0; t < s.T;) {
        const int64_t kinds[] = {1, 1 + rng.Below(8), 30 + rng.Below(70), 1 + rng.Below(s.T)};
        const int64_t length = std::min(kinds[rng.Below(4)], s.T - t);
        c.starts.insert(c.starts.end(), static_cast<size_t>(length), static_cast<int32_t>(t));
        t += length;
      }
    }
  }
  if (rng.Below(3) == 0) c.extras.window = 1 + rng.Below(s.T + 20);
  if (rng.Below(3) == 0) c.extras.soft_cap = 0.5f + static_cast<float>(rng.Below(8));
  c.extras.sinks = rng.Below(3) == 0;
  for (int64_t h = 0; h < s.H; ++h) c.sinks.push_back(rng.Normal(1.0));
  return c;
}

// ||got - want|| / ||want||.
double Off(const Doubles& got, const Doubles& want, int64_t from = 0, int64_t count = 0) {
  const size_t end = count == 0 ? want.size() : static_cast<size_t>(from + count);
  double diff = 0, norm = 0;
  for (auto i = static_cast<size_t>(from); i < end; ++i) {
    diff += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(diff) / std::max(std::sqrt(norm), 1e-9);
}

void CheckCase(Rng& rng, Bench& bench, const Case& c, Dtype dtype, bool deterministic) {
  const AttentionShape& s = c.s;
  CAPTURE(FormatDims(KernelId::kAttentionForward, s.dims(), {}));
  CAPTURE(DtypeName(dtype));
  CAPTURE(deterministic);
  CAPTURE(c.starts.empty());
  CAPTURE(c.extras.window);
  CAPTURE(c.extras.soft_cap);
  CAPTURE(c.extras.sinks);
  the_extras = c.extras;
  std::vector<float> sinks(c.sinks.begin(), c.sinks.end()), dsinks(sinks.size());
  Case exact = c;
  exact.sinks.assign(sinks.begin(), sinks.end());
  CheckGpu(cudaMemcpy(device_sinks, sinks.data(), sinks.size() * 4, cudaMemcpyDefault), "sinks");
  Tensor starts = Tensor::Ints(c.starts);
  Tensor* const of = c.starts.empty() ? nullptr : &starts;
  Tensor qkv = Tensor::Random(rng, dtype, s.qkv_size()), out(dtype, s.out_size());
  Tensor lse(Dtype::kF32, s.B * s.H * s.T), dout = Tensor::Random(rng, dtype, s.out_size());
  Tensor dqkv(dtype, qkv.size()), again(dtype, qkv.size());
  bench.Run(KernelId::kAttentionForward, s.dims(), {&qkv, &out, &lse, nullptr, of}, 0,
            ForwardWithExtras);
  bench.Run(KernelId::kAttentionBackward, s.dims(), {&dout, &qkv, &out, &lse, &dqkv, nullptr, of},
            0, BackwardWithExtras);
  const Want want = Reference(exact, qkv.values(), dout.values());
  // Elements are rounded once; probabilities and the gradients of scores before they multiply.
  const double limit = 1.6 * RoundOff(dtype);
  CHECK(Off(out.values(), want.out) < limit);
  CheckAllClose(lse, want.lse, 2e-5, "lse");
  CHECK(Off(dqkv.values(), want.dqkv) < limit);
  if (c.extras.sinks) {
    CheckGpu(cudaMemcpy(dsinks.data(), device_dsinks, dsinks.size() * 4, cudaMemcpyDefault),
             "dsinks");
    // `out` is rounded in delta. A head's few queries may cancel, all of them hardly.
    CHECK(Off(Doubles(dsinks.begin(), dsinks.end()), want.dsinks) < 20 * limit);
  }
  if (!deterministic) return;
  for (int i = 0; i < 3; ++i) {
    again = Tensor(dtype, qkv.size());
    bench.Run(KernelId::kAttentionBackward, s.dims(),
              {&dout, &qkv, &out, &lse, &again, nullptr, of}, 0, BackwardWithExtras);
    CHECK(again == dqkv);
  }
}

TEST_CASE("gpu own attention: random shapes, borders, windows, caps and sinks against double") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  constexpr int64_t kMostHeads = 8;
  CheckGpu(cudaMalloc(reinterpret_cast<void**>(&device_sinks), kMostHeads * 4), "cudaMalloc");
  CheckGpu(cudaMalloc(reinterpret_cast<void**>(&device_dsinks), kMostHeads * 4), "cudaMalloc");
  for (const int shared_bytes : {cuda::kLeastSharedOfBlock, INT32_MAX}) {
    for (const bool deterministic : {false, true}) {
      const OwnLaunch own(deterministic, shared_bytes);
      for (const int64_t padded : {64, 96, 128, 256}) {
        for (int i = 0; i < 4; ++i) {
          // The first is the padded head itself, at a length of whole tiles.
          const int64_t least = padded == 64 ? 8 : padded == 96 ? 72 : padded == 128 ? 104 : 136;
          const int64_t D = i == 0 ? padded : least + 8 * rng.Below((padded - least) / 8 + 1);
          const int64_t G = 1 + rng.Below(2), sharing = 1 + rng.Below(4);
          const int64_t T = i == 0 ? 256 : 2 + rng.Below(330);
          const AttentionShape s(1 + rng.Below(2), T, G * sharing, G, D);
          const Case c =
              i == 0 ? Case{s, {}, {}, Doubles(static_cast<size_t>(s.H))} : DrawCase(rng, s);
          CheckCase(rng, bench, c, i % 2 == 0 ? Dtype::kBF16 : Dtype::kF16, deterministic);
        }
      }
    }
  }
  CheckGpu(cudaFree(device_sinks), "cudaFree");
  CheckGpu(cudaFree(device_dsinks), "cudaFree");
}

TEST_CASE("gpu own attention: one token, and every length around a tile") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  const OwnLaunch own;
  for (const int64_t T : {1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129}) {
    const AttentionShape s(2, T, 2, 1, 64);
    CAPTURE(T);
    Tensor qkv = Tensor::Random(rng, Dtype::kBF16, s.qkv_size()), out(Dtype::kBF16, s.out_size());
    Tensor lse(Dtype::kF32, s.B * s.H * s.T), dout = Tensor::Random(rng, Dtype::kBF16, out.size());
    Tensor dqkv(Dtype::kBF16, qkv.size());
    bench.Run(KernelId::kAttentionForward, s.dims(), {&qkv, &out, &lse});
    bench.Run(KernelId::kAttentionBackward, s.dims(), {&dout, &qkv, &out, &lse, &dqkv});
    const Want want = Reference({s, {}, {}, {}}, qkv.values(), dout.values());
    CheckAllClose(out, want.out, 3 * RoundOff(Dtype::kBF16), "out");
    CheckAllClose(lse, want.lse, 2e-5, "lse");
    CheckAllClose(dqkv, want.dqkv, 30 * RoundOff(Dtype::kBF16), "dqkv");
  }
}

TEST_CASE("gpu own attention: as close to double as cuDNN's kernels") {
  ZEROPLAN_TEST_RNG(rng);
  std::string why;
  if (SdpaLibrary::Open(&why) == nullptr) {
    MESSAGE("left out: no cuDNN: " << why);
    return;
  }
  Bench bench(1);
  for (const AttentionShape& s :
       {AttentionShape{1, 512, 8, 2, 64}, AttentionShape{1, 500, 4, 4, 128},
        AttentionShape{2, 333, 4, 2, 96}, AttentionShape{1, 256, 2, 1, 256}}) {
    CAPTURE(FormatDims(KernelId::kAttentionForward, s.dims(), {}));
    Tensor qkv = Tensor::Random(rng, Dtype::kBF16, s.qkv_size());
    Tensor dout = Tensor::Random(rng, Dtype::kBF16, s.out_size());
    const Want want = Reference({s, {}, {}, {}}, qkv.values(), dout.values());
    const auto errors = [&] {
      Tensor out(Dtype::kBF16, s.out_size()), lse(Dtype::kF32, s.B * s.H * s.T);
      Tensor dqkv(Dtype::kBF16, qkv.size());
      bench.Run(KernelId::kAttentionForward, s.dims(), {&qkv, &out, &lse});
      bench.Run(KernelId::kAttentionBackward, s.dims(), {&dout, &qkv, &out, &lse, &dqkv});
      return std::pair(Off(out.values(), want.out), Off(dqkv.values(), want.dqkv));
    };
    const auto [library_out, library_dqkv] = errors();
    const OwnLaunch own;
    const auto [own_out, own_dqkv] = errors();
    CHECK(own_out <= 1.1 * library_out);
    CHECK(own_dqkv <= 1.1 * library_dqkv);
  }
}

TEST_CASE("gpu own attention: sizes that models train at, sampled queries and keys") {
  ZEROPLAN_TEST_RNG(rng);
  const auto check = [&](const AttentionShape& s, int shared_bytes) {
    const OwnLaunch own(false, shared_bytes);
    CAPTURE(FormatDims(KernelId::kAttentionForward, s.dims(), {}));
    SampledAttention(s, rng).CheckSamples(rng);
  };
  check({4, 1024, 12, 12, 64}, INT32_MAX);
  check({2, 2000, 8, 4, 128}, cuda::kLeastSharedOfBlock);
  check({1, 4096, 8, 2, 128}, INT32_MAX);
  check({1, 2048, 4, 2, 256}, INT32_MAX);
}

TEST_CASE("gpu own attention: a block takes at most 99 KiB, more only where a GPU has it") {
  for (const int64_t D : {8, 64, 96, 128, 200, 256}) {
    CAPTURE(D);
    for (const int room : {0, cuda::kLeastSharedOfBlock, 163 * 1024, 227 * 1024}) {
      const int most = std::max(room, cuda::kLeastSharedOfBlock);
      CHECK(cuda::OwnForwardSharedBytes(D, room) <= most);
      CHECK(cuda::OwnBackwardSharedBytes(D, room) <= most);
    }
  }
}

}  // namespace
}  // namespace zeroplan::kernel_test::own_attention
