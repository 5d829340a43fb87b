#include "machine/machine_load.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string_view>
#include <thread>

#include "core/base/strings.h"
#include "machine/gpu_state.h"
#include "machine/host_state.h"

namespace zeroplan {
namespace {

// NVML's numbers.
constexpr int kClockOfMultiprocessors = 1, kPcieSent = 0, kPcieReceived = 1;

}  // namespace

struct MachineMeter::Gpus {
  using Device = void*;
  struct Memory {
    unsigned long long total, free, used;
  };
  struct Utilization {
    unsigned gpu, memory;  // per cent
  };

  explicit Gpus(int most) {
    const auto count = nvml.Ask<unsigned>("nvmlDeviceGetCount_v2");
    if (!count) return;
    const char* named = std::getenv("CUDA_VISIBLE_DEVICES");
    if (const auto visible = VisibleDevices()) {
      for (const unsigned index : *visible) {
        if (index >= *count) break;  // CUDA ends its list there
        Add(index);
      }
    } else if (named != nullptr) {
      // UUIDs, "GPU-8f3c...,GPU-...".
      for (const std::string_view name : Split(named, ',')) {
        const auto device =
            nvml.Ask<Device>("nvmlDeviceGetHandleByUUID", std::string(name).c_str());
        if (!device) break;
        devices.push_back(*device);
      }
    } else {
      for (unsigned i = 0; i < *count; ++i) Add(i);
    }
    devices.resize(std::min(devices.size(), static_cast<size_t>(std::max(most, 0))));
  }

  void Add(unsigned index) {
    const auto device = nvml.Ask<Device>("nvmlDeviceGetHandleByIndex_v2", index);
    if (device) devices.push_back(*device);
  }

  // What the function says, times `scale`.
  template <typename... Args>
  std::optional<double> Scaled(double scale, const char* name, Args... arguments) const {
    const auto value = nvml.Ask<unsigned>(name, arguments...);
    return value ? std::optional(*value * scale) : std::nullopt;
  }

  GpuLoad Look(Device device) const {
    GpuLoad load;
    load.name = nvml.AskText("nvmlDeviceGetName", device);
    if (const auto bytes = nvml.Ask<Memory>("nvmlDeviceGetMemoryInfo", device)) {
      load.used_bytes = bytes->used;
      load.memory_bytes = bytes->total;
    }
    load.watts = Scaled(1e-3, "nvmlDeviceGetPowerUsage", device);
    load.limit_watts = Scaled(1e-3, "nvmlDeviceGetEnforcedPowerLimit", device);
    load.clock_hz = Scaled(1e6, "nvmlDeviceGetClockInfo", device, kClockOfMultiprocessors);
    const auto used = nvml.Ask<Utilization>("nvmlDeviceGetUtilizationRates", device);
    if (used) load.busy_share = used->gpu * 1e-2;
    // In kilobytes.
    load.pcie_sent = Scaled(1e3, "nvmlDeviceGetPcieThroughput", device, kPcieSent);
    load.pcie_received = Scaled(1e3, "nvmlDeviceGetPcieThroughput", device, kPcieReceived);
    return load;
  }

  ManagementLibrary nvml;
  std::vector<Device> devices;
};

MachineMeter::MachineMeter(int gpus)
    : gpus_(gpus > 0 && !DetectionIsOff() ? std::make_unique<Gpus>(gpus) : nullptr),
      last_(ReadTicks()) {}

MachineMeter::~MachineMeter() = default;

MachineMeter::Ticks MachineMeter::ReadTicks() {
  Ticks ticks;
  ticks.when = std::chrono::steady_clock::now();
  // The first line is of all processors: user, nice, system, idle, iowait, irq, softirq, steal.
  std::ifstream file("/proc/stat");
  std::string cpu;
  file >> cpu;
  for (int i = 0; i < 8; ++i) {
    double value = 0;
    if (!(file >> value)) break;
    const bool idle = i == 3 || i == 4;
    if (!idle) ticks.host_seconds += value / static_cast<double>(sysconf(_SC_CLK_TCK));
  }
  rusage used{};
  if (getrusage(RUSAGE_SELF, &used) == 0) {
    for (const timeval& time : {used.ru_utime, used.ru_stime}) {
      ticks.process_seconds +=
          static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    }
  }
  return ticks;
}

MachineLoad MachineMeter::Look() {
  MachineLoad load;
  if (gpus_) {
    for (Gpus::Device device : gpus_->devices) load.gpus.push_back(gpus_->Look(device));
  }
  HostLoad& host = load.host;
  host.memory_bytes = MemoryInfo("MemTotal").value_or(0);
  host.available_bytes = MemoryInfo("MemAvailable").value_or(0);
  if (const auto group = QueryControlGroupMemory()) {
    host.memory_bytes = std::min(host.memory_bytes, group->limit_bytes);
    host.available_bytes = std::min(host.available_bytes, group->available_bytes);
  }
  std::ifstream statm("/proc/self/statm");
  uint64_t pages = 0, resident = 0;
  if (statm >> pages >> resident) {
    host.process_bytes = resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  }
  host.cores = static_cast<int>(std::thread::hardware_concurrency());
  const Ticks now = ReadTicks();
  const double seconds = std::chrono::duration<double>(now.when - last_.when).count();
  if (seconds > 0) {
    host.busy_cores = std::max(0.0, now.host_seconds - last_.host_seconds) / seconds;
    host.process_cores = std::max(0.0, now.process_seconds - last_.process_seconds) / seconds;
  }
  last_ = now;
  return load;
}

}  // namespace zeroplan
