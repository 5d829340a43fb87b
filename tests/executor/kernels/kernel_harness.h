// Runs single kernels on tensors of any dtype, for tests that compare them with double-precision
// references: the CPU's, or, compiled with ZEROPLAN_TEST_CUDA, the GPU's on copies of the tensors.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/program/step_state.h"
#include "executor/kernels/convert.h"
#include "executor/kernels/kernel_call.h"
#include "executor/kernels/thread_pool.h"
#include "tests/test_seed.h"
#ifdef ZEROPLAN_TEST_CUDA
#include "tests/executor/cuda/gpu_runner.h"
#endif

namespace zeroplan::kernel_test {

// Declares `rng` and prints the seed should an assertion fail.
#define ZEROPLAN_TEST_RNG(rng)                              \
  ::zeroplan::kernel_test::Rng rng(::zeroplan::TestSeed()); \
  INFO("ZEROPLAN_TEST_SEED=", ::zeroplan::TestSeed())

class Rng {
 public:
  explicit Rng(uint64_t seed) : engine_(seed) {}
  double Normal(double std = 1.0) { return std::normal_distribution<double>(0.0, std)(engine_); }
  int64_t Below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(engine_); }
  uint64_t Word() { return engine_(); }

 private:
  std::mt19937_64 engine_;
};

#ifdef ZEROPLAN_TEST_CUDA
inline constexpr bool kOnGpu = true;
#else
inline constexpr bool kOnGpu = false;
#endif

using Doubles = std::vector<double>;

// A kernel argument in a block of memory of exactly its size, so that ASan sees every step outside.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Dtype dtype, int64_t n)
      : dtype_(dtype), n_(n), data_(static_cast<size_t>(n) * DtypeBytes(dtype)) {}
  static Tensor Random(Rng& rng, Dtype dtype, int64_t n, double std = 1.0) {
    Tensor t(dtype, n);
    for (int64_t i = 0; i < n; ++i) t.Set(i, rng.Normal(std));
    return t;
  }
  static Tensor Ints(const std::vector<int32_t>& values) {
    Tensor t(Dtype::kI32, static_cast<int64_t>(values.size()));
    std::memcpy(t.data_.data(), values.data(), t.data_.size());
    return t;
  }
  static Tensor State(const StepState& state) {
    Tensor t(Dtype::kU8, sizeof(StepState));
    std::memcpy(t.data_.data(), &state, sizeof(StepState));
    return t;
  }
  static Tensor Absent() { return {}; }

  int64_t size() const { return n_; }
  Dtype dtype() const { return dtype_; }
  void Set(int64_t i, double value) {
    WriteScalar(dtype_, data_.data(), i, static_cast<float>(value));
  }
  double operator[](int64_t i) const {
    return static_cast<double>(ReadScalar(dtype_, data_.data(), i));
  }
  Doubles values() const {
    Doubles all(static_cast<size_t>(n_));
    for (int64_t i = 0; i < n_; ++i) all[static_cast<size_t>(i)] = (*this)[i];
    return all;
  }
  StepState& state() { return *reinterpret_cast<StepState*>(data_.data()); }
  KernelArg arg() {
    return data_.empty() ? KernelArg{} : KernelArg{data_.data(), data_.size(), dtype_};
  }
  bool operator==(const Tensor& other) const { return data_ == other.data_; }

 private:
  Dtype dtype_ = Dtype::kU8;
  int64_t n_ = 0;
  std::vector<char> data_;
};

// The bench a kernel is run on: a program that holds settings and layout, and threads.
struct Bench {
  Program program;
  ThreadPool pool;
  int rank = 0;
  uint64_t seed = 7;
  std::optional<KernelScalars> scalars;  // of launches; else the row's usual ones

  explicit Bench(int threads = 2, size_t scratch_bytes = 8u << 20) : pool(threads, scratch_bytes) {}

  // `gpu_fn`: on a GPU, a function to run in place of the table's.
  void Run(KernelId id, const KernelDims& dims, std::vector<Tensor*> tensors, int flags = 0,
           [[maybe_unused]] KernelFn gpu_fn = nullptr) {
    std::vector<KernelArg> args;
    for (Tensor* tensor : tensors) args.push_back(tensor == nullptr ? KernelArg{} : tensor->arg());
    const KernelContext context{&program, rank, seed, &pool};
    const KernelCall call{id,      static_cast<uint8_t>(flags),       dims, args,
                          context, scalars.value_or(UsualScalars(id))};
#ifdef ZEROPLAN_TEST_CUDA
    RunOnGpu(call, gpu_fn);
#else
    CpuKernels().rows[static_cast<size_t>(id)](call);
#endif
  }
};

// Half the distance from 1 to the next number: the relative error of rounding to nearest.
inline double RoundOff(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBF16:
      return 0x1p-8;
    case Dtype::kF16:
      return 0x1p-11;
    default:
      return 0x1p-24;
  }
}

inline const std::vector<Dtype>& FloatDtypes() {
  static const std::vector<Dtype> all = {Dtype::kF32, Dtype::kBF16, Dtype::kF16};
  return all;
}

// |got - want| may be the rounding of the result to its dtype (fp16 results below 2^-14 have an
// absolute spacing of 2^-24), plus what the fp32 arithmetic before it may have lost, `slack`.
inline bool Close(double got, double want, Dtype dtype, double slack) {
  const double rounding = RoundOff(dtype) * (std::abs(want) + slack);
  const double subnormal = dtype == Dtype::kF16 ? 0x1p-25 : 0;
  return std::abs(got - want) <= rounding + subnormal + slack;
}

inline void CheckAllClose(const Tensor& got, const Doubles& want, double slack,
                          const std::string& what) {
  REQUIRE(got.size() == static_cast<int64_t>(want.size()));
  for (int64_t i = 0; i < got.size(); ++i) {
    const double w = want[static_cast<size_t>(i)];
    if (Close(got[i], w, got.dtype(), slack)) continue;
    FAIL_CHECK(what << "[" << i << "] (" << DtypeName(got.dtype()) << "): got " << got[i]
                    << ", want " << w << ", slack " << slack);
    return;
  }
}

inline double Dot(const Doubles& a, const Doubles& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// d(weight . f(x))/dx_i by a central difference. In double, h = 1e-5 leaves an error near 1e-10 for
// functions with derivatives around 1: nothing beside fp32's rounding.
template <typename Fn>
double FiniteDifference(const Fn& f, Doubles x, int64_t i, const Doubles& weight) {
  constexpr double kStep = 1e-5;
  double& xi = x[static_cast<size_t>(i)];
  const double middle = xi;
  xi = middle + kStep;
  const double above = Dot(weight, f(x));
  xi = middle - kStep;
  const double below = Dot(weight, f(x));
  return (above - below) / (2 * kStep);
}

// Checks `samples` random elements of a kernel's gradient (all of them if there are fewer).
template <typename Fn>
void CheckGradient(Rng& rng, const Tensor& got, const Fn& f, const Doubles& x,
                   const Doubles& weight, double slack, const std::string& what,
                   int64_t samples = 40) {
  REQUIRE(got.size() == static_cast<int64_t>(x.size()));
  for (int64_t s = 0; s < std::min(samples, got.size()); ++s) {
    const int64_t i = got.size() <= samples ? s : rng.Below(got.size());
    const double want = FiniteDifference(f, x, i, weight);
    if (Close(got[i], want, got.dtype(), slack)) continue;
    FAIL_CHECK(what << "[" << i << "] (" << DtypeName(got.dtype()) << "): got " << got[i]
                    << ", finite difference " << want << ", slack " << slack);
    return;
  }
}

}  // namespace zeroplan::kernel_test
