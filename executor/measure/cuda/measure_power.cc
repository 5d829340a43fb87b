// What products, copies and a GPU that does nothing draw, and the clock that products keep under
// the power limit: the figures of cost_models/power_limit.h.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>

#include "core/base/error.h"
#include "core/base/timing.h"
#include "executor/measure/cuda/device_parts.h"
#include "executor/measure/cuda/spin.h"
#include "machine/gpu_state.h"

namespace zeroplan {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kClockOfMultiprocessors = 1;  // NVML_CLOCK_SM

// What the driver's management library says of a GPU's power and clock.
class EnergyMeter {
 public:
  // Meters a CUDA device. Throws Error(kRuntime) saying what is missing: the library, or a GPU that
  // counts energy (Volta and newer).
  explicit EnergyMeter(int device) {
    char bus[32] = {};
    ZEROPLAN_CUDA(cudaDeviceGetPCIBusId(bus, sizeof bus, device));
    device_ = Ask<void*>("nvmlDeviceGetHandleByPciBusId_v2", static_cast<const char*>(bus));
    Joules(), ClockHz(), LimitWatts();
  }

  // Since the driver was loaded; rises about ten times a second.
  double Joules() const {
    const auto millijoules =
        Ask<unsigned long long>("nvmlDeviceGetTotalEnergyConsumption", device_);
    return static_cast<double>(millijoules) * 1e-3;
  }
  // Of the multiprocessors, now.
  double ClockHz() const {
    return Ask<unsigned>("nvmlDeviceGetClockInfo", device_, kClockOfMultiprocessors) * 1e6;
  }
  // That the driver enforces.
  double LimitWatts() const {
    return Ask<unsigned>("nvmlDeviceGetEnforcedPowerLimit", device_) * 1e-3;
  }

 private:
  template <typename Value, typename... Args>
  Value Ask(const char* name, Args... arguments) const {
    const auto value = nvml_.Ask<Value>(name, arguments...);
    if (!value) ThrowRuntime("the driver's libnvidia-ml.so.1 does not say what the GPU draws");
    return *value;
  }

  ManagementLibrary nvml_;
  void* device_ = nullptr;
};

// The power of work that went on for longer than the driver's readings are apart.
struct Draw {
  double watts = 0;
  double clock = 0;         // Hz, mean
  double part_seconds = 0;  // of the timed part of a round, mean
};

class PowerBench {
 public:
  PowerBench(KernelBench& bench, int device, bool quick)
      : meter_(device),
        stream_(bench.timer().stream()),
        warm_seconds_(quick ? 0.25 : 0.4),
        watch_seconds_(quick ? 0.45 : 0.9) {
    for (Round& round : rounds_) {
      for (CudaEvent* event : {&round.begin, &round.end, &round.over}) *event = MakeEvent(true);
    }
  }

  const EnergyMeter& meter() const { return meter_; }

  // Rounds of `part` and then `rest`, one issued while the one before it runs. Energy is counted
  // from one change of the driver's counter to another.
  Draw Watch(const std::function<void()>& part, const std::function<void()>& rest) {
    Draw draw;
    double joules = meter_.Joules(), first_joules = 0, seconds = 0, clocks = 0, parts = 0;
    bool watching = false;
    int readings = 0;
    Clock::time_point first;
    const Clock::time_point begin = Clock::now();
    for (size_t i = 0;; ++i) {
      Round& round = rounds_[i % rounds_.size()];
      if (i >= rounds_.size()) ZEROPLAN_CUDA(cudaEventSynchronize(round.over.get()));
      if (watching) {
        parts += SecondsBetween(round.begin.get(), round.end.get());
        clocks += meter_.ClockHz();
        ++readings;
      }
      ZEROPLAN_CUDA(cudaEventRecord(round.begin.get(), stream_));
      part();
      ZEROPLAN_CUDA(cudaEventRecord(round.end.get(), stream_));
      rest();
      ZEROPLAN_CUDA(cudaEventRecord(round.over.get(), stream_));
      const double now = meter_.Joules();
      if (now == joules) {
        if (SecondsSince(begin) > 10) ThrowRuntime("the driver's count of energy does not rise");
        continue;
      }
      joules = now;
      if (watching) {
        seconds = SecondsSince(first);
        if (seconds >= watch_seconds_) break;
      } else if (SecondsSince(begin) >= warm_seconds_) {
        watching = true;
        first = Clock::now();
        first_joules = now;
      }
    }
    ZEROPLAN_CUDA(cudaStreamSynchronize(stream_));
    if (readings == 0) ThrowRuntime("rounds take longer than the driver's count of energy");
    draw.watts = (joules - first_joules) / seconds;
    draw.clock = clocks / readings;
    draw.part_seconds = parts / readings;
    return draw;
  }

 private:
  struct Round {
    CudaEvent begin, end, over;
  };
  EnergyMeter meter_;
  cudaStream_t stream_;
  double warm_seconds_, watch_seconds_;
  std::array<Round, 2> rounds_;
};

// s of t * (1 - s + s / c), from its times at two clocks.
double ClockedShare(double slow_seconds, double slow_clock, double fast_seconds,
                    double fast_clock) {
  const double ratio = slow_seconds / fast_seconds;
  return std::clamp((ratio - 1) / ((1 / slow_clock - 1) - ratio * (1 / fast_clock - 1)), 0.01, 1.0);
}

}  // namespace

void MeasurePower(KernelBench& bench, int device, const DeviceProperties& properties, bool quick,
                  KernelRates& rates) {
  constexpr double kRoundSeconds = 8e-3, kNanosecond = 1e-9;
  constexpr int64_t kM = 16384, kK = 2048, kN = 8192, kCopyBytes = int64_t{1} << 28;
  // Below this share of the top clock a product is held back by its power.
  constexpr double kHeldBack = 0.97;
  PowerBench power(bench, device, quick);
  const cudaStream_t stream = bench.timer().stream();
  const auto spin = [&](double seconds) {
    cuda::Spin(static_cast<uint64_t>(seconds / kNanosecond), stream);
  };
  const auto nothing = [] {};
  const double base = power.Watch(nothing, [&] { spin(kRoundSeconds); }).watts;

  const DeviceMemory from = AllocateDeviceMemory(kCopyBytes), to = AllocateDeviceMemory(kCopyBytes);
  ZEROPLAN_CUDA(cudaMemsetAsync(from.get(), 0x5a, kCopyBytes, stream));
  const double copy_seconds = 2.0 * kCopyBytes / rates.copy_bandwidth.value_or(1e12);
  const int copies = std::max(1, static_cast<int>(kRoundSeconds / copy_seconds));
  const Draw copy = power.Watch(
      [&] {
        for (int i = 0; i < copies; ++i) {
          ZEROPLAN_CUDA(
              cudaMemcpyAsync(to.get(), from.get(), kCopyBytes, cudaMemcpyDeviceToDevice, stream));
        }
      },
      nothing);

  const Dtype dtype = HalfDtype(properties);
  const auto clock_of = [&](const Draw& draw) {
    return std::min(1.0, draw.clock / properties.max_sm_clock);
  };
  PowerRates found{.m = kM, .k = kK, .n = kN};
  found.joules_per_byte =
      std::max(0.0, copy.watts - base) * copy.part_seconds / (2.0 * kCopyBytes * copies);
  // Watches rounds of launches, and rounds with pauses as long. Returns what a FLOP drew, at the
  // top clock.
  const auto watch = [&](const std::function<void()>& launch, double bytes, Draw& draw,
                         Draw* rested) {
    const double once = bench.timer().RoundSeconds(1, [&](int) { launch(); });
    const int count = std::max(1, static_cast<int>(kRoundSeconds / once));
    const auto all = [&] {
      for (int i = 0; i < count; ++i) launch();
    };
    draw = power.Watch(all, nothing);
    if (rested != nullptr) *rested = power.Watch(all, [&] { spin(count * once); });
    return ((draw.watts - base) * draw.part_seconds / count - found.joules_per_byte * bytes) /
           (2.0 * kM * kK * kN * clock_of(draw));
  };
  constexpr auto kInputs = static_cast<double>(kM * kK + kK * kN);
  constexpr auto kOutputs = static_cast<double>(kM * kN);
  const BenchArg scale{ArgKind::kRandom, Dtype::kF32, 1}, absent;
  const BenchArg output{ArgKind::kOutput, dtype, kM * kN};
  Draw product, rested, eight_bits;
  bench.WithLaunch(KernelId::kMatmulForward, {kM, kK, kN, 0},
                   {{ArgKind::kRandom, dtype, kM * kK},
                    {ArgKind::kRandom, dtype, kK * kN},
                    absent,
                    absent,
                    output},
                   [&](const std::function<void()>& launch) {
                     found.joules_per_flop =
                         watch(launch, 2 * (kInputs + kOutputs), product, &rested);
                   });
  if (HasFp8(properties)) {
    bench.WithLaunch(KernelId::kFp8Matmul, {kM, kK, kN, 0, 0, 1},
                     {{ArgKind::kRandom, Dtype::kE4M3, kM * kK},
                      scale,
                      {ArgKind::kRandom, Dtype::kE4M3, kK * kN},
                      scale,
                      absent,
                      absent,
                      output},
                     [&](const std::function<void()>& launch) {
                       found.joules_per_flop_e4m3 =
                           watch(launch, kInputs + 2 * kOutputs, eight_bits, nullptr);
                     });
  }

  const double clock = clock_of(product), rested_clock = clock_of(rested);
  const bool held_back = clock < kHeldBack;
  found.product_clock = product.clock;
  found.base_watts = base;
  // What the GPU regulates itself to is a little less than what the driver says.
  found.limit_watts = held_back ? product.watts : power.meter().LimitWatts();
  if (held_back && rested_clock > clock) {
    found.clocked_share =
        ClockedShare(product.part_seconds, clock, rested.part_seconds, rested_clock);
  }
  if (!(found.base_watts < found.limit_watts) || !(found.joules_per_flop > 0) ||
      !(found.joules_per_byte > 0) || !(found.joules_per_flop_e4m3 >= 0)) {
    ThrowRuntime(
        "readings that cannot be: {:.0f} W with nothing to do, {:.0f} W of copies, {:.0f} W "
        "of products",
        base, copy.watts, product.watts);
  }
  rates.power = found;
}

}  // namespace zeroplan
