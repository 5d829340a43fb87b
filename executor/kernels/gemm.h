// Matrix products for the CPU kernels: Eigen's packed panels and micro-kernel, with the packing
// buffers in a thread's scratch, so that nothing is allocated.
//
// Legend: M, K, N as in c_MN += a_MK * b_KN.
#pragma once

#include <cstdint>

#include "executor/kernels/kernel_util.h"

namespace zeroplan {

// An fp32 operand: element (row, column) at data[row * stride + column], or with `transposed` at
// data[column * stride + row].
struct FloatMatrix {
  const float* data;
  int64_t stride;
  bool transposed = false;
};

// fp32 scratch that TileGemm packs operands into.
inline constexpr int64_t kPackFloats = 512 * 1024;

// c_MN += alpha * a_MK * b_KN on the calling thread, c row-major with `c_stride`. Each element is
// summed in an order that depends on K alone, as long as the c given here starts at a multiple of
// kColumnAlign columns and kRowAlign rows of the whole matrix and ends at one (or at the matrix'
// edge). REQUIRES: pack_floats >= 64 * 1024.
void TileGemm(int64_t M, int64_t N, int64_t K, float alpha, const FloatMatrix& a,
              const FloatMatrix& b, float* c, int64_t c_stride, float* pack,
              int64_t pack_floats = kPackFloats);
inline constexpr int64_t kColumnAlign = 48;  // Eigen's tallest micro-kernel: three AVX-512 vectors
inline constexpr int64_t kRowAlign = 16;

// An operand of any dtype, of a kernel's argument.
struct ArgMatrix {
  const KernelArg& arg;
  int64_t stride;
  bool transposed = false;
};
// The value of c that the product is added to: nothing, or what is there (accumulate), or bias_N,
// and residual_MN (lying as c).
struct GemmStart {
  bool accumulate = false;
  const KernelArg& bias = kAbsent;
  const KernelArg& residual = kAbsent;
};
// What becomes of the fp32 sums before they are rounded to c; both lie as c.
struct GemmFinish {
  const KernelArg& gelu = kAbsent;     // gets gelu(c)
  const KernelArg& gelu_of = kAbsent;  // c is multiplied by gelu'(gelu_of)
};
// c_MN = start + a_MK * b_KN, then `finish`, over all threads of the pool; c is row-major and
// dense.
void ParallelGemm(ThreadPool& pool, int64_t M, int64_t N, int64_t K, const ArgMatrix& a,
                  const ArgMatrix& b, const KernelArg& c, const GemmStart& start,
                  const GemmFinish& finish = {});

}  // namespace zeroplan
