#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/elementwise/elementwise.h"
#include "executor/kernels/dropout.h"

namespace zeroplan::cuda {
namespace {

constexpr int kThreads = 256;

struct DropShape {
  uint32_t M, T, tensor;
  int64_t K;
};

// threadIdx.x and blockIdx.y go over the columns of a row, threadIdx.y over rows; W columns a
// thread, which lie in one group of random words.
template <bool kAdd, int W, typename Array>
__global__ void __launch_bounds__(kThreads)
    DropoutKernel(Array x_MK, const int32_t* number_2, Array y_MK, DropShape shape, DropRule rule,
                  uint64_t seed) {
  static_assert(W == 1 || W == kDropColumns);
  const uint32_t m = blockIdx.x * blockDim.y + threadIdx.y;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * W;
  if (m >= shape.M || c >= shape.K) return;
  const int64_t at = m * shape.K + c;
  float x[W], y[W];
  x_MK.Load(at, x);
  if constexpr (kAdd) y_MK.Load(at, y);
  const PhiloxBlock words = DropWords(seed, SequenceNumber(number_2) + m / shape.T, m % shape.T,
                                      shape.tensor, static_cast<uint32_t>(c / kDropColumns));
#pragma unroll
  for (int e = 0; e < W; ++e) {
    const int64_t in_group = W == 1 ? c % kDropColumns : e;
    const float kept = Keeps(rule, words, in_group) ? x[e] * rule.scale : 0.0f;
    y[e] = kAdd ? y[e] + kept : kept;
  }
  y_MK.Store(at, y);
}

template <int W, typename Array>
void LaunchWide(Array x_MK, const int32_t* number_2, Array y_MK, const DropShape& shape,
                const DropRule& rule, uint64_t seed, bool add, cudaStream_t stream) {
  const int64_t columns = CeilDiv64(shape.K, W);  // threads a row
  const auto wide =
      static_cast<unsigned>(columns < kThreads ? CeilDiv64(columns, 32) * 32 : kThreads);
  const dim3 block(wide, kThreads / wide);
  const dim3 grid(GridOf(shape.M, block.y), GridOf(columns, wide));
  if (add) {
    DropoutKernel<true, W><<<grid, block, 0, stream>>>(x_MK, number_2, y_MK, shape, rule, seed);
  } else {
    DropoutKernel<false, W><<<grid, block, 0, stream>>>(x_MK, number_2, y_MK, shape, rule, seed);
  }
}

}  // namespace

void LaunchDropout(const FloatArray& x_MK, const int32_t* number_2, const FloatArray& y_MK,
                   int64_t M, int64_t K, int64_t T, int64_t tensor, float p, uint64_t seed,
                   bool add, cudaStream_t stream) {
  if (M == 0 || K == 0) return;
  const DropShape shape = {static_cast<uint32_t>(M), static_cast<uint32_t>(T),
                           static_cast<uint32_t>(tensor), K};
  const DropRule rule = DropRuleOf(p);
  if (K % kVector != 0 || x_MK.dtype != y_MK.dtype || !Aligned(x_MK.data) || !Aligned(y_MK.data)) {
    LaunchWide<1>(Runtime(x_MK), number_2, Runtime(y_MK), shape, rule, seed, add, stream);
    return;
  }
  static_assert(kVector == kDropColumns);
  WithFloatType(x_MK.dtype, [&](auto tag) {
    using A = Typed<typename decltype(tag)::type>;
    LaunchWide<kVector>(A(x_MK), number_2, A(y_MK), shape, rule, seed, add, stream);
  });
}

}  // namespace zeroplan::cuda
