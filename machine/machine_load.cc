#include "machine/machine_load.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string_view>
#include <thread>

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
    if (!nvml.ready() || !get_count || !by_index) return;
    unsigned count = 0;
    if (get_count(&count) != ManagementLibrary::kSuccess) return;
    const char* named = std::getenv("CUDA_VISIBLE_DEVICES");
    if (const auto visible = VisibleDevices()) {
      for (const unsigned index : *visible) {
        if (index >= count) break;  // CUDA ends its list there
        Add(index);
      }
    } else if (named != nullptr) {
      AddNamed(named);
    } else {
      for (unsigned i = 0; i < count; ++i) Add(i);
    }
    devices.resize(std::min(devices.size(), static_cast<size_t>(std::max(most, 0))));
  }

  void Add(unsigned index) {
    Device device = nullptr;
    if (by_index(index, &device) == ManagementLibrary::kSuccess) devices.push_back(device);
  }

  // UUIDs, "GPU-8f3c...,GPU-...".
  void AddNamed(std::string_view names) {
    while (!names.empty() && by_uuid != nullptr) {
      const size_t comma = std::min(names.find(','), names.size());
      Device device = nullptr;
      const std::string name(names.substr(0, comma));
      if (by_uuid(name.c_str(), &device) != ManagementLibrary::kSuccess) break;
      devices.push_back(device);
      names.remove_prefix(std::min(comma + 1, names.size()));
    }
  }

  GpuLoad Look(Device device) const {
    constexpr int kDone = ManagementLibrary::kSuccess;
    GpuLoad load;
    char name[128] = {};
    if (get_name && get_name(device, name, sizeof name) == kDone) load.name = name;
    Memory bytes{};
    if (memory && memory(device, &bytes) == kDone) {
      load.used_bytes = bytes.used;
      load.memory_bytes = bytes.total;
    }
    unsigned value = 0;
    if (power && power(device, &value) == kDone) load.watts = value * 1e-3;
    if (limit && limit(device, &value) == kDone) load.limit_watts = value * 1e-3;
    if (clock && clock(device, kClockOfMultiprocessors, &value) == kDone) {
      load.clock_hz = value * 1e6;
    }
    Utilization used{};
    if (utilization && utilization(device, &used) == kDone) load.busy_share = used.gpu * 1e-2;
    // In kilobytes.
    if (pcie && pcie(device, kPcieSent, &value) == kDone) load.pcie_sent = value * 1e3;
    if (pcie && pcie(device, kPcieReceived, &value) == kDone) load.pcie_received = value * 1e3;
    return load;
  }

  ManagementLibrary nvml;
  using OfValue = int (*)(Device, unsigned*);
  using OfKind = int (*)(Device, int, unsigned*);
  int (*get_count)(unsigned*) = nvml.Find<int (*)(unsigned*)>("nvmlDeviceGetCount_v2");
  int (*by_index)(unsigned,
                  Device*) = nvml.Find<int (*)(unsigned, Device*)>("nvmlDeviceGetHandleByIndex_v2");
  int (*by_uuid)(const char*,
                 Device*) = nvml.Find<int (*)(const char*, Device*)>("nvmlDeviceGetHandleByUUID");
  int (*get_name)(Device, char*,
                  unsigned) = nvml.Find<int (*)(Device, char*, unsigned)>("nvmlDeviceGetName");
  int (*memory)(Device, Memory*) = nvml.Find<int (*)(Device, Memory*)>("nvmlDeviceGetMemoryInfo");
  int (*utilization)(Device, Utilization*) =
      nvml.Find<int (*)(Device, Utilization*)>("nvmlDeviceGetUtilizationRates");
  OfValue power = nvml.Find<OfValue>("nvmlDeviceGetPowerUsage");
  OfValue limit = nvml.Find<OfValue>("nvmlDeviceGetEnforcedPowerLimit");
  OfKind clock = nvml.Find<OfKind>("nvmlDeviceGetClockInfo");
  OfKind pcie = nvml.Find<OfKind>("nvmlDeviceGetPcieThroughput");
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
