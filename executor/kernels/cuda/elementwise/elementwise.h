// Launchers of kernels that treat each element on its own. Any float dtypes; sums in fp32.
//
// Legend: M rows, T sequence, C hidden, V vocabulary; R rows, N columns, F
// ffn. Dense, row-major.
#pragma once

#include "executor/kernels/cuda/float_array.h"
#include "executor/kernels/head_exchange.h"

namespace zeroplan {
struct Dynamic8Block;
struct Nf4Block;
struct StepState;
}  // namespace zeroplan

namespace zeroplan::cuda {

// dst = src, or dst += src.
void LaunchConvert(const FloatArray& src_n, const FloatArray& dst_n, int64_t n, bool add,
                   cudaStream_t stream);
// Quantizes x to NF4 blocks (core/base/nf4.h); elements past n count as 0.
void LaunchQuantizeNf4(const float* x_n, Nf4Block* blocks, int64_t n, cudaStream_t stream);
// dst = the first n elements of blocks. Fastest if dst is aligned to 16 bytes.
void LaunchDequantizeNf4(const Nf4Block* blocks, const FloatArray& dst_n, int64_t n,
                         cudaStream_t stream);
// Blocks of int8 or int4, chosen by `kind` (core/base/int_blocks.h): quantizes src; sums `parts`
// arrays of n elements that are stored one behind the other, and writes the sum to dst, adds it, or
// quantizes it. REQUIRES: n is a multiple of kIntBlock, and all arrays are aligned to 16 bytes.
void LaunchQuantizeInt(const FloatArray& src_n, void* blocks, Dtype kind, int64_t n,
                       cudaStream_t stream);
void LaunchSumInt(const void* parts_Pn, Dtype kind, int64_t parts, const FloatArray& dst_n,
                  int64_t n, bool add, cudaStream_t stream);
void LaunchSumToInt(const void* parts_Pn, Dtype kind, int64_t parts, void* dst_n, int64_t n,
                    cudaStream_t stream);
// Splits into the halves of core/base/split_master.h, or with rest_n null makes the upper one
// alone.
void LaunchSplitMaster(const float* master_n, uint16_t* param_n, int16_t* rest_n, int64_t n,
                       cudaStream_t stream);
void LaunchJoinMaster(const uint16_t* param_n, const int16_t* rest_n, float* master_n, int64_t n,
                      cudaStream_t stream);
// Quantizes src to blocks of core/base/dynamic8.h, and back to dst. REQUIRES: n is a multiple of a
// group's elements, and all arrays are aligned to 16 bytes.
void LaunchToDynamic8(const float* src_n, Dynamic8Block* blocks, bool has_sign, int64_t n,
                      cudaStream_t stream);
void LaunchFromDynamic8(const Dynamic8Block* blocks, bool has_sign, float* dst_n, int64_t n,
                        cudaStream_t stream);
// row = x[state->position]; `rows` of x. A position outside of x ends the launch with an error.
void LaunchSelectRow(const FloatArray& x, const StepState* state, const FloatArray& row_C,
                     int64_t rows, int64_t C, cudaStream_t stream);
// x[m] = wte[token of m] (+ wpe[m % T], or wpe[m % T - starts[m]] if starts is not null). A token
// outside [0, V) ends the launch with an error.
void LaunchEmbedForward(const int32_t* tokens_M, const int32_t* starts_M, const FloatArray& wte,
                        const FloatArray& wpe, const FloatArray& x_MC, int64_t M, int64_t T,
                        int64_t C, int64_t V, cudaStream_t stream);

// GELU (tanh form) and its gradient: on activations, and on the fp32 sums of a matmul if the
// library lacks such an epilogue, or has a slower one. Fastest if all arrays are aligned to 16
// bytes and share a dtype, fp32 sums excepted. `amax`, if not null, is raised to the largest
// magnitude in y (in dx).

// y = gelu(x + bias), pre = x + bias, from x before it is rounded to pre's dtype. bias and pre may
// be absent; y may be x.
void LaunchGeluForward(const FloatArray& x_RN, const FloatArray& bias_N, const FloatArray& pre_RN,
                       const FloatArray& y_RN, int64_t R, int64_t N, cudaStream_t stream,
                       float* amax = nullptr);
// dx = dy * gelu'(pre). dx may be dy.
void LaunchGeluBackward(const FloatArray& dy_n, const FloatArray& pre_n, const FloatArray& dx_n,
                        int64_t n, cudaStream_t stream, float* amax = nullptr);

// y = silu(gate) * up, gate and up the two halves of a row of gu; and its gradient, which replaces
// gu. Fastest if F is a multiple of 8. `amax` as in GELU, of y and of gu.
void LaunchSwiGluForward(const FloatArray& gu_M2F, const FloatArray& y_MF, int64_t M, int64_t F,
                         cudaStream_t stream, float* amax = nullptr);
void LaunchSwiGluBackward(const FloatArray& dy_MF, const FloatArray& gu_M2F, int64_t M, int64_t F,
                          cudaStream_t stream, float* amax = nullptr);

// y = x with dropout p (executor/kernels/dropout.h), or y += that. Fastest if K is a multiple of 8.
void LaunchDropout(const FloatArray& x_MK, const int32_t* number_2, const FloatArray& y_MK,
                   int64_t M, int64_t K, int64_t T, int64_t tensor, float p, uint64_t seed,
                   bool add, cudaStream_t stream);

// Copies between rows with all heads and the parts that ranks exchange, of one dtype. Heads that
// several parts have are summed in fp32. Fastest if D is a multiple of 8.
void LaunchPackHeads(const HeadExchange& s, const FloatArray& x_BTN, const FloatArray& parts_BSTn,
                     cudaStream_t stream);
void LaunchUnpackHeads(const HeadExchange& s, const FloatArray& parts_BSTn, const FloatArray& x_BTN,
                       cudaStream_t stream);

}  // namespace zeroplan::cuda
