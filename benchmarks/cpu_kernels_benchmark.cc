// Rates of the CPU kernels on a GPT of about 10M parameters, and of plain Eigen products of the
// same shapes on the same threads.
//
//   cpu_kernels_benchmark [threads] [fp32|bf16|fp16]
//
// Hardware: any CPU; memory: about 300 MB; time: some 20 seconds a dtype on two cores. The last
// lines add the kernels of one training step up: all GEMM FLOPs over the time of all kernels,
// beside the rate of Eigen alone.
//
// Legend: B micro-batch, T sequence, C hidden, H heads, V vocabulary, M = B*T rows.
#include <fmt/format.h>

#define EIGEN_DONT_PARALLELIZE
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <Eigen/Core>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "core/base/timing.h"
#include "core/program/step_state.h"
#include "executor/kernels/convert.h"
#include "executor/kernels/kernel_call.h"
#include "executor/kernels/thread_pool.h"

namespace zeroplan {
namespace {

constexpr int64_t kB = 8, kT = 256, kC = 384, kH = 6, kLayers = 6, kV = 256, kM = kB * kT;
// A 10M-parameter model's worth of AdamW.
constexpr int64_t kParams = kLayers * 12 * kC * kC + (kV + kT) * kC;

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The median time of a call, over at least 0.3 s.
double MedianSeconds(const std::function<void()>& fn) {
  fn();
  std::vector<double> times;
  for (double total = 0; total < 0.3 || times.size() < 5; total += times.back()) {
    const double start = Seconds();
    fn();
    times.push_back(Seconds() - start);
  }
  return Median(std::move(times));
}

class Benchmark {
 public:
  Benchmark(int threads, Dtype dtype) : pool_(threads), dtype_(dtype) {
    state_.lr = 1e-4f;
    program_.setup.optimizer.weight_decay = 0.1;
    program_.layout.tensors = std::make_shared<std::vector<ParamTensor>>(
        std::vector<ParamTensor>{{{.name = "all",
                                   .shape = {kParams, 1},
                                   .decay = true,
                                   .init_std = 0.02f,
                                   .unpadded_rows = kParams}}});
    program_.layout.units.push_back({.layer = 0, .slots = {{0, 0, kParams}}});
    fmt::print("{} threads, {}\n{:<34}{:>6}{:>10}{:>10}{:>8}{:>10}\n", threads, DtypeName(dtype),
               "kernel", "a step", "ms", "GFLOP/s", "GB/s", "Eigen");
  }

  KernelArg P(int64_t n) { return Random(dtype_, n); }
  KernelArg F32(int64_t n) { return Random(Dtype::kF32, n); }
  KernelArg Blocks(Dtype kind, int64_t n) {
    blocks_.emplace_back(StoredBytes(kind, static_cast<uint64_t>(n)));
    return {blocks_.back().data(), blocks_.back().size(), kind};
  }
  KernelArg State() { return {&state_, sizeof(state_), Dtype::kU8}; }
  KernelArg Ints(int64_t n) {
    blocks_.emplace_back(static_cast<size_t>(n) * 4);
    auto* ids = reinterpret_cast<int32_t*>(blocks_.back().data());
    for (int64_t i = 0; i < n; ++i) ids[i] = static_cast<int32_t>(random_() % kV);
    return {ids, static_cast<uint64_t>(n) * 4, Dtype::kI32};
  }

  // `count`: launches a training step. M, N, K: the Eigen product to compare with, 0 for none.
  void Row(const std::string& note, int count, KernelId id, KernelDims dims,
           std::vector<KernelArg> args, int flags = 0, std::array<int64_t, 3> MNK = {}) {
    const KernelContext context{&program_, 0, 1, &pool_};
    const double seconds = MedianSeconds([&] {
      CpuKernels().rows[static_cast<size_t>(id)](
          {id, static_cast<uint8_t>(flags), dims, args, context, UsualScalars(id)});
    });
    double bytes = 0;
    for (size_t i = 0; i < args.size(); ++i) {
      const ArgMode mode = AccessMode(id, static_cast<int>(i), static_cast<uint8_t>(flags));
      bytes +=
          static_cast<double>(args[i].bytes) * ((Reads(mode) ? 1 : 0) + (Writes(mode) ? 1 : 0));
    }
    const double flops = KernelInfo(id).flops(dims);
    std::string eigen;
    if (MNK[0] != 0) {
      const double eigen_seconds = EigenSeconds(MNK[0], MNK[1], MNK[2]);
      eigen = fmt::format("{:.1f}", flops / eigen_seconds / 1e9);
      gemm_flops_ += count * flops;
      gemm_seconds_ += count * seconds;
      eigen_seconds_ += count * eigen_seconds;
    } else if (id == KernelId::kAttentionForward || id == KernelId::kAttentionBackward) {
      attention_flops_ += count * flops;
    }
    step_seconds_ += count * seconds;
    fmt::print("{:<34}{:>6}{:>10.3f}{:>10.1f}{:>8.1f}{:>10}\n",
               fmt::format("{} {}", KernelInfo(id).name, note), count, seconds * 1e3,
               flops / seconds / 1e9, bytes / seconds / 1e9, eigen);
  }

  void Summary() {
    const double rate = gemm_flops_ / step_seconds_, eigen = gemm_flops_ / eigen_seconds_;
    fmt::print("GEMM kernels {:.1f} GFLOP/s, plain Eigen {:.1f} ({:.0f} %)\n",
               gemm_flops_ / gemm_seconds_ / 1e9, eigen / 1e9,
               100 * gemm_flops_ / gemm_seconds_ / eigen);
    fmt::print(
        "a step {:.1f} ms: {:.1f} GFLOP/s of GEMM, {:.0f} % of plain Eigen; with attention "
        "{:.1f} ({:.0f} %)\n\n",
        step_seconds_ * 1e3, rate / 1e9, 100 * rate / eigen,
        (gemm_flops_ + attention_flops_) / step_seconds_ / 1e9,
        100 * (gemm_flops_ + attention_flops_) / step_seconds_ / eigen);
  }

 private:
  KernelArg Random(Dtype dtype, int64_t n) {
    const uint64_t bytes = static_cast<uint64_t>(n) * DtypeBytes(dtype);
    blocks_.emplace_back(bytes);
    for (int64_t i = 0; i < n; ++i) {
      const auto unit = static_cast<float>(random_()) * 0x1p-32f;
      WriteScalar(dtype, blocks_.back().data(), i, 0.5f + unit);
    }
    return {blocks_.back().data(), bytes, dtype};
  }

  // c_MN = a_MK * b_KN in fp32, rows split over the threads.
  double EigenSeconds(int64_t M, int64_t N, int64_t K) {
    using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    const Matrix a = Matrix::Random(M, K), b = Matrix::Random(K, N);
    Matrix c(M, N);
    const int64_t threads = pool_.threads();
    return MedianSeconds([&] {
      pool_.ParallelFor(threads, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t part = begin; part < end; ++part) {
          const int64_t first = part * M / threads, rows = (part + 1) * M / threads - first;
          c.middleRows(first, rows).noalias() = a.middleRows(first, rows) * b;
        }
      });
    });
  }

  ThreadPool pool_;
  Dtype dtype_;
  Program program_;
  StepState state_;
  std::minstd_rand random_{1};
  std::deque<std::vector<char>> blocks_;  // a deque: arguments point into its blocks
  double gemm_flops_ = 0, gemm_seconds_ = 0, eigen_seconds_ = 0;
  double attention_flops_ = 0, step_seconds_ = 0;
};

void Matmul(Benchmark& b, const std::string& name, int layers, int64_t K, int64_t N, bool head) {
  const int flags = head ? kTransposed : 0;
  KernelArg a = b.P(kM * K), w = b.P(K * N), y = b.P(kM * N), bias = b.P(N);
  if (head) bias = {};
  const KernelArg residual = name == "proj" || name == "fc_proj" ? b.P(kM * N) : KernelArg{};
  b.Row(name, layers, KernelId::kMatmulForward, {kM, K, N}, {a, w, bias, residual, y}, flags,
        {kM, N, K});
  b.Row(name, layers, KernelId::kMatmulBackwardData, {kM, K, N}, {y, w, a}, flags, {kM, K, N});
  b.Row(name, layers, KernelId::kMatmulBackwardWeight, {kM, K, N}, {a, y, w, bias}, flags,
        {K, N, kM});
}

void RunAll(int threads, Dtype dtype) {
  Benchmark b(threads, dtype);
  Matmul(b, "qkv", kLayers, kC, 3 * kC, false);
  Matmul(b, "proj", kLayers, kC, kC, false);
  Matmul(b, "fc", kLayers, kC, 4 * kC, false);
  Matmul(b, "fc_proj", kLayers, 4 * kC, kC, false);
  Matmul(b, "lm_head", 1, kC, kV, true);

  KernelArg qkv = b.P(kM * 3 * kC), out = b.P(kM * kC), lse = b.F32(kB * kH * kT);
  const KernelDims attention = {kB, kT, kH, kH, kC / kH};
  b.Row("", kLayers, KernelId::kAttentionForward, attention, {qkv, out, lse});
  b.Row("", kLayers, KernelId::kAttentionBackward, attention,
        {b.P(kM * kC), qkv, out, lse, b.P(kM * 3 * kC)});

  KernelArg x = b.P(kM * kC), y = b.P(kM * kC), w = b.P(kC), stats = b.F32(2 * kM);
  b.Row("", 2 * kLayers + 1, KernelId::kLayerNormForward, {kM, kC}, {x, w, w, y, stats});
  b.Row("", 2 * kLayers + 1, KernelId::kLayerNormBackward, {kM, kC},
        {y, x, w, stats, b.P(kM * kC), b.P(kC), b.P(kC)}, kAddToOutput);
  KernelArg u = b.P(kM * 4 * kC), v = b.P(kM * 4 * kC);
  b.Row("", kLayers, KernelId::kGeluForward, {kM * 4 * kC}, {u, v});
  b.Row("", kLayers, KernelId::kGeluBackward, {kM * 4 * kC}, {u, v});

  KernelArg tokens = b.Ints(kM), wte = b.P(kV * kC), wpe = b.P(kT * kC);
  b.Row("", 1, KernelId::kEmbedForward, {kB, kT, kC, kV}, {tokens, wte, wpe, x});
  b.Row("", 1, KernelId::kEmbedBackward, {kB, kT, kC, kV}, {tokens, x, wte, wpe});
  b.Row("", 1, KernelId::kCrossEntropy, {kM, kV, kV}, {b.P(kM * kV), tokens, b.State(), b.F32(kM)});
  KernelArg grad = b.P(kParams), master = b.F32(kParams), m = b.F32(kParams), s = b.F32(kParams);
  b.Row("", 1, KernelId::kNormSq, {kParams}, {grad, b.State()});
  const KernelArg param = dtype == Dtype::kF32 ? KernelArg{} : b.P(kParams);
  b.Row("", 1, KernelId::kAdamW, {kParams, 0, 0}, {grad, b.State(), master, m, s, param});
  b.Summary();
  b.Row("(not in a step)", 0, KernelId::kConvert, {kParams}, {grad, m});
  // What quantized collectives send, beside a copy.
  const KernelArg copy = b.P(kParams);
  b.Row("(a copy)", 0, KernelId::kConvert, {kParams}, {grad, copy});
  for (const Dtype kind : {Dtype::kInt8Blocks, Dtype::kInt4Blocks}) {
    const int64_t n = kParams / 8192 * 8192;
    const KernelArg blocks = b.Blocks(kind, n);
    b.Row(fmt::format("(to {})", DtypeName(kind)), 0, KernelId::kConvert, {n}, {grad, blocks});
    b.Row(fmt::format("(of {})", DtypeName(kind)), 0, KernelId::kConvert, {n}, {blocks, copy});
    b.Row(fmt::format("(8 {})", DtypeName(kind)), 0, KernelId::kSumParts, {n / 8, 8},
          {blocks, copy});
  }
  b.Row("(not in a step)", 0, KernelId::kFill, {kParams * 4}, {m});
  b.Row("(not in a step)", 0, KernelId::kParamInit, {kParams, 0, 0}, {m});
}

}  // namespace
}  // namespace zeroplan

int main(int argc, char** argv) {
  const auto cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int threads = argc > 1 ? std::max(1, std::atoi(argv[1])) : cores;
  if (argc > 2) {
    zeroplan::RunAll(threads, zeroplan::ParseDtype(argv[2], "dtype"));
    return 0;
  }
  zeroplan::RunAll(threads, zeroplan::Dtype::kF32);
  zeroplan::RunAll(threads, zeroplan::Dtype::kBF16);
}
