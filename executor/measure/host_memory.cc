#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "core/base/error.h"
#include "core/base/median.h"
#include "core/base/units.h"
#include "core/program/step_state.h"
#include "executor/kernels/kernel_call.h"
#include "executor/kernels/thread_pool.h"
#include "executor/measure/adam_program.h"
#include "executor/measure/measure_host.h"

namespace zeroplan {
namespace {

constexpr uint64_t kMib = uint64_t{1} << 20;
constexpr int64_t kGrain = 1 << 14;  // elements
// Gradient 2, master, m and v 8 each, parameter 2.
constexpr int64_t kAdamBytes = 28;
constexpr int64_t kAdamMemoryBytes = 16;  // of them in memory: each counts once
constexpr int64_t kTriadBytes = 12;

struct FreeMemory {
  void operator()(void* memory) const noexcept { std::free(memory); }
};

// An array whose pages the pool's threads touch first, so that on several memory controllers each
// thread's part is near it.
template <typename T>
class HostArray {
 public:
  HostArray(ThreadPool& pool, int64_t n, T value) : n_(n) {
    const uint64_t bytes = AlignUp(static_cast<uint64_t>(n) * sizeof(T), 2 * kMib);
    data_.reset(static_cast<T*>(std::aligned_alloc(2 * kMib, bytes)));
    if (!data_) ThrowRuntime("no memory for {} to measure the host with", FormatBytes(bytes));
    madvise(data_.get(), bytes, MADV_HUGEPAGE);
    pool.ParallelFor(n, kGrain, [&](int64_t begin, int64_t end, int) {
      std::fill(data_.get() + begin, data_.get() + end, value);
    });
  }
  T* data() const { return data_.get(); }
  KernelArg arg(Dtype dtype) const {
    return {data_.get(), static_cast<uint64_t>(n_) * sizeof(T), dtype};
  }

 private:
  int64_t n_;
  std::unique_ptr<T, FreeMemory> data_;
};

double TriadSeconds(ThreadPool& pool, int64_t n, int rounds) {
  const HostArray<float> a(pool, n, 0.0f), b(pool, n, 1.0f), c(pool, n, 2.0f);
  float scalar = 3.0f;
  const double seconds = MedianSeconds(rounds, [&] {
    pool.ParallelFor(n, kGrain, [&, s = scalar](int64_t begin, int64_t end, int) {
      float* __restrict out = a.data();
      const float* __restrict x = b.data(), * __restrict y = c.data();
      for (int64_t i = begin; i < end; ++i) out[i] = x[i] + s * y[i];
    });
    scalar += 1;
  });
  // Read back: the loop is no dead store, and it computed what it should.
  ZEROPLAN_CHECK(a.data()[n - 1] == 1.0f + (scalar - 1) * 2.0f, "triad computed {}",
                 a.data()[n - 1]);
  return seconds;
}

double AdamSeconds(ThreadPool& pool, int64_t n, int rounds) {
  constexpr uint16_t kOneBf16 = 0x3f80;
  const HostArray<uint16_t> grad(pool, n, kOneBf16), param(pool, n, kOneBf16);
  const HostArray<float> master(pool, n, 1.0f), m(pool, n, 0.01f), v(pool, n, 0.01f);
  const Program program = AdamProgram(n);
  StepState state;
  state.lr = 1e-4f;
  const KernelArg args[] = {grad.arg(Dtype::kBF16),  {&state, sizeof state, Dtype::kU8},
                            master.arg(Dtype::kF32), m.arg(Dtype::kF32),
                            v.arg(Dtype::kF32),      param.arg(Dtype::kBF16)};
  KernelContext context;
  context.program = &program;
  context.pool = &pool;
  return MedianSeconds(rounds, [&] {
    CpuKernels().rows[static_cast<size_t>(KernelId::kAdamW)](
        {KernelId::kAdamW, kNoFlags, {n, 0, 0}, args, context});
  });
}

}  // namespace

HostBandwidths MeasureHostMemory(uint64_t bytes, int threads, int rounds) {
  ZEROPLAN_CHECK(bytes >= kMib && rounds >= 1);
  ThreadPool pool(std::max(1, threads));
  const auto elements = static_cast<int64_t>(bytes) / kTriadBytes;
  const auto parameters =
      std::min<int64_t>(static_cast<int64_t>(bytes) / kAdamMemoryBytes, 1'000'000'000);
  HostBandwidths rates;
  rates.threads = pool.threads();
  rates.triad_bytes = static_cast<uint64_t>(elements * kTriadBytes);
  rates.adam_parameters = parameters;
  rates.triad = static_cast<double>(elements * kTriadBytes) / TriadSeconds(pool, elements, rounds);
  rates.adam = static_cast<double>(parameters * kAdamBytes) / AdamSeconds(pool, parameters, rounds);
  return rates;
}

uint64_t HostMeasureBytes(uint64_t available_bytes, bool quick) {
  // A server's last-level caches add up to some hundred megabytes.
  const uint64_t wanted = quick ? 3072 * kMib : 8192 * kMib;
  return std::clamp(available_bytes / 4, 64 * kMib, wanted);
}

}  // namespace zeroplan
