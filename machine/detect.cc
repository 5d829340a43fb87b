#include "machine/detect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/units.h"
#include "hwprofiles/loader.h"
#include "hwprofiles/parts.h"
#include "hwprofiles/unequal.h"
#include "machine/gpu_state.h"
#include "machine/host_speed.h"
#include "machine/host_state.h"

namespace zeroplan {
namespace {

// "NVIDIA A100-SXM4-40GB" and "A100-SXM4-40GB" are the same card under newer and older drivers.
std::string_view WithoutBrand(std::string_view name) {
  for (const std::string_view brand : {"NVIDIA ", "Tesla "}) {
    if (name.starts_with(brand)) name.remove_prefix(brand.size());
  }
  return name;
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

std::string NcclEnvironment(const char* const* environment) {
  std::vector<std::string> variables;
  for (; *environment != nullptr; ++environment) {
    if (std::string_view(*environment).starts_with("NCCL_")) variables.emplace_back(*environment);
  }
  std::sort(variables.begin(), variables.end());
  return fmt::format("{}", fmt::join(variables, " "));
}

std::string NcclEnvironment() { return NcclEnvironment(environ); }

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

std::string GpusText(const std::vector<DetectedGpu>& gpus) {
  GpuCounts kinds;
  for (const DetectedGpu& gpu : gpus) AddTo(kinds, gpu.name, 1);
  std::vector<std::string> texts;
  for (const auto& [name, count] : kinds) texts.push_back(fmt::format("{} x {}", count, name));
  return fmt::format("{}", fmt::join(texts, ", "));
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
  machine.found = GpusText(gpus);
  GpuCounts parts;
  const DetectedGpu* before = nullptr;
  std::string part;
  for (const DetectedGpu& gpu : gpus) {
    if (before == nullptr || !(gpu == *before)) part = MatchGpu(gpu);
    before = &gpu;
    if (part.empty()) {
      machine.note = fmt::format(
          "This machine has {} ({}{:.0f} GB), which no built-in profile describes; see 'zeroplan "
          "hw list'.",
          machine.found, gpu.name == gpus[0].name ? "" : gpu.name + ": ", gpu.memory_bytes / 1e9);
      return machine;
    }
    AddTo(parts, part, 1);
  }
  part = parts.front().first;
  const bool unequal = parts.size() > 1;
  const auto count = static_cast<double>(gpus.size());
  const std::string built_in = gpus.size() > 1 && !unequal ? MachineOf(part, count) : "";
  HardwareProfile profile =
      unequal ? UnequalProfile(parts) : LoadProfile(built_in.empty() ? part : built_in);
  if (built_in.empty()) {
    profile.node.gpus =
        FoundFigure(count, count, "count", "GPUs of this machine, as the driver says");
    profile.description = fmt::format("{} in this machine, other figures generic", machine.found);
    if (gpus.size() > 1 && !unequal) profile.name = fmt::format("{}x-{}", gpus.size(), part);
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
    constexpr double kGiga = 1e9;
    profile.node.triad_bandwidth =
        FoundFigure(host.triad_bandwidth, host.triad_bandwidth / kGiga, "GB/s",
                    "triad on all cores of this machine, measured now");
    profile.node.adam_bandwidth =
        FoundFigure(host.adam_bandwidth, host.adam_bandwidth / kGiga, "GB/s",
                    "AdamW's loop on all cores of this machine, measured now");
  }
  profile.source = kFoundSource;
  machine.profile = std::move(profile);
  return machine;
}

std::vector<DetectedGpu> QueryGpus() {
  if (DetectionIsOff()) return {};
  struct Memory {
    unsigned long long total, free, used;
  };
  const ManagementLibrary nvml;
  std::vector<DetectedGpu> all;
  const unsigned count = nvml.Ask<unsigned>("nvmlDeviceGetCount_v2").value_or(0);
  for (unsigned i = 0; i < count; ++i) {
    const auto device = nvml.Ask<void*>("nvmlDeviceGetHandleByIndex_v2", i);
    const std::string name = device ? nvml.AskText("nvmlDeviceGetName", *device) : "";
    std::optional<Memory> memory;
    if (device) memory = nvml.Ask<Memory>("nvmlDeviceGetMemoryInfo", *device);
    if (name.empty() || !memory) {
      all.clear();  // part of a machine would be worse than none
      break;
    }
    all.push_back({name, static_cast<double>(memory->total)});
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
  return DetectionIsOff() ? "" : ManagementLibrary().AskText("nvmlSystemGetDriverVersion");
}

namespace {

namespace fs = std::filesystem;

constexpr const char* kSchema = "zeroplan.kept/1";
constexpr const char* kAgain = "zeroplan hw measure";

std::string HostName() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "host";
  std::string safe = name;
  for (char& c : safe) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '-';
  }
  return safe;
}

ProfileJson ToJson(const MachineIdentity& machine) {
  ProfileJson gpus = ProfileJson::array();
  for (const DetectedGpu& gpu : machine.gpus) {
    gpus.push_back({{"name", gpu.name}, {"memory_bytes", gpu.memory_bytes}});
  }
  return {{"gpus", std::move(gpus)}, {"driver", machine.driver}, {"cores", machine.cores}};
}

MachineIdentity FromJson(const ProfileJson& json) {
  MachineIdentity machine;
  for (const ProfileJson& gpu : json.at("gpus")) {
    machine.gpus.push_back(
        {gpu.at("name").get<std::string>(), gpu.at("memory_bytes").get<double>()});
  }
  json.at("driver").get_to(machine.driver);
  json.at("cores").get_to(machine.cores);
  return machine;
}

std::string Describe(const std::vector<DetectedGpu>& gpus) {
  return gpus.empty() ? "no GPU" : GpusText(gpus);
}

// What changed from `then` to `now`, for people.
std::string Change(const MachineIdentity& then, const MachineIdentity& now) {
  const auto from_to = [](const char* what, const auto& before, const auto& after) {
    return fmt::format("the {} {} then, and {} now", what, before, after);
  };
  if (then.gpus != now.gpus) {
    return from_to("GPUs were", Describe(then.gpus), Describe(now.gpus));
  }
  if (then.driver != now.driver) return from_to("driver was", then.driver, now.driver);
  return from_to("cores were", then.cores, now.cores);
}

}  // namespace

MachineIdentity IdentityOf(std::vector<DetectedGpu> gpus) {
  return {std::move(gpus), QueryDriver(), QueryHost().cores};
}

std::string KeptProfileFile(size_t gpus) {
  const std::string folder = CacheFolder();
  if (folder.empty()) return "";
  return fmt::format("{}/hw-{}-{}-gpus.json", folder, HostName(), gpus);
}

void KeepProfile(const std::string& file, const MachineIdentity& machine,
                 const std::string& profile, const std::string& when) {
  const ProfileJson json = {{"schema", kSchema},
                            {"measured", when},
                            {"machine", ToJson(machine)},
                            {"profile", ParseJson(profile, file)}};
  const auto fail = [&](const std::string& why) {
    ThrowRuntime("cannot keep the profile in {}: {}; ZEROPLAN_CACHE_DIR names another folder", file,
                 why);
  };
  std::error_code failure;
  fs::create_directories(fs::path(file).parent_path(), failure);
  if (failure) fail(failure.message());
  const std::string temporary = fmt::format("{}.{}", file, getpid());
  {
    std::ofstream out(temporary, std::ios::trunc);
    out << FormatProfileJson(json);
    out.close();
    if (!out) {
      fs::remove(temporary, failure);
      fail("it cannot be written");
    }
  }
  fs::rename(temporary, file, failure);
  if (failure) {
    const std::string why = failure.message();
    fs::remove(temporary, failure);
    fail(why);
  }
}

KeptProfile ReadKeptProfile(const std::string& file, const MachineIdentity& machine) {
  KeptProfile kept;
  std::ifstream in(file);
  if (file.empty() || !in) return kept;
  try {
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    const ProfileJson json = ParseJson(text, file);
    if (!json.is_object() || json.value("schema", "") != kSchema) {
      ThrowUsage("{}: schema is not {}", file, kSchema);
    }
    kept.when = json.at("measured").get<std::string>();
    const MachineIdentity then = FromJson(json.at("machine"));
    if (then != machine) {
      kept.note = fmt::format(
          "What 'hw measure' kept of this machine on {} is not used: {}. To measure again: {}",
          kept.when, Change(then, machine), kAgain);
      return kept;
    }
    kept.profile = ParseProfile(json.at("profile").dump(), file);
  } catch (const std::exception& error) {
    kept.profile.reset();
    kept.note =
        fmt::format("What 'hw measure' kept of this machine is not used: {}. To measure again: {}",
                    error.what(), kAgain);
  }
  return kept;
}

namespace {

// What 'hw measure' kept of these GPUs in this machine.
void FindKept(const std::vector<DetectedGpu>& gpus, FoundMachine& found) {
  const std::string file = KeptProfileFile(gpus.size());
  KeptProfile kept = ReadKeptProfile(file, IdentityOf(gpus));
  if (!kept.note.empty()) found.notes.push_back(std::move(kept.note));
  if (!kept.profile) return;
  found.assumed.push_back(
      fmt::format("⟦hw⟧ {} (this machine, as 'hw measure' kept it on {})", file, kept.when));
  found.profile = std::move(kept.profile);
}

}  // namespace

FoundMachine FindThisMachine(bool measure_host) {
  FoundMachine found;
  const std::vector<DetectedGpu> gpus = QueryGpus();
  if (gpus.empty()) return found;
  found.gpus = static_cast<int>(gpus.size());
  FindKept(gpus, found);
  if (found.profile) return found;
  DetectedHost host = QueryHost();
  if (measure_host && !MatchGpu(gpus[0]).empty()) {
    const int threads = std::max(1, host.cores);
    const MemoryRates rates = MeasureMemory(MemoryBytes(threads), threads);
    host.triad_bandwidth = rates.triad;
    host.adam_bandwidth = rates.adam;
  }
  DetectedMachine machine = MatchMachine(gpus, host);
  found.profile = std::move(machine.profile);
  if (!found.profile) {
    found.notes.push_back(
        fmt::format("{} Planned for {}; ⟦hw⟧ names another.", machine.note, kDefaultProfile));
    return found;
  }
  found.assumed.push_back(
      fmt::format("⟦hw⟧ {} (this machine: {})", found.profile->name, machine.found));
  if (host.triad_bandwidth > 0) {
    found.notes.push_back(
        fmt::format("Host memory of this machine: {}/s, measured now; 'zeroplan hw measure' "
                    "measures the rest and keeps it.",
                    FormatBytes(static_cast<uint64_t>(host.triad_bandwidth))));
  }
  return found;
}

}  // namespace zeroplan
