#include <algorithm>

#include "core/base/error.h"
#include "core/base/timing.h"
#include "core/base/units.h"
#include "executor/kernels/thread_pool.h"
#include "executor/measure/host_array.h"
#include "executor/measure/host_kernels.h"
#include "executor/measure/measure_host.h"
#include "executor/measure/scales.h"

namespace zeroplan {
namespace {

constexpr int64_t kGrain = 1 << 14;       // elements
constexpr int64_t kAdamMemoryBytes = 16;  // of a parameter, each counts once
constexpr int64_t kTriadBytes = 12;

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
  HostKernels kernels(pool, parameters);
  rates.adam = HostKernels::Bytes(KernelId::kAdamW, parameters) /
               MedianSeconds(rounds, [&] { kernels.Run(KernelId::kAdamW, 0, parameters); });
  rates.kernels = kernels.Times(rounds);
  rates.updates = kernels.UpdateTimes(rounds);
  return rates;
}

uint64_t HostMeasureBytes(uint64_t available_bytes, bool quick) {
  // A server's last-level caches add up to some hundred megabytes.
  const uint64_t wanted = quick ? 3072 * kMib : 8192 * kMib;
  return std::clamp(available_bytes / 4, 64 * kMib, wanted);
}

}  // namespace zeroplan
