#include "executor/measure/cuda/energy_meter.h"

#include <cuda_runtime_api.h>

#include "core/base/error.h"
#include "executor/device/cuda/cuda_handles.h"
#include "machine/gpu_state.h"

namespace zeroplan {
namespace {

constexpr int kClockOfMultiprocessors = 1;  // NVML_CLOCK_SM

[[noreturn]] void Fail() {
  ThrowRuntime("the driver's libnvidia-ml.so.1 does not say what the GPU draws");
}
void Check(int status) {
  if (status != ManagementLibrary::kSuccess) Fail();
}

}  // namespace

struct EnergyMeter::Library {
  Library() {
    if (!nvml.ready() || !by_bus || !energy || !clock || !limit) Fail();
  }

  ManagementLibrary nvml;
  using ByBus = int (*)(const char*, void**);
  ByBus by_bus = nvml.Find<ByBus>("nvmlDeviceGetHandleByPciBusId_v2");
  using Energy = int (*)(void*, unsigned long long*);
  Energy energy = nvml.Find<Energy>("nvmlDeviceGetTotalEnergyConsumption");
  using Clock = int (*)(void*, int, unsigned*);
  Clock clock = nvml.Find<Clock>("nvmlDeviceGetClockInfo");
  using Limit = int (*)(void*, unsigned*);
  Limit limit = nvml.Find<Limit>("nvmlDeviceGetEnforcedPowerLimit");
};

EnergyMeter::EnergyMeter(int device) : library_(std::make_unique<Library>()) {
  char bus[32] = {};
  ZEROPLAN_CUDA(cudaDeviceGetPCIBusId(bus, sizeof bus, device));
  Check(library_->by_bus(bus, &device_));
  Joules(), ClockHz(), LimitWatts();
}

EnergyMeter::~EnergyMeter() = default;

double EnergyMeter::Joules() const {
  unsigned long long millijoules = 0;
  Check(library_->energy(device_, &millijoules));
  return static_cast<double>(millijoules) * 1e-3;
}

double EnergyMeter::ClockHz() const {
  unsigned megahertz = 0;
  Check(library_->clock(device_, kClockOfMultiprocessors, &megahertz));
  return megahertz * 1e6;
}

double EnergyMeter::LimitWatts() const {
  unsigned milliwatts = 0;
  Check(library_->limit(device_, &milliwatts));
  return milliwatts * 1e-3;
}

}  // namespace zeroplan
