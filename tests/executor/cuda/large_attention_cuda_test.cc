// Attention past 2^31 elements: cuDNN's, our own kernels and that with the probabilities in memory.
// Legend: B micro-batch, T sequence, H heads of queries, G of keys and values, D head size.
#include "executor/kernels/cuda/attention/attention_kernels.h"
#include "executor/kernels/cuda/attention/attention_plans.h"
#include "tests/executor/cuda/large_tensor.h"
#include "tests/executor/kernels/attention_reference.h"

namespace zeroplan::kernel_test::large_attention {
namespace {

// Whose queries, outputs and gradients some are held against double.
struct Sampled {
  AttentionShape s;
  int64_t document = 0;  // tokens of each document; 0: a sequence is one
  LargeTensor qkv, out, dout, dqkv;

  explicit Sampled(const AttentionShape& shape, int64_t of_document = 0)
      : s(shape),
        document(of_document),
        qkv(Dtype::kBF16, s.qkv_size()),
        out(Dtype::kBF16, s.out_size()),
        dout(Dtype::kBF16, s.out_size()),
        dqkv(Dtype::kBF16, s.qkv_size()) {
    Fill();
  }
  void Fill() { qkv.Uniform(1), dout.Uniform(2); }
  static double Bytes(const AttentionShape& s) {
    return 4.0 * static_cast<double>(s.qkv_size() + s.out_size());
  }

  // The first key that query q sees.
  int64_t First(int64_t q) const { return document == 0 ? 0 : q / document * document; }
  std::vector<int32_t> Starts() const {
    std::vector<int32_t> all;
    for (int64_t m = 0; m < s.B * s.T; ++m) all.push_back(static_cast<int32_t>(First(m % s.T)));
    return all;
  }

  struct Query {
    double lse = 0;
    Doubles p, dscore;  // of each key that it sees
    Doubles q, dout;    // the query and the gradient of its output
    Doubles out, dq;
  };
  Query Reference(int64_t b, int64_t h, int64_t q) const {
    const int64_t first = First(q), count = q + 1 - first;
    const auto D = static_cast<size_t>(s.D);
    const std::vector<float> keys = qkv.Floats(s.Key(b, first, h), count, s.QkvRow(), s.D);
    const std::vector<float> values = qkv.Floats(s.Value(b, first, h), count, s.QkvRow(), s.D);
    const auto dot = [&](const Doubles& x, const std::vector<float>& rows, size_t k) {
      double sum = 0;
      for (size_t d = 0; d < D; ++d) sum += x[d] * static_cast<double>(rows[k * D + d]);
      return sum;
    };
    Query query{.q = qkv.Read(s.Query(b, q, h), s.D),
                .dout = dout.Read(s.Out(b, q, h), s.D),
                .out = Doubles(D),
                .dq = Doubles(D)};
    const double scale = 1 / std::sqrt(static_cast<double>(s.D));
    double sum = 0, delta = 0;
    for (size_t k = 0; k < static_cast<size_t>(count); ++k) {
      sum += query.p.emplace_back(std::exp(scale * dot(query.q, keys, k)));
    }
    query.lse = std::log(sum);
    for (size_t k = 0; k < query.p.size(); ++k) {
      query.p[k] /= sum;
      for (size_t d = 0; d < D; ++d) {
        query.out[d] += query.p[k] * static_cast<double>(values[k * D + d]);
      }
      delta += query.p[k] * query.dscore.emplace_back(dot(query.dout, values, k));
    }
    for (size_t k = 0; k < query.p.size(); ++k) {
      query.dscore[k] = query.p[k] * (query.dscore[k] - delta) * scale;
      for (size_t d = 0; d < D; ++d) {
        query.dq[d] += query.dscore[k] * static_cast<double>(keys[k * D + d]);
      }
    }
    return query;
  }

  // A wrong index is off by about all of the largest number; rounding to 16 bits on the way by
  // less than a hundredth of it.
  static void CheckHead(const LargeTensor& got, int64_t first, const Doubles& want,
                        const char* what) {
    double largest = 0;
    for (const double v : want) largest = std::max(largest, std::abs(v));
    CheckSome(got, first, want, largest / 30, what);
  }

  // fn(b, h, q) of some queries: at the begin, around 2^31 elements of qkv, and the last.
  template <typename Fn>
  void ForSome(const Fn& fn) const {
    for (const int64_t m : SomeRows(s.B * s.T, s.QkvRow())) {
      for (const int64_t h : {int64_t{0}, s.H - 1}) fn(m / s.T, h, m % s.T);
    }
  }
  void CheckForward(const LargeTensor* lse = nullptr) const {
    ForSome([&](int64_t b, int64_t h, int64_t q) {
      CAPTURE(h);
      const Query query = Reference(b, h, q);
      CheckHead(out, s.Out(b, q, h), query.out, "out");
      if (lse != nullptr) CheckSome(*lse, (b * s.H + h) * s.T + q, {query.lse}, 1e-3, "lse");
    });
  }
  void CheckBackward() const {
    ForSome([&](int64_t b, int64_t h, int64_t q) {
      if (q == First(q)) return;  // of one key: nothing but what was rounded
      CAPTURE(h);
      CheckHead(dqkv, s.Query(b, q, h), Reference(b, h, q).dq, "dq");
    });
    // The last key of a sequence is seen by the last query alone, of the heads that share it.
    for (const int64_t b : {int64_t{0}, s.B - 1}) {
      const int64_t last = s.T - 1, first_head = s.H - s.Sharing();
      Doubles dk(static_cast<size_t>(s.D)), dv = dk;
      for (int64_t h = first_head; h < s.H; ++h) {
        const Query query = Reference(b, h, last);
        for (size_t d = 0; d < dk.size(); ++d) {
          dk[d] += query.dscore.back() * query.q[d];
          dv[d] += query.p.back() * query.dout[d];
        }
      }
      CAPTURE(b);
      CheckHead(dqkv, s.Key(b, last, s.H - 1), dk, "dk");
      CheckHead(dqkv, s.Value(b, last, s.H - 1), dv, "dv");
    }
  }
};

void CheckFused(const AttentionShape& s, int64_t document, KernelFn forward = nullptr,
                KernelFn backward = nullptr) {
  CAPTURE(FormatDims(KernelId::kAttentionForward, s.dims(), {}));
  const auto workspace = static_cast<double>(LaunchWorkspaceBytes(
      KernelId::kAttentionBackward, s.dims(), Backend::kCuda, document > 0, false));
  if (!HasRoom(Sampled::Bytes(s) + workspace)) return;
  LargeBench bench;
  Sampled a(s, document);
  LargeTensor lse(Dtype::kF32, s.B * s.H * s.T);
  std::optional<LargeTensor> starts;
  if (document > 0) starts.emplace(Dtype::kI32, s.B * s.T).Ints(a.Starts());
  LargeTensor* const of = starts ? &*starts : nullptr;
  bench.Run(KernelId::kAttentionForward, s.dims(), {&a.qkv, &a.out, &lse, nullptr, of}, 0, {},
            forward);
  // With documents the order of lse is the kernel's own.
  a.CheckForward(document > 0 ? nullptr : &lse);
  bench.Run(KernelId::kAttentionBackward, s.dims(),
            {&a.dout, &a.qkv, &a.out, &lse, &a.dqkv, nullptr, of}, 0, {}, backward);
  a.CheckBackward();
}

TEST_CASE("gpu past 2^31 elements: attention, many sequences and a long one") {
  CheckFused({256, 1024, 64, 1, 128}, 0);
  CheckFused({1, 1 << 17, 44, 44, 128}, 0);
}

TEST_CASE("gpu past 2^31 elements: attention within documents") {
  AttentionPlans& plans = *TestLaunch().attention;
  plans.LimitDocuments({.most_in_row = 4, .longest = 256});
  CheckFused({256, 1024, 64, 1, 128}, 256);
  plans.LimitDocuments({});
}

TEST_CASE("gpu past 2^31 elements: own fused attention") {
  CheckFused({256, 1024, 64, 1, 128}, 256, cuda::OwnAttentionForward, cuda::OwnAttentionBackward);
  CheckFused({1, 1 << 17, 44, 44, 128}, 0, cuda::OwnAttentionForward, cuda::OwnAttentionBackward);
  CheckFused({1, 4'200'000, 1, 1, 8}, 64, cuda::OwnAttentionForward, cuda::OwnAttentionBackward);
}

// The second has more tiles than a grid's second dimension.
TEST_CASE("gpu past 2^31 elements: plain attention") {
  CheckFused({1024, 256, 64, 1, 128}, 0, cuda::PlainAttentionForward, cuda::PlainAttentionBackward);
  CheckFused({1, 4'200'000, 1, 1, 8}, 64, cuda::PlainAttentionForward,
             cuda::PlainAttentionBackward);
}

// More than 2^32 probabilities, of two heads.
TEST_CASE("gpu past 2^31 elements: attention with the probabilities in memory") {
  const AttentionShape s(1, 46464, 2, 2, 64);
  const int64_t squares = s.B * s.H * s.T * s.T;
  static_assert(int64_t{46464} * 46464 > kPast);
  if (!HasRoom(4.0 * static_cast<double>(squares) + Sampled::Bytes(s))) return;
  LargeBench bench;
  Sampled a(s);
  LargeTensor probs(Dtype::kBF16, squares), dprobs(Dtype::kBF16, squares);
  const auto forward = [&] {
    bench.Run(KernelId::kUnfusedAttentionForward, s.dims(), {&a.qkv, &a.out, &probs});
  };
  const auto backward = [&] {
    bench.Run(KernelId::kUnfusedAttentionBackward, s.dims(),
              {&a.dout, &a.qkv, &probs, &a.dqkv, &dprobs});
  };
  // Once to choose algorithms, which fills inputs anew.
  forward();
  backward();
  a.Fill();
  forward();
  a.CheckForward();
  for (int64_t h = 0; h < s.H; ++h) {
    const Sampled::Query last = a.Reference(0, h, s.T - 1);
    const int64_t first = s.T - kSome;
    Sampled::CheckHead(probs, s.Probs(0, h, s.T - 1) + first,
                       Doubles(last.p.begin() + first, last.p.end()), "probabilities");
    CheckSome(probs, s.Probs(0, h, 0) + 1, Doubles(kSome, 0), 0, "keys that are not seen");
  }
  backward();
  a.CheckBackward();
}

}  // namespace
}  // namespace zeroplan::kernel_test::large_attention
