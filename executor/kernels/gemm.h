// Matmuls for the CPU kernels: Eigen's packed panels and micro-kernel, with the packing buffers in
// a thread's scratch, so that nothing is allocated.
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

// c_MN += alpha * a_MK * b_KN on the calling thread, c row-major with `c_stride`. The order of each
// element's sum depends on K alone, as long as this part of c starts at a multiple of kColumnAlign
// columns and kRowAlign rows of the whole matrix and ends at one (or at the matrix' edge).
// REQUIRES: pack_floats >= 64 * 1024.
void TileGemm(int64_t M, int64_t N, int64_t K, float alpha, const FloatMatrix& a,
              const FloatMatrix& b, float* c, int64_t c_stride, float* pack,
              int64_t pack_floats = kPackFloats);
inline constexpr int64_t kColumnAlign = 48;  // Eigen's tallest micro-kernel: three AVX-512 vectors
inline constexpr int64_t kRowAlign = 16;

// An operand of any dtype: a kernel's argument.
struct ArgMatrix {
  const KernelArg& arg;
  int64_t stride;
  bool transposed = false;
};
// The value of c to which the matmul is added: nothing, or the present value (accumulate), or
// bias_N, and residual_MN (with the layout of c).
struct GemmStart {
  bool accumulate = false;
  const KernelArg& bias = kAbsent;
  const KernelArg& residual = kAbsent;
  float scale = 1;       // factor of the matmul
  int64_t c_stride = 0;  // elements from one row of c to the next; 0: N
};
// Operations on the fp32 sums before they are rounded to c; both arguments have the layout of c.
struct GemmFinish {
  const KernelArg& gelu = kAbsent;     // receives gelu(c)
  const KernelArg& gelu_of = kAbsent;  // c is multiplied by gelu'(gelu_of)
};
// c_MN = start + scale * a_MK * b_KN, then `finish`, over all threads of the pool; c is row-major.
void ParallelGemm(ThreadPool& pool, int64_t M, int64_t N, int64_t K, const ArgMatrix& a,
                  const ArgMatrix& b, const KernelArg& c, const GemmStart& start,
                  const GemmFinish& finish = {});

// Multiplication of one row with a matrix, for a single token's layers. Bound by reading the
// matrix, which a packed matmul (gemm.h) would read, write and read again.

// Whether RowProduct supports the arguments: all that are present are fp32.
bool IsRowProduct(int64_t M, const KernelArg& a, const KernelArg& w, const KernelArg& bias,
                  const KernelArg& residual, const KernelArg& y);

// y_N = a_K * w (+ bias_N) (+ residual_N); w is [K,N], with `transposed` [N,K]. The order of each
// element's sum depends on K alone, whatever the number of threads. REQUIRES: IsRowProduct.
void RowProduct(ThreadPool& pool, int64_t N, int64_t K, const KernelArg& a, const KernelArg& w,
                bool transposed, const KernelArg& bias, const KernelArg& residual,
                const KernelArg& y);

// GELU (tanh form) of fp32 values, for the kernels that apply it.

// y_n = gelu(x_n). May be in place.
void Gelu(const float* x_n, int64_t n, float* y_n);
// d_n = d_in_n * gelu'(x_n). `d_n` may be `d_in_n`.
void GeluGradient(const float* x_n, const float* d_in_n, int64_t n, float* d_n);

}  // namespace zeroplan
