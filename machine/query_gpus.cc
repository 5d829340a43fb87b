// Asks the driver's management library.
#include "machine/detect.h"
#include "machine/management_library.h"
#include "machine/visible_gpus.h"

namespace zeroplan {
namespace {

using NvmlDevice = void*;
struct NvmlMemory {
  unsigned long long total, free, used;
};
constexpr int kNvmlSuccess = ManagementLibrary::kSuccess;

}  // namespace

std::vector<DetectedGpu> QueryGpus() {
  if (DetectionIsOff()) return {};
  const ManagementLibrary nvml;
  const auto get_count = nvml.Find<int (*)(unsigned*)>("nvmlDeviceGetCount_v2");
  const auto get_handle =
      nvml.Find<int (*)(unsigned, NvmlDevice*)>("nvmlDeviceGetHandleByIndex_v2");
  const auto get_name = nvml.Find<int (*)(NvmlDevice, char*, unsigned)>("nvmlDeviceGetName");
  const auto get_memory = nvml.Find<int (*)(NvmlDevice, NvmlMemory*)>("nvmlDeviceGetMemoryInfo");
  if (!nvml.ready() || !get_count || !get_handle || !get_name || !get_memory) return {};
  std::vector<DetectedGpu> all;
  unsigned count = 0;
  if (get_count(&count) != kNvmlSuccess) count = 0;
  for (unsigned i = 0; i < count; ++i) {
    NvmlDevice device = nullptr;
    char name[128] = {};
    NvmlMemory memory{};
    if (get_handle(i, &device) != kNvmlSuccess ||
        get_name(device, name, sizeof name) != kNvmlSuccess ||
        get_memory(device, &memory) != kNvmlSuccess) {
      all.clear();  // part of a machine would be worse than none
      break;
    }
    all.push_back({name, static_cast<double>(memory.total)});
  }
  const auto visible = VisibleDevices();
  if (!visible) return all;
  std::vector<DetectedGpu> chosen;
  for (const unsigned index : *visible) {
    if (index >= all.size()) break;
    chosen.push_back(all[index]);
  }
  return chosen;
}

std::string QueryDriver() {
  if (DetectionIsOff()) return "";
  const ManagementLibrary nvml;
  const auto get_version = nvml.Find<int (*)(char*, unsigned)>("nvmlSystemGetDriverVersion");
  char version[96] = {};
  if (!nvml.ready() || !get_version || get_version(version, sizeof version) != kNvmlSuccess) {
    return "";
  }
  return version;
}

}  // namespace zeroplan
