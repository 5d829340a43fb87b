#include "machine/gpu_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string_view>

namespace zeroplan {

std::string CudaVersionText(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string LibraryVersionText(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

bool DetectionIsOff() {
  const char* off = std::getenv("ZEROPLAN_NO_DETECT");
  return off != nullptr && std::strcmp(off, "") != 0 && std::strcmp(off, "0") != 0;
}

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

namespace {

// NVML's types and constants, as its header of the same names declares them.
using Device = void*;
struct MemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
constexpr unsigned kMemoryV2 = static_cast<unsigned>(sizeof(MemoryV2)) | (2u << 24);
struct MemoryV1 {
  unsigned long long total, free, used;
};
struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};
constexpr int kInsufficientSize = 7;
constexpr unsigned kMostLinks = 18;
constexpr int kPeerRead = 0, kPeerWrite = 1, kPeerNvlink = 2, kPeerOk = 0;

class Asker {
 public:
  explicit Asker(const ManagementLibrary& nvml) : nvml_(nvml) {}

  // What the function writes to its last argument; nothing if it is missing or fails.
  template <typename Value, typename... Args>
  std::optional<Value> Ask(const char* name, Args... arguments) const {
    const auto function = nvml_.Find<int (*)(Args..., Value*)>(name);
    Value value{};
    if (function == nullptr || function(arguments..., &value) != ManagementLibrary::kSuccess) {
      return std::nullopt;
    }
    return value;
  }
  // The same of two values.
  std::optional<std::pair<int, int>> AskTwo(const char* name, Device device) const {
    const auto function = nvml_.Find<int (*)(Device, int*, int*)>(name);
    int first = 0, second = 0;
    if (function == nullptr || function(device, &first, &second) != ManagementLibrary::kSuccess) {
      return std::nullopt;
    }
    return std::pair(first, second);
  }
  std::string AskText(const char* name, Device device) const {
    const auto function = nvml_.Find<int (*)(Device, char*, unsigned)>(name);
    char text[128] = {};
    if (function == nullptr || function(device, text, sizeof text) != ManagementLibrary::kSuccess) {
      return "";
    }
    return text;
  }
  std::optional<int> AskCount(const char* name, Device device) const {
    const auto count = Ask<unsigned>(name, device);
    return count ? std::optional(static_cast<int>(*count)) : std::nullopt;
  }
  std::optional<double> AskWatts(const char* name, Device device) const {
    const auto milliwatts = Ask<unsigned>(name, device);
    return milliwatts ? std::optional(*milliwatts / 1e3) : std::nullopt;
  }
  std::optional<bool> AskSwitch(const char* name, Device device) const {
    const auto now_and_later = AskTwo(name, device);
    return now_and_later ? std::optional(now_and_later->first == 1) : std::nullopt;
  }

 private:
  const ManagementLibrary& nvml_;
};

void AskMemory(const ManagementLibrary& nvml, Device device, GpuState& gpu) {
  if (const auto get = nvml.Find<int (*)(Device, MemoryV2*)>("nvmlDeviceGetMemoryInfo_v2")) {
    MemoryV2 memory{.version = kMemoryV2};
    if (get(device, &memory) == ManagementLibrary::kSuccess) {
      gpu.memory_bytes = memory.total;
      gpu.used_bytes = memory.used;
      return;
    }
  }
  // Its `used` counts what the driver keeps for itself: not what others use.
  if (const auto memory = Asker(nvml).Ask<MemoryV1>("nvmlDeviceGetMemoryInfo", device)) {
    gpu.memory_bytes = memory->total;
  }
}

void AskProcesses(const ManagementLibrary& nvml, Device device, GpuState& gpu) {
  const auto get = nvml.Find<int (*)(Device, unsigned*, ProcessInfo*)>(
      "nvmlDeviceGetComputeRunningProcesses_v3");
  if (get == nullptr) return;
  std::vector<ProcessInfo> found(64);
  auto count = static_cast<unsigned>(found.size());
  int status = get(device, &count, found.data());
  if (status == kInsufficientSize) {
    found.resize(count + 64);  // more may have come
    count = static_cast<unsigned>(found.size());
    status = get(device, &count, found.data());
  }
  if (status != ManagementLibrary::kSuccess) return;
  gpu.processes.emplace();
  for (unsigned i = 0; i < count; ++i) {
    GpuProcess process{found[i].pid, {}};
    constexpr unsigned long long kNotAvailable = ~0ull;
    if (found[i].used_bytes != kNotAvailable) process.bytes = found[i].used_bytes;
    gpu.processes->push_back(process);
  }
}

// "0000:3b:00.0", as /sys names the device "00000000:3B:00.0".
std::optional<int> NumaNodeOf(std::string bus) {
  if (bus.size() > 12) bus.erase(0, bus.size() - 12);
  for (char& c : bus) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  std::ifstream file("/sys/bus/pci/devices/" + bus + "/numa_node");
  int node = -1;
  return file >> node && node >= 0 ? std::optional(node) : std::nullopt;
}

GpuState AskGpu(const ManagementLibrary& nvml, unsigned index, Device device) {
  const Asker asker(nvml);
  GpuState gpu;
  gpu.index = index;
  gpu.name = asker.AskText("nvmlDeviceGetName", device);
  if (const auto pci = asker.Ask<PciInfo>("nvmlDeviceGetPciInfo_v3", device)) {
    gpu.bus = pci->bus_id;
    gpu.numa_node = NumaNodeOf(gpu.bus);
  }
  AskMemory(nvml, device, gpu);
  if (const auto capability = asker.AskTwo("nvmlDeviceGetCudaComputeCapability", device)) {
    gpu.compute_major = capability->first;
    gpu.compute_minor = capability->second;
  }
  gpu.ecc = asker.AskSwitch("nvmlDeviceGetEccMode", device);
  gpu.mig = asker.AskSwitch("nvmlDeviceGetMigMode", device);
  gpu.limit_watts = asker.AskWatts("nvmlDeviceGetEnforcedPowerLimit", device);
  gpu.default_limit_watts = asker.AskWatts("nvmlDeviceGetPowerManagementDefaultLimit", device);
  gpu.pcie_generation = asker.AskCount("nvmlDeviceGetCurrPcieLinkGeneration", device);
  gpu.most_pcie_generation = asker.AskCount("nvmlDeviceGetMaxPcieLinkGeneration", device);
  gpu.pcie_width = asker.AskCount("nvmlDeviceGetCurrPcieLinkWidth", device);
  gpu.most_pcie_width = asker.AskCount("nvmlDeviceGetMaxPcieLinkWidth", device);
  if (const auto state = asker.Ask<int>("nvmlDeviceGetPerformanceState", device)) {
    constexpr int kLowest = 15;
    if (*state >= 0 && *state <= kLowest) gpu.performance_state = *state;
  }
  if (const auto mode = asker.Ask<int>("nvmlDeviceGetComputeMode", device)) {
    if (*mode >= 0 && *mode <= 3) gpu.compute_mode = static_cast<GpuState::ComputeMode>(*mode);
  }
  AskProcesses(nvml, device, gpu);
  for (unsigned link = 0; link < kMostLinks; ++link) {
    const auto active = asker.Ask<int>("nvmlDeviceGetNvLinkState", device, link);
    if (!active) continue;
    ++gpu.links;
    if (*active == 1) ++gpu.active_links;
  }
  return gpu;
}

// nvmlGpuP2PStatus_t.
std::string WhyNoPeer(int status) {
  switch (status) {
    case 1:
      return "the chipset does not support it";
    case 2:
      return "the GPUs do not support it";
    case 3:
      return "they hang on different host bridges";
    case 4:
      return "the driver's settings turn it off";
    case 5:
      return "the driver does not support it for them";
    default:
      return "";
  }
}

GpuPair AskPair(const Asker& asker, unsigned a, unsigned b, Device device_a, Device device_b) {
  GpuPair pair{a, b, {}, "", false};
  const auto ask = [&](int capability) {
    return asker.Ask<int>("nvmlDeviceGetP2PStatus", device_a, device_b, capability);
  };
  const auto read = ask(kPeerRead), write = ask(kPeerWrite);
  if (read && write) {
    pair.peer = *read == kPeerOk && *write == kPeerOk;
    if (!*pair.peer) pair.why_not = WhyNoPeer(*read == kPeerOk ? *write : *read);
  }
  pair.nvlink = ask(kPeerNvlink).value_or(-1) == kPeerOk;
  return pair;
}

}  // namespace

GpuStates QueryGpuStates() {
  GpuStates states;
  if (DetectionIsOff()) {
    states.is_off = true;
    return states;
  }
  const ManagementLibrary nvml;
  states.library = nvml.found();
  states.why = nvml.WhyNotReady();
  if (!nvml.ready()) return states;
  states.answers = true;
  const Asker asker(nvml);
  if (const auto version = nvml.Find<int (*)(char*, unsigned)>("nvmlSystemGetDriverVersion")) {
    char text[96] = {};
    if (version(text, sizeof text) == ManagementLibrary::kSuccess) states.driver = text;
  }
  states.cuda = asker.Ask<int>("nvmlSystemGetCudaDriverVersion_v2");
  const unsigned count = asker.Ask<unsigned>("nvmlDeviceGetCount_v2").value_or(0);
  const auto chosen = VisibleDevices();
  std::vector<Device> devices;
  for (unsigned i = 0; i < count; ++i) {
    const auto device = asker.Ask<Device>("nvmlDeviceGetHandleByIndex_v2", i);
    if (!device) continue;  // one that fell off the bus, or that this user may not see
    states.gpus.push_back(AskGpu(nvml, i, *device));
    devices.push_back(*device);
    states.gpus.back().visible =
        !chosen || std::find(chosen->begin(), chosen->end(), i) != chosen->end();
  }
  for (size_t a = 0; a < devices.size(); ++a) {
    for (size_t b = a + 1; b < devices.size(); ++b) {
      if (!states.gpus[a].visible || !states.gpus[b].visible) continue;
      states.pairs.push_back(
          AskPair(asker, states.gpus[a].index, states.gpus[b].index, devices[a], devices[b]));
    }
  }
  return states;
}

double PcieLaneBandwidth(int generation) {
  // GT/s and the share of it that is data: PCI Express base specifications 1.0 to 6.0.
  switch (generation) {
    case 1:
      return 2.5 * 0.8 / 8;
    case 2:
      return 5.0 * 0.8 / 8;
    case 3:
      return 8.0 * 128 / 130 / 8;
    case 4:
      return 16.0 * 128 / 130 / 8;
    case 5:
      return 32.0 * 128 / 130 / 8;
    case 6:
      return 64.0 * 242 / 256 / 8;
    default:
      return 0;
  }
}

}  // namespace zeroplan
