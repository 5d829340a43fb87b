// Rows of products of eight bits and of what they take. Legend: M rows, C hidden, F ffn, N columns.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "benchmarks/cuda_rows.h"
#include "core/base/fp8.h"

namespace zeroplan::fp8_rows {

using namespace cuda_rows;
using enum KernelId;

inline Spec E4M3(int64_t n) { return {.dtype = Dtype::kE4M3, .n = n}; }

// Scales of rows of `cols`, in blocks of 1 or of kFp8Block rows.
inline Spec BlockScales(int64_t block_rows, int64_t rows, int64_t cols) {
  return F32(block_rows == 1 ? cols / kFp8Block * rows
                             : rows / kFp8Block * Fp8BlockScalesRow(cols));
}

// The product in bf16, and in eight bits with one scale a tensor and with scales of blocks.
// `adds`: a gradient of a weight, into fp32.
inline void RunProduct(Benchmark& benchmark, const Model& m, const std::string& note, int64_t M,
                       int64_t K, int64_t N, bool adds) {
  const int flags = adds ? kAccumulate : 0;
  const Spec y = adds ? F32(M * N) : P(M * N);
  if (adds) {
    benchmark.Run(m, {.note = note + " bf16",
                      .id = kMatmulBackwardWeight,
                      .dims = {K, M, N},
                      .args = {P(M * K), P(N * K), y},
                      .flags = flags,
                      .products = true});
  } else {
    benchmark.Run(m, {.note = note + " bf16",
                      .id = kMatmulForward,
                      .dims = {M, K, N},
                      .args = {P(M * K), P(N * K), Absent(), Absent(), y},
                      .flags = kTransposed,
                      .products = true});
  }
  const auto row = [&](const char* what, int64_t rows_a, int64_t rows_b, int64_t fast) {
    const auto scales = [&](int64_t block_rows, int64_t rows) {
      return block_rows == 0 ? F32(1) : BlockScales(block_rows, rows, K);
    };
    benchmark.Run(m, {.note = note + what,
                      .id = kFp8Matmul,
                      .dims = {M, K, N, rows_a, rows_b, fast},
                      .args = {E4M3(M * K), scales(rows_a, M), E4M3(N * K), scales(rows_b, N),
                               Absent(), Absent(), y},
                      .flags = flags,
                      .products = true});
  };
  row(" fast", 0, 0, 1);
  row("", 0, 0, 0);
  row(" blocks", 1, adds ? 1 : kFp8Block, 0);
}

inline void Run(Benchmark& benchmark, const Model& m, int64_t N, int64_t F) {
  const int64_t M = m.M(), C = m.C;
  const auto row = [&](const char* note, KernelId id, const KernelDims& dims,
                       std::vector<Spec> args, int flags = 0) {
    benchmark.Run(m,
                  {.note = note, .id = id, .dims = dims, .args = std::move(args), .flags = flags});
  };
  // Without and with the largest magnitude of what is written.
  const auto both = [&](KernelId id, const KernelDims& dims, std::vector<Spec> args,
                        int flags = 0) {
    row("", id, dims, args, flags);
    args.resize(static_cast<size_t>(KernelInfo(id).magnitude.argument), Absent());
    args.push_back(F32(1));
    row("with amax", id, dims, std::move(args), flags);
  };
  both(kRmsNormForward, {M, C}, {P(M * C), P(C), P(M * C), F32(M)});
  both(kRmsNormBackward, {M, C}, {P(M * C), P(M * C), P(C), F32(M), P(M * C), F32(C)},
       kAccumulate | kAddToOutput);
  both(kLayerNormForward, {M, C}, {P(M * C), P(C), P(C), P(M * C), F32(2 * M)});
  both(kLayerNormBackward, {M, C}, {P(M * C), P(M * C), P(C), F32(2 * M), P(M * C), F32(C), F32(C)},
       kAccumulate | kAddToOutput);
  both(kSwiGluForward, {M, F}, {P(2 * M * F), P(M * F)});
  both(kSwiGluBackward, {M, F}, {P(M * F), P(2 * M * F)});
  both(kGeluForward, {M * F}, {P(M * F), P(M * F)});
  both(kGeluBackward, {M * F}, {P(M * F), P(M * F)});
  for (const int64_t columns : {C, F}) {
    const int64_t n = M * columns;
    row("", kLargestMagnitude, {n}, {P(n), F32(1)});
    const KernelDims tensor = {M, columns, 0};
    row("both", kQuantize, tensor, {P(n), F32(1), E4M3(n), F32(1), E4M3(n)});
    row("transposed", kQuantize, tensor, {P(n), F32(1), E4M3(n), F32(1)});
    row("as it lies", kQuantize, tensor, {P(n), F32(1), Absent(), Absent(), E4M3(n), F32(1)});
    row("codes transposed", kQuantize, tensor, {E4M3(n), Absent(), E4M3(n)});
    row("blocks, both", kQuantize, {M, columns, 1},
        {P(n), Absent(), E4M3(n), BlockScales(1, columns, M), E4M3(n), BlockScales(1, M, columns)});
    row("blocks of a weight", kQuantize, {C, columns, kFp8Block},
        {P(C * columns), Absent(), E4M3(C * columns), BlockScales(kFp8Block, columns, C)});
  }
  const auto linear = [&](const char* name, int64_t in, int64_t out) {
    RunProduct(benchmark, m, std::string(name) + " forward", M, in, out, false);
    RunProduct(benchmark, m, std::string(name) + " data", M, out, in, false);
    RunProduct(benchmark, m, std::string(name) + " weight", out, M, in, true);
  };
  linear("qkv", C, N);
  linear("gate_up", C, 2 * F);
  linear("down", F, C);
}

}  // namespace zeroplan::fp8_rows
