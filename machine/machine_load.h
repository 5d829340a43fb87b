// What this machine is doing: its GPUs, by the driver's management library, and its host, by /proc.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace zeroplan {

// Absent: the driver does not say.
struct GpuLoad {
  std::string name;
  std::optional<uint64_t> used_bytes, memory_bytes;  // in use by anyone, and in all
  std::optional<double> watts, limit_watts;  // drawn, averaged by the driver; enforced limit
  std::optional<double> clock_hz;            // of the multiprocessors
  std::optional<double> busy_share;  // of the time, in which some kernel ran (not: how full it was)
  // Bytes/s over PCIe, both ways, over the driver's last 20 ms.
  std::optional<double> pcie_sent, pcie_received;
};

// 0: not known.
struct HostLoad {
  uint64_t memory_bytes = 0;     // of the host, or of the control group where that is less
  uint64_t available_bytes = 0;  // of it, for new work
  uint64_t process_bytes = 0;    // resident, of this process
  double busy_cores = 0;         // of the host, since the last look
  double process_cores = 0;      // of them, this process's
  int cores = 0;                 // that there are
};

struct MachineLoad {
  std::vector<GpuLoad> gpus;
  HostLoad host;
};

// Looks at it now and then. A look takes some milliseconds, and 40 more for each GPU whose PCIe
// traffic the driver measures: keep it out of the threads that work.
class MachineMeter {
 public:
  // Meters the first `gpus` of the GPUs that a CUDA process would see here (CUDA_VISIBLE_DEVICES,
  // by index or by UUID); none where there is no driver, and with ZEROPLAN_NO_DETECT=1 in the
  // environment.
  explicit MachineMeter(int gpus);
  ~MachineMeter();
  MachineMeter(const MachineMeter&) = delete;
  MachineMeter& operator=(const MachineMeter&) = delete;

  // Never throws for what cannot be read.
  MachineLoad Look();

 private:
  struct Gpus;
  struct Ticks {
    double host_seconds = 0, process_seconds = 0;  // busy, of all cores
    std::chrono::steady_clock::time_point when;
  };
  static Ticks ReadTicks();

  std::unique_ptr<Gpus> gpus_;
  Ticks last_;
};

}  // namespace zeroplan
