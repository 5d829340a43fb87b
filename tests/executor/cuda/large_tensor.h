// Tensors past 2^31 elements, for tests of indices: they live on the GPU alone, are filled there,
// and some of their elements are held against double.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "executor/kernels/cuda/cuda_launch.h"
#include "executor/kernels/cuda/gemm/gemm_kernels.h"
#include "tests/executor/kernels/kernel_harness.h"

namespace zeroplan::kernel_test {

inline constexpr int64_t kPast = int64_t{1} << 31;  // what an int does not count

// Rows and columns of most of them: 2^31 elements end within a row, 7944 rows before the last.
inline constexpr int64_t kLargeRows = 1 << 18, kLargeColumns = 8448;
inline constexpr int64_t kLargeElements = kLargeRows * kLargeColumns;
static_assert(kLargeElements > kPast && kPast % kLargeColumns != 0);

// Whether the GPU has so many bytes free; says so where it has not, and the test is left out.
inline bool HasRoom(double bytes) {
  size_t free_bytes = 0, total_bytes = 0;
  CheckGpu(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  const double room = static_cast<double>(free_bytes) - 0x1p30;  // what libraries take besides
  if (room >= bytes) return true;
  MESSAGE("left out: takes " << bytes / 1e9 << " GB of GPU memory, " << room / 1e9
                             << " GB are free");
  return false;
}

class LargeTensor {
 public:
  // All bits set: NaN in every float dtype.
  LargeTensor(Dtype dtype, int64_t n)
      : dtype_(dtype), n_(n), bytes_(static_cast<uint64_t>(n) * DtypeBytes(dtype)) {
    CheckGpu(cudaMalloc(&data_, std::max<uint64_t>(bytes_, 1)), "cudaMalloc");
    Poison();
  }
  ~LargeTensor() { cudaFree(data_); }
  LargeTensor(const LargeTensor&) = delete;
  LargeTensor& operator=(const LargeTensor&) = delete;

  int64_t size() const { return n_; }
  Dtype dtype() const { return dtype_; }
  KernelArg arg() const { return {data_, bytes_, dtype_}; }

  LargeTensor& Poison() { return FillBytes(0xFF); }
  LargeTensor& Zero() { return FillBytes(0); }
  // Numbers in [-1/2, 1/2). Those of FillUniform come again after 2^32.
  LargeTensor& Uniform(uint32_t seed) {
    constexpr int64_t kPeriod = int64_t{1} << 32;
    for (int64_t first = 0; first < n_; first += kPeriod, seed += 1000) {
      cuda::FillUniform(At(first), dtype_, std::min(kPeriod, n_ - first), seed,
                        TestLaunch().stream);
    }
    Wait("filling a tensor");
    return *this;
  }
  LargeTensor& Ints(const std::vector<int32_t>& values) {
    return WriteBytes(0, std::as_bytes(std::span(values)));
  }
  LargeTensor& State(const StepState& state) {
    return WriteBytes(0, std::as_bytes(std::span(&state, 1)));
  }
  LargeTensor& Write(int64_t first, const Doubles& values) {
    Tensor host(dtype_, static_cast<int64_t>(values.size()));
    for (size_t i = 0; i < values.size(); ++i) host.Set(static_cast<int64_t>(i), values[i]);
    const KernelArg arg = host.arg();
    return WriteBytes(first, std::as_bytes(std::span(arg.as<char>(), arg.bytes)));
  }

  // `rows` pieces of `width` elements, `stride` apart, from element `first` on.
  Tensor Copy(int64_t first, int64_t rows, int64_t stride, int64_t width) const {
    REQUIRE(first >= 0);
    REQUIRE(first + (rows - 1) * stride + width <= n_);
    Tensor host(dtype_, rows * width);
    const auto bytes = [&](int64_t elements) {
      return static_cast<size_t>(elements) * DtypeBytes(dtype_);
    };
    Wait("a kernel");
    CheckGpu(
        cudaMemcpy2D(host.arg().data, bytes(width), At(first), bytes(rows == 1 ? width : stride),
                     bytes(width), static_cast<size_t>(rows), cudaMemcpyDeviceToHost),
        "download");
    return host;
  }
  Tensor Copy(int64_t first, int64_t n) const { return Copy(first, 1, n, n); }
  Doubles Read(int64_t first, int64_t n) const { return Copy(first, n).values(); }
  // As the first Copy, of many.
  std::vector<float> Floats(int64_t first, int64_t rows, int64_t stride, int64_t width) const {
    Tensor host = Copy(first, rows, stride, width);
    std::vector<float> all(static_cast<size_t>(host.size()));
    Widen(dtype_, host.arg().data, host.size(), all.data());
    return all;
  }
  double Get(int64_t i) const { return Copy(i, 1)[0]; }

 private:
  char* At(int64_t element) const {
    return static_cast<char*>(data_) + static_cast<uint64_t>(element) * DtypeBytes(dtype_);
  }
  static void Wait(const char* what) { CheckGpu(cudaStreamSynchronize(TestLaunch().stream), what); }
  LargeTensor& FillBytes(int value) {
    CheckGpu(cudaMemset(data_, value, bytes_), "cudaMemset");
    CheckGpu(cudaDeviceSynchronize(), "cudaMemset");
    return *this;
  }
  LargeTensor& WriteBytes(int64_t first, std::span<const std::byte> from) {
    CheckGpu(cudaMemcpy(At(first), from.data(), from.size(), cudaMemcpyHostToDevice), "upload");
    CheckGpu(cudaDeviceSynchronize(), "upload");
    return *this;
  }

  Dtype dtype_;
  int64_t n_;
  uint64_t bytes_;
  void* data_ = nullptr;
};

// A launch on the GPU's tensors, beside which it gets its scratch. What it only writes is NaN
// before. `fn`: run instead of the table's row, without preparation, which scribbles on arguments.
struct LargeBench {
  Program program;
  ThreadPool pool{1};
  uint64_t seed = 7;

  void Run(KernelId id, const KernelDims& dims, std::vector<LargeTensor*> tensors, int flags = 0,
           std::optional<KernelScalars> scalars = {}, KernelFn fn = nullptr) {
    const KernelRow& row = KernelInfo(id);
    CAPTURE(row.name);
    const auto at = static_cast<size_t>(
        std::find(row.args.begin(), row.args.end(), ArgMode::kScratch) - row.args.begin());
    const auto starts = static_cast<size_t>(row.starts);
    const bool documents = row.starts >= 0 && starts < tensors.size() && tensors[starts] != nullptr;
    const uint64_t bytes = LaunchWorkspaceBytes(id, dims, Backend::kCuda, documents, false);
    std::optional<LargeTensor> scratch;
    if (bytes > 0) {
      tensors.resize(std::max(tensors.size(), at + 1));
      tensors[at] = &scratch.emplace(Dtype::kU8, static_cast<int64_t>(bytes));
    }
    std::vector<KernelArg> args;
    for (const LargeTensor* t : tensors) args.push_back(t == nullptr ? KernelArg{} : t->arg());
    KernelContext context{&program, 0, seed, &pool};
    context.cuda = &TestLaunch();
    const KernelCall call{id,      static_cast<uint8_t>(flags),       dims, args,
                          context, scalars.value_or(UsualScalars(id))};
    const KernelTable& table = CudaKernels();
    const KernelFn prepare = table.prepare[static_cast<size_t>(id)];
    if (fn == nullptr && prepare != nullptr) prepare(call);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const ArgMode mode = AccessMode(id, static_cast<int>(i), call.flags);
      if (tensors[i] != nullptr && Writes(mode) && !Reads(mode)) tensors[i]->Poison();
    }
    (fn != nullptr ? fn : table.rows[static_cast<size_t>(id)])(call);
    CheckGpu(cudaGetLastError(), "launch");
    CheckGpu(cudaStreamSynchronize(TestLaunch().stream), "run");
  }

  // The same on the host, of the tensors' elements that were copied there.
  void RunOnCpu(KernelId id, const KernelDims& dims, const std::vector<Tensor*>& tensors) {
    std::vector<KernelArg> args;
    for (Tensor* tensor : tensors) args.push_back(tensor->arg());
    const KernelContext context{&program, 0, seed, &pool};
    CpuKernels().rows[static_cast<size_t>(id)]({id, 0, dims, args, context, UsualScalars(id)});
  }
};

inline constexpr int64_t kSome = 8;  // elements looked at side by side

// Where to look into n elements: at the begin, around 2^31 and 2^32, at the end.
inline std::vector<int64_t> SomeElements(int64_t n) {
  std::vector<int64_t> all = {0, n / 3 / kSome * kSome};
  for (const int64_t past : {kPast, 2 * kPast}) {
    for (const int64_t first : {past - kSome, past}) {
      if (first + kSome <= n) all.push_back(first);
    }
  }
  all.push_back(n - kSome);
  return all;
}
// The same of M rows of C elements.
inline std::vector<int64_t> SomeRows(int64_t M, int64_t C) {
  std::vector<int64_t> all;
  for (const int64_t i : SomeElements(M * C)) {
    if (all.empty() || all.back() != i / C) all.push_back(i / C);
  }
  return all;
}

// Elements from `first` on. Close's slack.
inline void CheckSome(const LargeTensor& got, int64_t first, const Doubles& want, double slack,
                      const std::string& what) {
  CAPTURE(first);
  CheckAllClose(got.Copy(first, static_cast<int64_t>(want.size())), want, slack, what);
}

// want[i] of fn(i) for the elements side by side from i = 0 on.
template <typename Fn>
Doubles Some(const Fn& fn, int64_t n = kSome) {
  Doubles all;
  for (int64_t i = 0; i < n; ++i) all.push_back(fn(static_cast<size_t>(i)));
  return all;
}

}  // namespace zeroplan::kernel_test
