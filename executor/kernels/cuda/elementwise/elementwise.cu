#include "core/program/step_state.h"
#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/elementwise/elementwise.h"

namespace zeroplan::cuda {
namespace {

constexpr int kThreads = 256;

struct CopyOp {
  __device__ float operator()(float x, float) const { return x; }
};
struct AddOp {
  __device__ float operator()(float x, float old) const { return old + x; }
};

// dst[i] = op(src[i], dst[i]), W elements a thread; the last thread takes the rest one by one.
template <typename Op, bool kReadsDst, int W, typename Src, typename Dst>
__global__ void __launch_bounds__(kThreads) MapKernel(Src src, Dst dst, int64_t n) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * W;
  const Op op;
  if (i + W <= n) {
    float x[W], old[W] = {};
    src.Load(i, x);
    if constexpr (kReadsDst) dst.Load(i, old);
#pragma unroll
    for (int e = 0; e < W; ++e) x[e] = op(x[e], old[e]);
    dst.Store(i, x);
  } else {
    for (int64_t j = i; j < n; ++j) dst.Set(j, op(src.Get(j), kReadsDst ? dst.Get(j) : 0.0f));
  }
}

template <typename Op, bool kReadsDst>
void Map(const FloatArray& src, const FloatArray& dst, int64_t n, cudaStream_t stream) {
  if (n == 0) return;
  if (!Aligned(src.data) || !Aligned(dst.data)) {
    MapKernel<Op, kReadsDst, 1>
        <<<GridOf(n, kThreads), kThreads, 0, stream>>>(Runtime(src), Runtime(dst), n);
    return;
  }
  const unsigned grid = GridOf(n, kThreads * kVector);
  if (src.dtype != dst.dtype) {
    MapKernel<Op, kReadsDst, kVector><<<grid, kThreads, 0, stream>>>(Runtime(src), Runtime(dst), n);
    return;
  }
  WithFloatType(src.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    MapKernel<Op, kReadsDst, kVector>
        <<<grid, kThreads, 0, stream>>>(Typed<T>(src), Typed<T>(dst), n);
  });
}

__global__ void __launch_bounds__(kThreads)
    SelectRowKernel(Runtime x, const StepState* state, Runtime row_C, int64_t rows, int64_t C) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t row = state->position;
  if (row < 0 || row >= rows) FailIndex("row", row, 0, rows);
  if (c < C) row_C.Set(c, x.Get(row * C + c));
}

// threadIdx.x and blockIdx.y go over the columns of a row, threadIdx.y over rows.
template <int W, typename Array>
__global__ void __launch_bounds__(kThreads)
    EmbedKernel(const int32_t* tokens_M, const int32_t* starts_M, Array wte, Array wpe,
                bool has_wpe, Array x_MC, int64_t M, int64_t T, int64_t C, int64_t V) {
  const int64_t m = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (m >= M) return;
  const int64_t token = tokens_M[m];
  if (token < 0 || token >= V) FailIndex("token", token, m, V);
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * W;
  if (c >= C) return;
  float x[W];
  wte.Load(token * C + c, x);
  if (has_wpe) {
    float position[W];
    const int64_t t = starts_M == nullptr ? m % T : m % T - starts_M[m];
    wpe.Load(t * C + c, position);
#pragma unroll
    for (int e = 0; e < W; ++e) x[e] += position[e];
  }
  x_MC.Store(m * C + c, x);
}

}  // namespace

void LaunchConvert(const FloatArray& src_n, const FloatArray& dst_n, int64_t n, bool add,
                   cudaStream_t stream) {
  if (add) {
    Map<AddOp, true>(src_n, dst_n, n, stream);
  } else {
    Map<CopyOp, false>(src_n, dst_n, n, stream);
  }
}

void LaunchSelectRow(const FloatArray& x, const StepState* state, const FloatArray& row_C,
                     int64_t rows, int64_t C, cudaStream_t stream) {
  SelectRowKernel<<<GridOf(C, kThreads), kThreads, 0, stream>>>(Runtime(x), state, Runtime(row_C),
                                                                rows, C);
}

void LaunchEmbedForward(const int32_t* tokens_M, const int32_t* starts_M, const FloatArray& wte,
                        const FloatArray& wpe, const FloatArray& x_MC, int64_t M, int64_t T,
                        int64_t C, int64_t V, cudaStream_t stream) {
  const bool vectors = C % kVector == 0 && Aligned(wte.data) && Aligned(wpe.data) &&
                       Aligned(x_MC.data) && wte.dtype == x_MC.dtype &&
                       (wpe.data == nullptr || wte.dtype == wpe.dtype);
  const int64_t columns = vectors ? C / kVector : C;  // threads a row
  const auto x = static_cast<unsigned>(columns < kThreads ? CeilDiv64(columns, 32) * 32 : kThreads);
  const dim3 block(x, kThreads / x);
  const dim3 grid(GridOf(M, block.y), GridOf(columns, x));
  const bool has_wpe = wpe.data != nullptr;
  if (!vectors) {
    EmbedKernel<1><<<grid, block, 0, stream>>>(tokens_M, starts_M, Runtime(wte), Runtime(wpe),
                                               has_wpe, Runtime(x_MC), M, T, C, V);
    return;
  }
  WithFloatType(wte.dtype, [&](auto tag) {
    using A = Typed<typename decltype(tag)::type>;
    EmbedKernel<kVector><<<grid, block, 0, stream>>>(tokens_M, starts_M, A(wte), A(wpe), has_wpe,
                                                     A(x_MC), M, T, C, V);
  });
}

}  // namespace zeroplan::cuda
