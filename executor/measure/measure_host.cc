#include "executor/measure/measure_host.h"

#include <algorithm>
#include <chrono>

#include "core/base/error.h"
#include "core/base/timing.h"
#include "core/base/units.h"
#include "executor/kernels/kernel_call.h"
#include "executor/kernels/thread_pool.h"
#include "executor/measure/measurement.h"

namespace zeroplan {
namespace {

constexpr uint16_t kOneBf16 = 0x3f80;
constexpr KernelId kKernels[] = {KernelId::kAdamW, KernelId::kNormSq, KernelId::kConvert};
// Elements of a call, as units of training have them: biases and norms to embeddings.
constexpr int64_t kSizes[] = {1 << 11, 1 << 15, 1 << 19, 1 << 22, 1 << 24, 1 << 26};

// Calls of a size in a round: some milliseconds, so that no row rests on one moment of a machine
// that does other things too.
constexpr int64_t kRoundElements = 1 << 26, kMostCalls = 500;

constexpr int64_t kStateBytes = 16;  // of an element
constexpr int64_t kUpdateBytes[] = {64 * kMib, 256 * kMib, 512 * kMib, 1024 * kMib, 2048 * kMib};

}  // namespace

struct HostKernels::Memory {
  Memory(ThreadPool& pool, int64_t n)
      : grad(pool, n, kOneBf16),
        param(pool, n, kOneBf16),
        master(pool, n, 1.0f),
        m(pool, n, 0.01f),
        v(pool, n, 0.01f) {}
  HostArray<uint16_t> grad, param;
  HostArray<float> master, m, v;
};

HostKernels::HostKernels(ThreadPool& pool, int64_t elements)
    : pool_(pool),
      elements_(elements),
      memory_(std::make_unique<Memory>(pool, elements)),
      program_(AdamProgram(elements)),
      scratch_(KernelInfo(KernelId::kNormSq).workspace_bytes({elements}, Backend::kCpu)) {
  state_.lr = 1e-4f;
}

HostKernels::~HostKernels() = default;

void HostKernels::Run(KernelId kernel, int64_t begin, int64_t n) {
  ZEROPLAN_CHECK(begin >= 0 && n >= 0 && begin + n <= elements_);
  const Memory& memory = *memory_;
  const KernelArg grad = memory.grad.arg(Dtype::kBF16, begin, n);
  const KernelArg master = memory.master.arg(Dtype::kF32, begin, n);
  const KernelArg state{&state_, sizeof state_, Dtype::kU8};
  std::vector<KernelArg> args;
  switch (kernel) {
    case KernelId::kAdamW:
      args = {grad,
              state,
              master,
              memory.m.arg(Dtype::kF32, begin, n),
              memory.v.arg(Dtype::kF32, begin, n),
              memory.param.arg(Dtype::kBF16, begin, n)};
      break;
    case KernelId::kNormSq:
      args = {grad, state, {scratch_.data(), scratch_.size(), Dtype::kU8}};
      break;
    case KernelId::kConvert:
      args = {grad, master};
      break;
    default:
      ZEROPLAN_CHECK(false, "{} on the host", KernelInfo(kernel).name);
  }
  KernelContext context;
  context.program = &program_;
  context.pool = &pool_;
  CpuKernels().rows[static_cast<size_t>(kernel)]({kernel, kNoFlags, {n, 0, 0}, args, context});
}

double HostKernels::Bytes(KernelId kernel, int64_t n) {
  constexpr int64_t kHalf = 2, kFloat = 4;
  switch (kernel) {
    case KernelId::kAdamW:  // gradient, three states read and written, parameter
      return static_cast<double>(n * (kHalf + 6 * kFloat + kHalf));
    case KernelId::kConvert:
      return static_cast<double>(n * (kHalf + kFloat));
    default:
      return static_cast<double>(n * kHalf);
  }
}

std::vector<double> HostKernels::CallSeconds(KernelId kernel, int64_t n, int calls) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  for (int i = 0; i < calls; ++i, next_ += n) {
    if (next_ + n > elements_) next_ = 0;
    const Clock::time_point before = Clock::now();
    Run(kernel, next_, n);
    seconds.push_back(std::chrono::duration<double>(Clock::now() - before).count());
  }
  return seconds;
}

double HostKernels::Seconds(KernelId kernel, int64_t n, int calls) {
  return Median(CallSeconds(kernel, n, std::max(2, calls)));
}

std::vector<NamedKernelTime> HostKernels::Times(int rounds) {
  struct Row {
    KernelId kernel;
    int64_t n;
    std::vector<double> seconds;
  };
  std::vector<Row> rows;
  for (const KernelId kernel : kKernels) {
    for (const int64_t n : kSizes) {
      // Other parts of the memory in between, so that none is in the caches.
      if (4 * n <= elements_) rows.push_back({kernel, n, {}});
    }
  }
  for (int round = 0; round < rounds; ++round) {
    for (Row& row : rows) {
      const auto calls =
          static_cast<int>(std::clamp<int64_t>(kRoundElements / row.n, 3, kMostCalls));
      const std::vector<double> seconds = CallSeconds(row.kernel, row.n, calls);
      row.seconds.insert(row.seconds.end(), seconds.begin(), seconds.end());
    }
  }
  std::vector<NamedKernelTime> times;
  times.reserve(rows.size());
  for (Row& row : rows) {
    times.push_back({row.kernel, Bytes(row.kernel, row.n), Median(std::move(row.seconds))});
  }
  return times;
}

std::vector<LightUpdate> HostKernels::LightTimes(int64_t n, int rounds) {
  constexpr Dtype kMasters[] = {Dtype::kF32, Dtype::kI16, Dtype::kBF16};
  constexpr Dtype kMoments[] = {Dtype::kF32, Dtype::kBF16, Dtype::kDynamic8};
  constexpr double kParameters = 1e9;
  constexpr int64_t kFill = 1 << 14;
  const Memory& memory = *memory_;
  KernelContext context;
  context.program = &program_;
  context.pool = &pool_;
  const auto arg = [&](auto* data, Dtype dtype) {
    return KernelArg{data, StoredBytes(dtype, static_cast<uint64_t>(n)), dtype};
  };
  std::vector<LightUpdate> times;
  for (const Dtype master : kMasters) {
    for (const Dtype moments : kMoments) {
      if (master == Dtype::kF32 && moments == Dtype::kF32) continue;  // kAdamW of Times
      // Numbers that states have; a part of each array is enough for narrower ones.
      pool_.ParallelFor(n, kFill, [&](int64_t begin, int64_t end, int) {
        for (const HostArray<float>* array : {&memory.master, &memory.m, &memory.v}) {
          std::fill(array->data() + begin, array->data() + end, 0.0f);
        }
        std::fill(memory.param.data() + begin, memory.param.data() + end, uint16_t{0});
      });
      const bool bytes = moments == Dtype::kDynamic8;
      const std::vector<KernelArg> args = {
          arg(memory.grad.data(), Dtype::kBF16),
          {&state_, sizeof state_, Dtype::kU8},
          arg(memory.master.data(), master),
          arg(memory.m.data(), moments),
          arg(memory.v.data(), bytes ? Dtype::kUnsignedDynamic8 : moments),
          master == Dtype::kBF16 ? KernelArg{} : arg(memory.param.data(), Dtype::kBF16)};
      const auto flags = static_cast<uint8_t>(master == Dtype::kI16 ? kAccumulate : kNoFlags);
      const auto update = [&] {
        CpuKernels().rows[static_cast<size_t>(KernelId::kAdamW)](
            {KernelId::kAdamW, flags, {n, 0, 0}, args, context});
      };
      update();
      times.push_back(
          {master, moments, MedianSeconds(rounds, update) * kParameters / static_cast<double>(n)});
    }
  }
  return times;
}

std::vector<MemoryKernelTime> HostKernels::UpdateTimes(int rounds) {
  constexpr int64_t kCall = 1 << 22;
  std::vector<MemoryKernelTime> times;
  for (const int64_t bytes : kUpdateBytes) {
    const int64_t n = bytes / kStateBytes;
    if (n > elements_) break;
    const auto walk = [&] {
      for (int64_t begin = 0; begin < n; begin += kCall) {
        Run(KernelId::kAdamW, begin, std::min(kCall, n - begin));
      }
    };
    walk();
    times.push_back({static_cast<double>(bytes), MedianSeconds(rounds, walk)});
  }
  return times;
}

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
  rates.light = kernels.LightTimes(parameters, rounds);  // last, for what it leaves behind
  return rates;
}

uint64_t HostMeasureBytes(uint64_t available_bytes, bool quick) {
  // A server's last-level caches add up to some hundred megabytes.
  const uint64_t wanted = quick ? 3072 * kMib : 8192 * kMib;
  return std::clamp(available_bytes / 4, 64 * kMib, wanted);
}

}  // namespace zeroplan
