#include "machine/gpu_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string_view>

#include "core/base/shell_process.h"
#include "core/base/strings.h"

namespace zeroplan {

std::string CudaVersionText(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string LibraryVersionText(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

std::string InstallAdvice(CudaLibrary library, int runtime) {
  const int cuda = runtime / 1000;
  const auto package = [&]() -> std::string {
    switch (library) {
      case CudaLibrary::kCublasLt:
        // Packages for CUDA 12 have its version in their names, newer ones in their own version.
        return cuda <= 12 ? fmt::format("nvidia-cublas-cu{}", cuda)
                          : fmt::format("'nvidia-cublas<{}'", cuda + 1);
      case CudaLibrary::kNccl:
        return fmt::format("nvidia-nccl-cu{}", cuda);
      case CudaLibrary::kCudnn:
        break;
    }
    return fmt::format("'nvidia-cudnn-cu{}<10'", cuda);
  };
  return PipInstall(package()) + ", or name its folder in LD_LIBRARY_PATH";
}

std::optional<CudaLack> FindCudaLack(const LibraryFacts& facts, int gpus, bool shown) {
  if (facts.driver == 0 && shown) {
    return CudaLack{
        "the NVIDIA driver's library for CUDA, libcuda.so.1, does not answer",
        "in a container set NVIDIA_DRIVER_CAPABILITIES=compute,utility; on Debian: sudo "
        "apt-get install libcuda1"};
  }
  if (facts.driver == 0) {
    return CudaLack{"there is no NVIDIA driver", "install NVIDIA's driver, then nvidia-smi"};
  }
  if (facts.driver / 1000 < facts.runtime / 1000) {
    // The oldest driver for each CUDA: docs.nvidia.com/deploy/cuda-compatibility.
    const int branch = facts.runtime / 1000 == 12 ? 525 : facts.runtime / 1000 == 13 ? 580 : 0;
    return CudaLack{
        fmt::format("the NVIDIA driver is too old: it takes CUDA up to {}, this zeroplan needs {}",
                    CudaVersionText(facts.driver), CudaVersionText(facts.runtime)),
        branch == 0 ? fmt::format("install a driver for CUDA {} or newer, then restart",
                                  CudaVersionText(facts.runtime))
                    : fmt::format("install driver {0} or newer (Ubuntu: sudo apt-get install "
                                  "nvidia-driver-{0}), then restart",
                                  branch)};
  }
  if (facts.cublaslt == 0) {
    return CudaLack{facts.why_no_cublaslt, InstallAdvice(CudaLibrary::kCublasLt, facts.runtime)};
  }
  if (gpus > 1 && facts.nccl == 0) {
    return CudaLack{"several GPUs need NCCL: " + facts.why_no_nccl,
                    InstallAdvice(CudaLibrary::kNccl, facts.runtime) + ", or use ⟦gpus⟧ 1"};
  }
  return std::nullopt;
}

bool DetectionIsOff() {
  const char* off = std::getenv("ZEROPLAN_NO_DETECT");
  return off != nullptr && std::strcmp(off, "") != 0 && std::strcmp(off, "0") != 0;
}

std::optional<std::vector<unsigned>> VisibleDevices() {
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) return std::nullopt;
  std::vector<unsigned> indices;
  for (const std::string_view item : Split(text, ',')) {
    unsigned index = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), index);
    if (error != std::errc() || end != item.data() + item.size()) {
      // CUDA ends its list at the first device that is not there ("-1").
      if (item.starts_with("-")) break;
      return std::nullopt;
    }
    indices.push_back(index);
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

using Nvml = ManagementLibrary;

std::optional<std::pair<int, int>> AskTwo(const Nvml& nvml, const char* name, Device device) {
  const auto function = nvml.Find<int (*)(Device, int*, int*)>(name);
  int first = 0, second = 0;
  if (function == nullptr || function(device, &first, &second) != Nvml::kSuccess) {
    return std::nullopt;
  }
  return std::pair(first, second);
}

std::optional<int> AskCount(const Nvml& nvml, const char* name, Device device) {
  const auto count = nvml.Ask<unsigned>(name, device);
  return count ? std::optional(static_cast<int>(*count)) : std::nullopt;
}

std::optional<double> AskWatts(const Nvml& nvml, const char* name, Device device) {
  const auto milliwatts = nvml.Ask<unsigned>(name, device);
  return milliwatts ? std::optional(*milliwatts / 1e3) : std::nullopt;
}

std::optional<bool> AskSwitch(const Nvml& nvml, const char* name, Device device) {
  const auto now_and_later = AskTwo(nvml, name, device);
  return now_and_later ? std::optional(now_and_later->first == 1) : std::nullopt;
}

void AskMemory(const Nvml& nvml, Device device, GpuState& gpu) {
  if (const auto get = nvml.Find<int (*)(Device, MemoryV2*)>("nvmlDeviceGetMemoryInfo_v2")) {
    MemoryV2 memory{.version = kMemoryV2};
    if (get(device, &memory) == Nvml::kSuccess) {
      gpu.memory_bytes = memory.total;
      gpu.used_bytes = memory.used;
      return;
    }
  }
  // Its `used` counts what the driver keeps for itself: not what others use.
  if (const auto memory = nvml.Ask<MemoryV1>("nvmlDeviceGetMemoryInfo", device)) {
    gpu.memory_bytes = memory->total;
  }
}

void AskProcesses(const Nvml& nvml, Device device, GpuState& gpu) {
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
  if (status != Nvml::kSuccess) return;
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
  std::ifstream file("/sys/bus/pci/devices/" + LowerAscii(bus) + "/numa_node");
  int node = -1;
  return file >> node && node >= 0 ? std::optional(node) : std::nullopt;
}

GpuState AskGpu(const Nvml& nvml, unsigned index, Device device) {
  GpuState gpu;
  gpu.index = index;
  gpu.name = nvml.AskText("nvmlDeviceGetName", device);
  if (const auto pci = nvml.Ask<PciInfo>("nvmlDeviceGetPciInfo_v3", device)) {
    gpu.bus = pci->bus_id;
    gpu.numa_node = NumaNodeOf(gpu.bus);
  }
  AskMemory(nvml, device, gpu);
  if (const auto capability = AskTwo(nvml, "nvmlDeviceGetCudaComputeCapability", device)) {
    gpu.compute_major = capability->first;
    gpu.compute_minor = capability->second;
  }
  gpu.ecc = AskSwitch(nvml, "nvmlDeviceGetEccMode", device);
  gpu.mig = AskSwitch(nvml, "nvmlDeviceGetMigMode", device);
  gpu.limit_watts = AskWatts(nvml, "nvmlDeviceGetEnforcedPowerLimit", device);
  gpu.default_limit_watts = AskWatts(nvml, "nvmlDeviceGetPowerManagementDefaultLimit", device);
  gpu.pcie_generation = AskCount(nvml, "nvmlDeviceGetCurrPcieLinkGeneration", device);
  gpu.most_pcie_generation = AskCount(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", device);
  gpu.pcie_width = AskCount(nvml, "nvmlDeviceGetCurrPcieLinkWidth", device);
  gpu.most_pcie_width = AskCount(nvml, "nvmlDeviceGetMaxPcieLinkWidth", device);
  if (const auto state = nvml.Ask<int>("nvmlDeviceGetPerformanceState", device)) {
    constexpr int kLowest = 15;
    if (*state >= 0 && *state <= kLowest) gpu.performance_state = *state;
  }
  if (const auto mode = nvml.Ask<int>("nvmlDeviceGetComputeMode", device)) {
    if (*mode >= 0 && *mode <= 3) gpu.compute_mode = static_cast<GpuState::ComputeMode>(*mode);
  }
  AskProcesses(nvml, device, gpu);
  for (unsigned link = 0; link < kMostLinks; ++link) {
    const auto active = nvml.Ask<int>("nvmlDeviceGetNvLinkState", device, link);
    if (!active) continue;
    ++gpu.links;
    if (*active == 1) ++gpu.active_links;
  }
  return gpu;
}

// nvmlGpuP2PStatus_t.
std::string WhyNoPeer(int status) {
  constexpr const char* kReasons[] = {"",
                                      "the chipset does not support it",
                                      "the GPUs do not support it",
                                      "they hang on different host bridges",
                                      "the driver's settings turn it off",
                                      "the driver does not support it for them"};
  return status > 0 && status < std::ssize(kReasons) ? kReasons[status] : "";
}

GpuPair AskPair(const Nvml& nvml, unsigned a, unsigned b, Device device_a, Device device_b) {
  GpuPair pair{a, b, {}, "", false};
  const auto ask = [&](int capability) {
    return nvml.Ask<int>("nvmlDeviceGetP2PStatus", device_a, device_b, capability);
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
  states.driver = nvml.AskText("nvmlSystemGetDriverVersion");
  states.cuda = nvml.Ask<int>("nvmlSystemGetCudaDriverVersion_v2");
  const unsigned count = nvml.Ask<unsigned>("nvmlDeviceGetCount_v2").value_or(0);
  const auto chosen = VisibleDevices();
  std::vector<Device> devices;
  for (unsigned i = 0; i < count; ++i) {
    const auto device = nvml.Ask<Device>("nvmlDeviceGetHandleByIndex_v2", i);
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
          AskPair(nvml, states.gpus[a].index, states.gpus[b].index, devices[a], devices[b]));
    }
  }
  return states;
}

double PcieLaneBandwidth(int generation) {
  // GT/s and the share of it that is data: PCI Express base specifications 1.0 to 6.0.
  constexpr double kBandwidths[] = {0,
                                    2.5 * 0.8 / 8,
                                    5.0 * 0.8 / 8,
                                    8.0 * 128 / 130 / 8,
                                    16.0 * 128 / 130 / 8,
                                    32.0 * 128 / 130 / 8,
                                    64.0 * 242 / 256 / 8};
  return generation > 0 && generation < std::ssize(kBandwidths) ? kBandwidths[generation] : 0;
}

}  // namespace zeroplan
