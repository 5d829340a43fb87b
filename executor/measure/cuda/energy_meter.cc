#include "executor/measure/cuda/energy_meter.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "core/base/error.h"
#include "executor/device/cuda/cuda_handles.h"

namespace zeroplan {
namespace {

constexpr int kSuccess = 0;
constexpr int kClockOfMultiprocessors = 1;  // NVML_CLOCK_SM

}  // namespace

// The few declarations of NVML that are used; its ABI keeps them stable across drivers.
struct EnergyMeter::Library {
  Library() {
    Load();
    if (init == nullptr || init() != kSuccess) Fail();
    ready = true;
  }
  ~Library() {
    if (ready) shutdown();
    if (handle != nullptr) dlclose(handle);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  [[noreturn]] static void Fail() {
    ThrowRuntime("the driver's libnvidia-ml.so.1 does not say what the GPU draws");
  }
  static void Check(int status) {
    if (status != kSuccess) Fail();
  }

  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*by_bus)(const char*, void**) = nullptr;
  int (*energy)(void*, unsigned long long*) = nullptr;
  int (*clock)(void*, int, unsigned*) = nullptr;
  int (*limit)(void*, unsigned*) = nullptr;
  void* handle = nullptr;
  bool ready = false;

 private:
  template <typename Function>
  void Find(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    if (function == nullptr) Fail();
  }
  void Load() {
    handle = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (handle == nullptr) Fail();
    Find("nvmlInit_v2", init);
    Find("nvmlShutdown", shutdown);
    Find("nvmlDeviceGetHandleByPciBusId_v2", by_bus);
    Find("nvmlDeviceGetTotalEnergyConsumption", energy);
    Find("nvmlDeviceGetClockInfo", clock);
    Find("nvmlDeviceGetEnforcedPowerLimit", limit);
  }
};

EnergyMeter::EnergyMeter(int device) : library_(std::make_unique<Library>()) {
  char bus[32] = {};
  ZEROPLAN_CUDA(cudaDeviceGetPCIBusId(bus, sizeof bus, device));
  Library::Check(library_->by_bus(bus, &device_));
  Joules(), ClockHz(), LimitWatts();
}

EnergyMeter::~EnergyMeter() = default;

double EnergyMeter::Joules() const {
  unsigned long long millijoules = 0;
  Library::Check(library_->energy(device_, &millijoules));
  return static_cast<double>(millijoules) * 1e-3;
}

double EnergyMeter::ClockHz() const {
  unsigned megahertz = 0;
  Library::Check(library_->clock(device_, kClockOfMultiprocessors, &megahertz));
  return megahertz * 1e6;
}

double EnergyMeter::LimitWatts() const {
  unsigned milliwatts = 0;
  Library::Check(library_->limit(device_, &milliwatts));
  return milliwatts * 1e-3;
}

}  // namespace zeroplan
