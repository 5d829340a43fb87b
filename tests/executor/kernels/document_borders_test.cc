// Kernels that are told where documents start, at the sizes that models train at, against each
// document on its own: attention in double, the others to the bit by the same kernel.
//
// Legend: B micro-batch, T sequence, C hidden, V vocabulary, H heads of queries, G of keys and
// values, D head size, N = (H+2G)*D.
#include <vector>

#include "tests/executor/kernels/attention_reference.h"
#ifdef ZEROPLAN_TEST_CUDA
#include "core/program/attention_path.h"
#include "tests/executor/cuda/own_launch.h"
#endif

namespace zeroplan::kernel_test {
namespace {

struct Document {
  int64_t b, begin, length;  // within row b
};

// B rows of T positions, full of documents.
struct Borders {
  std::vector<Document> documents;
  std::vector<int32_t> starts;  // [B, T]

  Borders(Rng& rng, int64_t B, int64_t T) {
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t t = 0; t < T;) {
        // Single positions, lengths around the tiles of 64 and 256, and long ones.
        const int64_t kinds[] = {1, 1 + rng.Below(8), 60 + rng.Below(10), 250 + rng.Below(12),
                                 1 + rng.Below(T)};
        const int64_t length = std::min(kinds[rng.Below(5)], T - t);
        documents.push_back({b, t, length});
        starts.insert(starts.end(), static_cast<size_t>(length), static_cast<int32_t>(t));
        t += length;
      }
    }
  }
};

// `length` rows of `columns` from row `first` on.
Tensor Slice(const Tensor& rows, int64_t first, int64_t length, int64_t columns) {
  Tensor slice(rows.dtype(), length * columns);
  for (int64_t i = 0; i < slice.size(); ++i) slice.Set(i, rows[first * columns + i]);
  return slice;
}

// The same the other way round.
void Put(Doubles& rows, int64_t first, int64_t columns, const Doubles& slice) {
  std::copy(slice.begin(), slice.end(), rows.begin() + first * columns);
}

struct Expected {
  Doubles out, lse, dqkv;
};

// Each document as a sequence of its own.
// `out`: as the kernel stored it, which its backward pass multiplies dout with.
Expected Separately(const AttentionShape& s, const Borders& borders, const Tensor& qkv,
                    const Tensor& dout, const Tensor& out) {
  Expected want;
  want.out.resize(static_cast<size_t>(s.out_size()));
  want.lse.resize(static_cast<size_t>(s.B * s.H * s.T));
  want.dqkv.resize(static_cast<size_t>(s.qkv_size()));
  for (const Document& d : borders.documents) {
    const AttentionShape own(1, d.length, s.H, s.G, s.D);
    const int64_t first = d.b * s.T + d.begin;
    const Doubles own_qkv = Slice(qkv, first, d.length, s.QkvRow()).values();
    const Doubles own_dout = Slice(dout, first, d.length, s.OutRow()).values();
    const Doubles own_out = Slice(out, first, d.length, s.OutRow()).values();
    Doubles lse;
    Put(want.out, first, s.OutRow(), Attention(own, own_qkv, &lse));
    for (int64_t h = 0; h < s.H; ++h) {
      std::copy_n(lse.begin() + h * d.length, d.length,
                  want.lse.begin() + (d.b * s.H + h) * s.T + d.begin);
    }
    Put(want.dqkv, first, s.QkvRow(),
        AttentionGradient(own, own_qkv, AttentionProbs(own, own_qkv), own_dout, &own_out));
  }
  return want;
}

// As attention_test.cc has it: sums of up to T products of numbers near 1 in fp32; in 16 bit
// kernels of a GPU round on the way as well.
constexpr double kBordersSlack = 1e-5;
enum class Kernels : uint8_t { kExact, kOwn, kLibrary };
// The kernels that take such a launch here. Fused kernels of a GPU round the probabilities and the
// scores' gradients (attention_cuda_test.cc); cuDNN's leave lse as [B*T, H].
Kernels KernelsOf([[maybe_unused]] Dtype dtype, [[maybe_unused]] const AttentionShape& s) {
#ifdef ZEROPLAN_TEST_CUDA
  const uint64_t workspace_bytes = LaunchWorkspaceBytes(KernelId::kAttentionBackward, s.dims(),
                                                        Backend::kCuda, /*documents=*/true, false);
  AttentionPlans& plans = *TestLaunch().attention;
  switch (plans.FindDocuments(s, dtype, /*backward=*/true, workspace_bytes, false).kernels) {
    case AttentionKernels::kLibrary:
      return Kernels::kLibrary;
    case AttentionKernels::kOwn:
      return Kernels::kOwn;
    case AttentionKernels::kPlain:
      break;
  }
#endif
  return Kernels::kExact;
}
bool Fused(Dtype dtype, const AttentionShape& s) { return KernelsOf(dtype, s) != Kernels::kExact; }
double OutSlack(Dtype dtype, const AttentionShape& s) {
  return Fused(dtype, s) ? 6 * RoundOff(dtype) : kBordersSlack;
}
double GradientSlack(Dtype dtype, const AttentionShape& s) {
  if (Fused(dtype, s)) return 30 * static_cast<double>(s.Sharing()) * RoundOff(dtype);
#ifdef ZEROPLAN_TEST_CUDA
  return 4 * kBordersSlack + (dtype == Dtype::kF32 ? 0 : 4 * RoundOff(dtype));
#else
  return 4 * kBordersSlack;
#endif
}

// lse_MH from lse_BHT.
Doubles ByToken(const AttentionShape& s, const Doubles& lse_BHT) {
  Doubles lse(lse_BHT.size());
  for (int64_t m = 0; m < s.B * s.T; ++m) {
    for (int64_t h = 0; h < s.H; ++h) {
      lse[static_cast<size_t>(m * s.H + h)] =
          lse_BHT[static_cast<size_t>((m / s.T * s.H + h) * s.T + m % s.T)];
    }
  }
  return lse;
}

void CheckSeparately(Rng& rng) {
  Bench bench(2);
  for (Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
    for (const AttentionShape& s :
         {AttentionShape{1, 1024, 2, 2, 64}, AttentionShape{1, 1024, 4, 1, 64},
          AttentionShape{1, 1024, 2, 1, 128}, AttentionShape{3, 70, 3, 3, 10}}) {
      CAPTURE(FormatDims(KernelId::kAttentionForward, s.dims(), {}));
      CAPTURE(DtypeName(dtype));
      const Borders borders(rng, s.B, s.T);
      Tensor starts = Tensor::Ints(borders.starts);
      Tensor qkv = Tensor::Random(rng, dtype, s.qkv_size()),
             dout = Tensor::Random(rng, dtype, s.out_size());
      Tensor out(dtype, s.out_size()), lse(Dtype::kF32, s.B * s.H * s.T), dqkv(dtype, qkv.size());
      bench.Run(KernelId::kAttentionForward, s.dims(), {&qkv, &out, &lse, nullptr, &starts});
      bench.Run(KernelId::kAttentionBackward, s.dims(),
                {&dout, &qkv, &out, &lse, &dqkv, nullptr, &starts});
      const Expected want = Separately(s, borders, qkv, dout, out);
      CheckAllClose(out, want.out, OutSlack(dtype, s), "out");
      if (KernelsOf(dtype, s) == Kernels::kLibrary) {
        CheckAllClose(lse, ByToken(s, want.lse), 1e-4, "lse");
      } else {
        CheckAllClose(lse, want.lse, kBordersSlack, "lse");
      }
      CheckAllClose(dqkv, want.dqkv, GradientSlack(dtype, s), "dqkv");
    }
  }
}

TEST_CASE("attention within documents: as each on its own") {
  ZEROPLAN_TEST_RNG(rng);
  CheckSeparately(rng);
#ifdef ZEROPLAN_TEST_CUDA
  const OwnLaunch own;
  CheckSeparately(rng);
#endif
}

TEST_CASE("attention with its probabilities in memory, within documents: as each on its own") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  for (const AttentionShape& s :
       {AttentionShape{1, 512, 4, 2, 64}, AttentionShape{2, 70, 3, 1, 10}}) {
    CAPTURE(FormatDims(KernelId::kAttentionForward, s.dims(), {}));
    const Borders borders(rng, s.B, s.T);
    Tensor starts = Tensor::Ints(borders.starts);
    Tensor qkv = Tensor::Random(rng, Dtype::kF32, s.qkv_size());
    Tensor dout = Tensor::Random(rng, Dtype::kF32, s.out_size());
    const int64_t square = s.B * s.H * s.T * s.T;
    Tensor out(Dtype::kF32, s.out_size()), dqkv(Dtype::kF32, qkv.size());
    Tensor probs = Tensor::Random(rng, Dtype::kF32, square), dprobs(Dtype::kF32, square);
    bench.Run(KernelId::kUnfusedAttentionForward, s.dims(), {&qkv, &out, &probs, nullptr, &starts});
    bench.Run(KernelId::kUnfusedAttentionBackward, s.dims(), {&dout, &qkv, &probs, &dqkv, &dprobs});
    const Expected want = Separately(s, borders, qkv, dout, out);
    CheckAllClose(out, want.out, kBordersSlack, "out");
    CheckAllClose(dqkv, want.dqkv, GradientSlack(Dtype::kF32, s), "dqkv");
  }
}

TEST_CASE("rotary positions within documents: as each on its own, to the bit") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  for (Dtype dtype : FloatDtypes()) {
    constexpr int64_t kB = 2, kT = 300, kH = 4, kG = 2, kD = 64, kN = (kH + 2 * kG) * kD;
    const Borders borders(rng, kB, kT);
    Tensor starts = Tensor::Ints(borders.starts), table(Dtype::kF32, kT * kD);
    bench.Run(KernelId::kRotaryTable, {kT, kD, 0, 0}, {&table});
    const Tensor qkv = Tensor::Random(rng, dtype, kB * kT * kN);
    Tensor w = Tensor::Random(rng, dtype, 2 * kD), dy = Tensor::Random(rng, dtype, qkv.size());
    constexpr int64_t kHeads = kH + kG;

    Tensor forward = qkv, backward = qkv, normed(dtype, qkv.size()),
           rstd(Dtype::kF32, kB * kT * kHeads);
    Tensor input = qkv, dqkv = dy, dw(Dtype::kF32, 2 * kD);
    const KernelDims dims = {kB * kT, kT, kH, kG, kD};
    bench.Run(KernelId::kRotaryForward, dims, {&forward, &table, &starts});
    bench.Run(KernelId::kRotaryBackward, dims, {&backward, &table, &starts});
    bench.Run(KernelId::kQkNormRotaryForward, dims, {&input, &w, &table, &normed, &rstd, &starts});
    bench.Run(KernelId::kQkNormRotaryBackward, dims,
              {&dqkv, &input, &w, &rstd, &table, &dw, nullptr, &starts});

    Doubles want_dw(2 * kD);
    for (const Document& d : borders.documents) {
      const int64_t first = d.b * kT + d.begin;
      const KernelDims own = {d.length, d.length, kH, kG, kD};
      const auto slice = [&](const Tensor& rows) { return Slice(rows, first, d.length, kN); };
      Tensor own_forward = slice(qkv), own_backward = slice(qkv), own_input = slice(qkv);
      Tensor own_normed(dtype, own_input.size()), own_rstd(Dtype::kF32, d.length * kHeads);
      Tensor own_dqkv = slice(dy), own_dw(Dtype::kF32, 2 * kD);
      bench.Run(KernelId::kRotaryForward, own, {&own_forward, &table});
      bench.Run(KernelId::kRotaryBackward, own, {&own_backward, &table});
      bench.Run(KernelId::kQkNormRotaryForward, own,
                {&own_input, &w, &table, &own_normed, &own_rstd});
      bench.Run(KernelId::kQkNormRotaryBackward, own,
                {&own_dqkv, &own_input, &w, &own_rstd, &table, &own_dw});
      CHECK(slice(forward) == own_forward);
      CHECK(slice(backward) == own_backward);
      CHECK(slice(normed) == own_normed);
      CHECK(slice(dqkv) == own_dqkv);
      for (int64_t i = 0; i < dw.size(); ++i) want_dw[static_cast<size_t>(i)] += own_dw[i];
    }
    // Sums over 600 positions of 4 heads, of terms near 1, in another order.
    CheckAllClose(dw, want_dw, 2e-3, "dw");
  }
}

TEST_CASE("embedded positions within documents") {
  ZEROPLAN_TEST_RNG(rng);
  for (size_t scratch : {size_t{8} << 20, size_t{1} << 12}) {
    for (Dtype dtype : FloatDtypes()) {
      for (const bool add : {false, true}) {
        constexpr int64_t kB = 3, kT = 100, kC = 40, kV = 37;
        Bench bench(2, scratch);
        const Borders borders(rng, kB, kT);
        Tensor starts = Tensor::Ints(borders.starts);
        std::vector<int32_t> ids;
        for (int64_t i = 0; i < kB * kT; ++i) ids.push_back(static_cast<int32_t>(rng.Below(kV)));
        Tensor tokens = Tensor::Ints(ids), wte = Tensor::Random(rng, dtype, kV * kC);
        Tensor wpe = Tensor::Random(rng, dtype, kT * kC), x(dtype, kB * kT * kC);
        Tensor dx = Tensor::Random(rng, dtype, x.size()), dwte(dtype, kV * kC);
        Tensor dwpe = Tensor::Random(rng, dtype, kT * kC);
        Doubles want(static_cast<size_t>(x.size())), want_te(static_cast<size_t>(kV * kC));
        Doubles want_pe = add ? dwpe.values() : Doubles(static_cast<size_t>(kT * kC));
        for (int64_t row = 0; row < kB * kT; ++row) {
          const auto at = static_cast<size_t>(row);
          const int64_t position = row % kT - borders.starts[at];
          for (int64_t c = 0; c < kC; ++c) {
            want[static_cast<size_t>(row * kC + c)] =
                wte[ids[at] * kC + c] + wpe[position * kC + c];
            want_te[static_cast<size_t>(ids[at] * kC + c)] += dx[row * kC + c];
            want_pe[static_cast<size_t>(position * kC + c)] += dx[row * kC + c];
          }
        }
        bench.Run(KernelId::kEmbedForward, {kB, kT, kC, kV}, {&tokens, &wte, &wpe, &x, &starts});
        bench.Run(KernelId::kEmbedBackward, {kB, kT, kC, kV},
                  {&tokens, &dx, &dwte, &dwpe, nullptr, &starts}, add ? kAccumulate : kNoFlags);
        CheckAllClose(x, want, 0x1p-22, "x");
        // Up to 300 additions in fp32, rounded to the dtype once.
        constexpr double kAdditions = 300 * 60 * 0x1p-24 / 8;
        CheckAllClose(dwte, want_te, kAdditions, "dwte");
        CheckAllClose(dwpe, want_pe, kAdditions, "dwpe");
      }
    }
  }
}

// One document a row is what kernels do that are told of none.
TEST_CASE("attention within documents that fill their rows: the same bits as without") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  const AttentionShape s(2, 300, 4, 2, 16);
  Tensor starts = Tensor::Ints(std::vector<int32_t>(static_cast<size_t>(s.B * s.T), 0));
  Tensor qkv = Tensor::Random(rng, Dtype::kF32, s.qkv_size()),
         dout = Tensor::Random(rng, Dtype::kF32, s.out_size());
  Tensor out(Dtype::kF32, s.out_size()), lse(Dtype::kF32, s.B * s.H * s.T),
      dqkv(Dtype::kF32, qkv.size());
  Tensor out2 = out, lse2 = lse, dqkv2 = dqkv;
  bench.Run(KernelId::kAttentionForward, s.dims(), {&qkv, &out, &lse});
  bench.Run(KernelId::kAttentionForward, s.dims(), {&qkv, &out2, &lse2, nullptr, &starts});
  bench.Run(KernelId::kAttentionBackward, s.dims(), {&dout, &qkv, &out, &lse, &dqkv});
  bench.Run(KernelId::kAttentionBackward, s.dims(),
            {&dout, &qkv, &out, &lse, &dqkv2, nullptr, &starts});
  CHECK(out2 == out);
  CHECK(lse2 == lse);
  CHECK(dqkv2 == dqkv);
}

}  // namespace
}  // namespace zeroplan::kernel_test
