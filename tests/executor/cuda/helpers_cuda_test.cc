// Launchers that are no rows of the kernel table: column sums, the end of partial sums, GELU on a
// product's sums, the softmax between batched products. Legend: M rows, N columns, T keys.
#include <cuda_runtime_api.h>

#include <array>

#include "executor/kernels/cuda/attention/attention_kernels.h"
#include "executor/kernels/cuda/cuda_launch.h"
#include "executor/kernels/cuda/elementwise/elementwise.h"
#include "executor/kernels/cuda/gemm/gemm_kernels.h"
#include "tests/executor/kernels/gelu_reference.h"
#include "tests/executor/kernels/kernel_harness.h"

namespace zeroplan::kernel_test {
namespace {

// A copy of a tensor in device memory.
class OnGpu {
 public:
  explicit OnGpu(Tensor& host) : arg_(host.arg()) {
    CheckGpu(cudaMalloc(&data_, arg_.bytes), "cudaMalloc");
    CheckGpu(cudaMemcpy(data_, arg_.data, arg_.bytes, cudaMemcpyDefault), "upload");
    CheckGpu(cudaDeviceSynchronize(), "upload");
  }
  ~OnGpu() { cudaFree(data_); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  cuda::FloatArray array() const { return {data_, arg_.dtype}; }
  void Download(const char* what) {
    CheckGpu(cudaGetLastError(), what);
    CheckGpu(cudaStreamSynchronize(TestLaunch().stream), what);
    CheckGpu(cudaMemcpy(arg_.data, data_, arg_.bytes, cudaMemcpyDefault), what);
  }

 private:
  KernelArg arg_;
  void* data_ = nullptr;
};

TEST_CASE("gpu column sums: with all scratch, little and none") {
  ZEROPLAN_TEST_RNG(rng);
  const cudaStream_t stream = TestLaunch().stream;
  for (Dtype dtype : FloatDtypes()) {
    for (const auto& [M, N] : std::vector<std::array<int64_t, 2>>{{1, 1},
                                                                  {7, 8},
                                                                  {64, 256},
                                                                  {65, 264},
                                                                  {3000, 33},
                                                                  {1000, 1601},
                                                                  {5000, 768},
                                                                  {130, 25600}}) {
      CAPTURE(M);
      CAPTURE(N);
      Tensor x = Tensor::Random(rng, dtype, M * N);
      const Tensor before = Tensor::Random(rng, Dtype::kF32, N);
      Doubles sums(static_cast<size_t>(N)), added = before.values();
      for (int64_t i = 0; i < M * N; ++i) {
        sums[static_cast<size_t>(i % N)] += x[i];
        added[static_cast<size_t>(i % N)] += x[i];
      }
      const uint64_t most = cuda::ColumnSumsScratchBytes(M, N);
      // Partial sums reach a few sqrt(M); each of up to M additions in a row rounds by 2^-24 of it.
      const double slack = (2 * static_cast<double>(M) + 16) * 0x1p-24;
      OnGpu on_gpu(x);
      for (uint64_t bytes : {most, static_cast<uint64_t>(3 * N) * 4, uint64_t{0}}) {
        CAPTURE(bytes);
        Tensor scratch(Dtype::kU8, static_cast<int64_t>(bytes) + 4), out = before, again = before;
        OnGpu scratch_gpu(scratch), out_gpu(out), again_gpu(again);
        void* room = bytes == 0 ? nullptr : scratch_gpu.array().data;
        const auto run = [&](OnGpu& to, bool add) {
          cuda::ColumnSums(on_gpu.array(), M, N, to.array(), add, room, bytes, stream);
        };
        run(out_gpu, true);
        out_gpu.Download("column sums");
        CheckAllClose(out, added, slack, "added");
        run(out_gpu, false);
        run(again_gpu, false);
        out_gpu.Download("column sums");
        again_gpu.Download("column sums");
        CheckAllClose(out, sums, slack, "written");
        CHECK(out == again);
        scratch_gpu.Download("scratch");
        for (int64_t i = 0; i < 4; ++i) {
          CHECK(scratch.arg().as<char>()[static_cast<int64_t>(bytes) + i] == 0);
        }
      }
    }
  }
}

TEST_CASE("gpu partial sums: one output and two") {
  ZEROPLAN_TEST_RNG(rng);
  for (const auto& [parts, N] :
       std::vector<std::array<int64_t, 2>>{{1, 1}, {3, 7}, {264, 1600}, {17, 1601}, {5, 32}}) {
    for (int outputs : {1, 2}) {
      CAPTURE(parts);
      CAPTURE(N);
      CAPTURE(outputs);
      const int64_t columns = outputs * N;
      Tensor partials = Tensor::Random(rng, Dtype::kF32, parts * columns);
      Tensor first = Tensor::Random(rng, Dtype::kF32, N);
      Tensor second = Tensor::Random(rng, Dtype::kBF16, N);
      Doubles want_first = first.values(), want_second = second.values();
      for (int64_t i = 0; i < parts * columns; ++i) {
        const int64_t column = i % columns;
        (column < N ? want_first[static_cast<size_t>(column)]
                    : want_second[static_cast<size_t>(column - N)]) += partials[i];
      }
      OnGpu partials_gpu(partials), first_gpu(first), second_gpu(second);
      cuda::AddPartials(static_cast<const float*>(partials_gpu.array().data), parts, N,
                        first_gpu.array(), outputs == 2 ? second_gpu.array() : cuda::FloatArray{},
                        true, TestLaunch().stream);
      first_gpu.Download("partial sums");
      second_gpu.Download("partial sums");
      const double slack = (2 * static_cast<double>(parts) + 16) * 0x1p-24;
      CheckAllClose(first, want_first, slack, "first");
      CheckAllClose(second, want_second, slack, "second");
    }
  }
}

// The sums may be fp32 or of the results' dtype; rows of 33 and of 12 do without vectors.
TEST_CASE("gpu gelu on sums: bias, kept input, gradient") {
  ZEROPLAN_TEST_RNG(rng);
  const cudaStream_t stream = TestLaunch().stream;
  for (Dtype dtype : FloatDtypes()) {
    for (Dtype sums_dtype : {Dtype::kF32, dtype}) {
      for (const auto& [R, N] : std::vector<std::array<int64_t, 2>>{
               {1, 1}, {3, 7}, {5, 12}, {7, 33}, {130, 64}, {33, 6400}}) {
        CAPTURE(DtypeName(dtype));
        CAPTURE(DtypeName(sums_dtype));
        CAPTURE(R);
        CAPTURE(N);
        Tensor sums = Tensor::Random(rng, sums_dtype, R * N, 3.0);
        Tensor bias = Tensor::Random(rng, dtype, N), pre(dtype, R * N), y(dtype, R * N);
        OnGpu sums_gpu(sums), bias_gpu(bias), pre_gpu(pre), y_gpu(y);
        cuda::LaunchGeluForward(sums_gpu.array(), bias_gpu.array(), pre_gpu.array(), y_gpu.array(),
                                R, N, stream);
        pre_gpu.Download("gelu");
        y_gpu.Download("gelu");
        Doubles want_pre, want_y;
        for (int64_t i = 0; i < R * N; ++i) {
          want_pre.push_back(sums[i] + bias[i % N]);
          want_y.push_back(Gelu(want_pre.back()));
        }
        // Inputs up to about 16: a sum, and an exponent whose error the slope multiplies.
        CheckAllClose(pre, want_pre, 0x1p-19, "pre");
        CheckAllClose(y, want_y, 1e-5, "y");
        Tensor dx(dtype, R * N);
        OnGpu dx_gpu(dx);
        cuda::LaunchGeluBackward(sums_gpu.array(), pre_gpu.array(), dx_gpu.array(), R * N, stream);
        dx_gpu.Download("gelu backward");
        Doubles want_dx;
        for (int64_t i = 0; i < R * N; ++i) want_dx.push_back(sums[i] * GeluSlope(pre[i]));
        CheckAllClose(dx, want_dx, 4e-5, "dx");
      }
    }
  }
}

TEST_CASE("gpu causal softmax, forward and backward") {
  ZEROPLAN_TEST_RNG(rng);
  const cudaStream_t stream = TestLaunch().stream;
  for (Dtype dtype : FloatDtypes()) {
    for (int64_t T : {1, 7, 64, 264, 1000}) {
      CAPTURE(T);
      const int64_t heads = 2, rows = heads * T;
      const float scale = 0.25f;
      Tensor scores = Tensor::Random(rng, dtype, rows * T, 4.0);
      // What lies above the diagonal must not matter.
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t k = r % T + 1; k < T; ++k) scores.Set(r * T + k, NAN);
      }
      Tensor probs = scores, dprobs = Tensor::Random(rng, dtype, rows * T);
      const Tensor dp = dprobs;
      OnGpu probs_gpu(probs), dprobs_gpu(dprobs);
      cuda::LaunchCausalSoftmax(probs_gpu.array(), {}, rows, T, scale, stream);
      probs_gpu.Download("softmax");
      cuda::LaunchCausalSoftmaxBackward(probs_gpu.array(), dprobs_gpu.array(), rows, T, scale,
                                        stream);
      dprobs_gpu.Download("softmax backward");
      for (int64_t r = 0; r < rows; ++r) {
        CAPTURE(r);
        double sum = 0, dot = 0;
        for (int64_t k = 0; k <= r % T; ++k) {
          sum += std::exp(0.25 * scores[r * T + k]);
          dot += probs[r * T + k] * dp[r * T + k];
        }
        for (int64_t k = 0; k < T; ++k) {
          CAPTURE(k);
          const bool visible = k <= r % T;
          const double p = visible ? std::exp(0.25 * scores[r * T + k]) / sum : 0;
          const double ds = visible ? probs[r * T + k] * (dp[r * T + k] - dot) * 0.25 : 0;
          // Exponents up to 4 and sums of numbers below 1: a few roundings.
          REQUIRE(Close(probs[r * T + k], p, dtype, 1e-6));
          REQUIRE(Close(dprobs[r * T + k], ds, dtype, 1e-6));
        }
      }
    }
  }
}

}  // namespace
}  // namespace zeroplan::kernel_test
