// Asks the driver's management library, loaded at run time: planning needs no CUDA to build or run.
#include <dlfcn.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

#include "hwprofiles/detect.h"

namespace zeroplan {
namespace {

// The few declarations of NVML that are used; its ABI keeps them stable across drivers.
using NvmlDevice = void*;
struct NvmlMemory {
  unsigned long long total, free, used;
};
constexpr int kNvmlSuccess = 0;

struct CloseLibrary {
  void operator()(void* library) const { dlclose(library); }
};

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

// The driver's library, initialised; nothing without a driver or GPU, or where detection is off.
class Nvml {
 public:
  Nvml() {
    const char* off = std::getenv("ZEROPLAN_NO_DETECT");
    if (off != nullptr && std::strcmp(off, "") != 0 && std::strcmp(off, "0") != 0) return;
    library_.reset(dlopen("libnvidia-ml.so.1", RTLD_NOW));
    const auto init = Find<int (*)()>("nvmlInit_v2");
    shutdown_ = Find<int (*)()>("nvmlShutdown");
    ready_ = init != nullptr && shutdown_ != nullptr && init() == kNvmlSuccess;
  }
  ~Nvml() {
    if (ready_) shutdown_();
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  bool ready() const { return ready_; }
  // Null if the library lacks it.
  template <typename Function>
  Function Find(const char* name) const {
    if (!library_) return nullptr;
    return reinterpret_cast<Function>(dlsym(library_.get(), name));
  }

 private:
  std::unique_ptr<void, CloseLibrary> library_;
  int (*shutdown_)() = nullptr;
  bool ready_ = false;
};

}  // namespace

std::vector<DetectedGpu> QueryGpus() {
  const Nvml nvml;
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
  const Nvml nvml;
  const auto get_version = nvml.Find<int (*)(char*, unsigned)>("nvmlSystemGetDriverVersion");
  char version[96] = {};
  if (!nvml.ready() || !get_version || get_version(version, sizeof version) != kNvmlSuccess) {
    return "";
  }
  return version;
}

}  // namespace zeroplan
