// Asks the driver's management library.
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "hwprofiles/detect.h"
#include "hwprofiles/management_library.h"

namespace zeroplan {
namespace {

using NvmlDevice = void*;
struct NvmlMemory {
  unsigned long long total, free, used;
};
constexpr int kNvmlSuccess = ManagementLibrary::kSuccess;

// Indices that CUDA_VISIBLE_DEVICES leaves, in its order; nothing if it is not set or names devices
// by something else than an index.
std::optional<std::vector<unsigned>> VisibleDevices() {
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) return std::nullopt;
  std::vector<unsigned> indices;
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view item = rest.substr(0, comma);
    unsigned index = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), index);
    if (error != std::errc() || end != item.data() + item.size()) {
      // CUDA ends its list at the first device that is not there ("-1").
      if (item.starts_with("-")) break;
      return std::nullopt;
    }
    indices.push_back(index);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return indices;
}

// Whether the user wants no detection.
bool IsOff() {
  const char* off = std::getenv("ZEROPLAN_NO_DETECT");
  return off != nullptr && std::strcmp(off, "") != 0 && std::strcmp(off, "0") != 0;
}

}  // namespace

std::vector<DetectedGpu> QueryGpus() {
  if (IsOff()) return {};
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
  if (IsOff()) return "";
  const ManagementLibrary nvml;
  const auto get_version = nvml.Find<int (*)(char*, unsigned)>("nvmlSystemGetDriverVersion");
  char version[96] = {};
  if (!nvml.ready() || !get_version || get_version(version, sizeof version) != kNvmlSuccess) {
    return "";
  }
  return version;
}

}  // namespace zeroplan
