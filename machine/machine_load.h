// The present load of this machine: its GPUs, from the driver's management library, and its host,
// from /proc.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace zeroplan {

// Absent: not reported by the driver.
struct GpuLoad {
  std::string name;
  std::optional<uint64_t> used_bytes, memory_bytes;  // in use by all processes, and total
  std::optional<double> watts, limit_watts;  // power drawn, averaged by the driver; enforced limit
  std::optional<double> clock_hz;            // clock of the multiprocessors
  // share of the time in which some kernel ran (not: how full it was)
  std::optional<double> busy_share;
  // Bytes/s over PCIe, both ways, over the driver's last 20 ms.
  std::optional<double> pcie_sent, pcie_received;
};

// 0: unknown.
struct HostLoad {
  uint64_t memory_bytes = 0;     // the host's, or the control group's if that is less
  uint64_t available_bytes = 0;  // the part available to new work
  uint64_t process_bytes = 0;    // resident set of this process
  double busy_cores = 0;         // the host's, since the last look
  double process_cores = 0;      // this process's
  int cores = 0;                 // number of cores
};

struct MachineLoad {
  std::vector<GpuLoad> gpus;
  HostLoad host;
};

// Samples the load. A sample takes some milliseconds, and 40 more for each GPU whose PCIe traffic
// the driver measures: call it outside the working threads.
class MachineMeter {
 public:
  // Meters the first `gpus` of the GPUs visible to a CUDA process here (CUDA_VISIBLE_DEVICES, by
  // index or by UUID); none without a driver, and with ZEROPLAN_NO_DETECT=1 in the environment.
  explicit MachineMeter(int gpus);
  ~MachineMeter();
  MachineMeter(const MachineMeter&) = delete;
  MachineMeter& operator=(const MachineMeter&) = delete;

  // Never throws: values that cannot be read are absent.
  MachineLoad Look();

 private:
  struct Gpus;
  struct Ticks {
    double host_seconds = 0, process_seconds = 0;  // busy seconds, summed over all cores
    std::chrono::steady_clock::time_point when;
  };
  static Ticks ReadTicks();

  std::unique_ptr<Gpus> gpus_;
  Ticks last_;
};

}  // namespace zeroplan
