#include "machine/detect.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>

#include "core/base/error.h"
#include "hwprofiles/loader.h"
#include "hwprofiles/parts.h"
#include "machine/control_group.h"
#include "machine/memory_info.h"

namespace zeroplan {
namespace {

// "NVIDIA A100-SXM4-40GB" and "A100-SXM4-40GB" are the same card under newer and older drivers.
std::string_view WithoutBrand(std::string_view name) {
  for (const std::string_view brand : {"NVIDIA ", "Tesla "}) {
    if (name.starts_with(brand)) name.remove_prefix(brand.size());
  }
  return name;
}

// The built-in machine of `count` GPUs that are `part`, or "".
std::string MachineName(const std::string& part, double count) {
  for (const KnownMachine& machine : KnownMachines()) {
    if (machine.gpu_part == part && machine.gpus == count) return machine.name;
  }
  return "";
}

Figure FoundFigure(double value, double written, const char* unit, const char* reference) {
  Figure figure;
  figure.value = value;
  figure.written = written;
  figure.unit = unit;
  figure.source = FigureSource::kMeasured;
  figure.reference = reference;
  return figure;
}

}  // namespace

DetectedHost QueryHost() {
  DetectedHost host;
  host.memory_bytes = static_cast<double>(MemoryInfo("MemTotal").value_or(0));
  if (const auto group = QueryControlGroupMemory()) {
    const auto limit = static_cast<double>(group->limit_bytes);
    host.memory_bytes = host.memory_bytes > 0 ? std::min(host.memory_bytes, limit) : limit;
  }
  cpu_set_t cores;
  host.cores = sched_getaffinity(0, sizeof cores, &cores) == 0
                   ? CPU_COUNT(&cores)
                   : static_cast<int>(std::thread::hardware_concurrency());
  if (const auto quota = QueryControlGroupCpus()) {
    host.cores = std::min(host.cores, std::max(1, static_cast<int>(quota->processors)));
  }
  return host;
}

std::string MatchGpu(const DetectedGpu& gpu) {
  constexpr double kTolerance = 0.1;  // GB or GiB, and what ECC takes
  for (const KnownGpu& known : KnownGpus()) {
    if (std::abs(gpu.memory_bytes - known.memory_bytes) > kTolerance * known.memory_bytes) continue;
    const auto& names = known.driver_names;
    if (std::find(names.begin(), names.end(), WithoutBrand(gpu.name)) != names.end()) {
      return known.part;
    }
  }
  return "";
}

DetectedMachine MatchMachine(const std::vector<DetectedGpu>& gpus, const DetectedHost& host) {
  ZEROPLAN_CHECK(!gpus.empty());
  DetectedMachine machine;
  machine.found = fmt::format("{} x {}", gpus.size(), gpus[0].name);
  const std::string part = MatchGpu(gpus[0]);
  for (const DetectedGpu& gpu : gpus) {
    if (gpu.name == gpus[0].name || MatchGpu(gpu) == part) continue;
    machine.found =
        fmt::format("{} GPUs, among them {} and {}", gpus.size(), gpus[0].name, gpu.name);
    machine.note =
        fmt::format("This machine has {}: a plan is for GPUs of one kind.", machine.found);
    return machine;
  }
  if (part.empty()) {
    machine.note = fmt::format(
        "This machine has {} ({:.0f} GB), which no built-in profile describes; see 'zeroplan hw "
        "list'.",
        machine.found, gpus[0].memory_bytes / 1e9);
    return machine;
  }
  const auto count = static_cast<double>(gpus.size());
  const std::string built_in = gpus.size() > 1 ? MachineName(part, count) : "";
  HardwareProfile profile = LoadProfile(built_in.empty() ? part : built_in);
  if (built_in.empty()) {
    profile.node.gpus =
        FoundFigure(count, count, "count", "GPUs of this machine, as the driver says");
    profile.description = fmt::format("{} in this machine, other figures generic", machine.found);
    if (gpus.size() > 1) profile.name = fmt::format("{}x-{}", gpus.size(), part);
  }
  if (host.memory_bytes > 0) {
    constexpr double kGib = 1024.0 * 1024 * 1024;
    profile.node.host_memory =
        FoundFigure(host.memory_bytes, host.memory_bytes / kGib, "GiB",
                    "memory of this machine, or of the control group zeroplan runs in");
  }
  if (host.cores > 0) {
    profile.node.cores =
        FoundFigure(host.cores, host.cores, "count", "cores of this machine that zeroplan may use");
  }
  if (host.triad_bandwidth > 0) {
    // What the CPU backend's AdamW moved over what the triad did on three hosts: 1.04, 1.14, 1.25.
    constexpr double kAdamOverTriad = 1.14, kGiga = 1e9;
    const double triad = host.triad_bandwidth, adam = kAdamOverTriad * triad;
    profile.node.triad_bandwidth = FoundFigure(triad, triad / kGiga, "GB/s",
                                               "triad on all cores of this machine, measured now");
    Figure derived = FoundFigure(adam, adam / kGiga, "GB/s",
                                 "1.14 x the triad that was measured now, the mean of three hosts");
    derived.source = FigureSource::kDerived;
    profile.node.adam_bandwidth = std::move(derived);
  }
  profile.source = "this machine";
  machine.profile = std::move(profile);
  return machine;
}

}  // namespace zeroplan
