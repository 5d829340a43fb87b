// zeroplan hw measure: this machine as a hardware profile.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>

#include "cli/common/commands.h"
#include "cli/common/executor_commands.h"
#include "cli/run/measure/measured_output.h"
#include "cli/run/train/host_fit.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/units.h"
#include "core/base/version.h"
#include "executor/measure/measure_cpu_ranks.h"
#include "executor/measure/measure_device.h"
#include "executor/measure/measure_host.h"
#include "executor/measure/part_runner.h"
#include "executor/process/process_group.h"
#include "hwprofiles/loader.h"
#include "hwprofiles/writer.h"
#include "machine/detect.h"
#include "machine/host_speed.h"
#include "planner/request/parse.h"

namespace zeroplan {
namespace {

constexpr const char* kFooter = R"(Examples:
  zeroplan hw measure -o mine.json              (then: zeroplan plan --hw ./mine.json ...)
  zeroplan hw measure --gpus 2 --quick -o mine.json
  zeroplan hw measure --only pcie,disk --nvme-path /scratch --base ./mine.json -o mine2.json
  mpirun ... zeroplan hw measure -o mine.json   (a process a GPU on several hosts: the first one's
                                                 figures, and the network between them)
Run it on an idle machine. What is not measured, or fails, comes from --base, with its sources.
A whole measurement is also kept ($ZEROPLAN_CACHE_DIR, else $XDG_CACHE_HOME/zeroplan, else
~/.cache/zeroplan): plan, estimate and train find it without --hw.)";

enum class MeasuredBackend : uint8_t { kCpu, kCuda };

struct MeasureCommand {
  std::string output, base, nvme_path, name;
  Given<int> gpus, threads;
  Given<MeasuredBackend> backend;
  std::vector<std::string> only;
  bool quick = false;
};

struct Parts {
  bool host = true, disk = true;
  DeviceParts device{true, true, true, true, true, true, true, true};
};

// As --only has them, and what each stands for.
std::vector<std::pair<const char*, bool*>> NamedParts(Parts& parts) {
  return {{"host", &parts.host},
          {"disk", &parts.disk},
          {"runtime", &parts.device.runtime},
          {"gemm", &parts.device.gemm},
          {"attention", &parts.device.attention},
          {"memory", &parts.device.memory},
          {"power", &parts.device.power},
          {"pcie", &parts.device.pcie},
          {"collectives", &parts.device.collectives},
          {"network", &parts.device.network}};
}

const OutputKind kProfileOut = {"a profile that zeroplan wrote", {"zeroplan.hw/"}};

std::vector<std::string> PartNames() {
  Parts parts;
  std::vector<std::string> names;
  for (const auto& [name, part] : NamedParts(parts)) names.emplace_back(name);
  return names;
}

Parts ParseParts(const std::vector<std::string>& only) {
  if (only.empty()) return {};
  Parts parts{false, false, {}};
  const auto named = NamedParts(parts);
  for (const std::string& word : only) *named[ParseWord(word, "--only", PartNames())].second = true;
  return parts;
}

std::string Today() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", &utc);
  return text;
}

// How many GPUs are measured: those that are asked for of those that are there.
int GpuCount(const MeasureCommand& command) {
  const int visible = MeasurableGpus();
  if (command.gpus && *command.gpus > visible) {
    ThrowUsage("--gpus: {} is more than the {} GPUs that are visible here", *command.gpus, visible);
  }
  return command.gpus.value_or(visible);
}

// What gives the figures that are not measured.
std::optional<HardwareProfile> BaseProfile(const MeasureCommand& command, const Parts& parts,
                                           int gpus) {
  std::vector<DetectedGpu> found = QueryGpus();
  if (gpus > 0 && static_cast<size_t>(gpus) < found.size()) {
    found.resize(static_cast<size_t>(gpus));
  }
  DetectedMachine machine;
  if (!found.empty()) machine = MatchMachine(found, QueryHost());
  if (!command.base.empty()) {
    HardwareProfile base = LoadProfile(command.base);
    if (parts.device.any() && machine.profile && machine.profile->gpu.name != base.gpu.name) {
      LogWarning(
          "--base: {} is of an {}, and here is an {}; its name, peaks and whatever is not measured "
          "go into the profile",
          command.base, base.gpu.name, machine.profile->gpu.name);
    }
    return base;
  }
  if (machine.profile) return machine.profile;
  if (!found.empty()) LogInfo("{}", machine.note);
  if (!parts.device.any()) {
    LogInfo("GPU figures are those of {}; --base names another profile.", kDefaultProfile);
    return LoadProfile(std::string(kDefaultProfile));
  }
  if (!parts.device.pcie || !parts.device.runtime) {
    ThrowUsage(
        "--only: no built-in profile describes this GPU, so pcie and runtime must be measured too; "
        "leave --only out, or give a profile with --base");
  }
  return std::nullopt;
}

std::string ProfileName(const MeasureCommand& command, const std::optional<HardwareProfile>& base,
                        int gpus) {
  constexpr std::string_view kSuffix = "-measured";
  if (!command.name.empty()) return command.name;
  std::string name = base ? base->name : fmt::format("{}-gpus", gpus);
  if (!name.ends_with(kSuffix)) name += kSuffix;
  return name;
}

void MeasureHostPart(const MeasureCommand& command, PartRunner& runner,
                     const DetectedHost& machine) {
  const uint64_t bytes = HostMeasureBytes(AvailableHostMemory(std::nullopt).bytes, command.quick);
  const int threads = std::max(1, machine.cores);
  runner.Try("host", fmt::format("{} of memory on {} threads", FormatBytes(bytes), threads),
             [&](MachineMeasurement& out) {
               out.host = MeasureHostMemory(bytes, threads, command.quick ? 3 : 7);
             });
}

void MeasureDiskPart(const MeasureCommand& command, PartRunner& runner) {
  const bool named = !command.nvme_path.empty();
  const std::string folder =
      named ? command.nvme_path : std::filesystem::temp_directory_path().string();
  constexpr uint64_t kStep = uint64_t{32} << 20;
  const double free_bytes = DiskFreeBytes(folder);
  const uint64_t most = command.quick ? 16 * kStep : 64 * kStep;
  const uint64_t bytes = std::min(most, static_cast<uint64_t>(free_bytes / 4) / kStep * kStep);
  if (bytes == 0 && (free_bytes > 0 || !named)) {
    LogInfo("disk: not measured, {} has too little room", folder);
    return;
  }
  const std::string what = fmt::format("{} in {}", FormatBytes(std::max(bytes, kStep)), folder);
  runner.Try("disk", what, [&](MachineMeasurement& out) {
    out.disk = MeasureDisk({.folder = folder, .bytes = std::max(bytes, kStep)});
    out.disk_folder = folder;
    if (named) out.disk_free_bytes = DiskFreeBytes(folder);
    if (!out.disk) {
      LogInfo("  not measured: {} is in memory; name a folder with --nvme-path", folder);
    }
  });
}

// What rank 0 does; the other ranks only measure with it.
void Measure(const MeasureCommand& command, const Parts& parts, ProcessGroup& group) {
  const auto begin = std::chrono::steady_clock::now();
  const int of_host = parts.device.any() ? group.place().local_world_size : 0;
  std::optional<HardwareProfile> base;
  MachineMeasurement result;
  if (group.rank() == 0) {
    base = BaseProfile(command, parts, of_host);
    result.when = Today();
    result.version = kVersion;
    result.machine = QueryHost();
    result.nccl_environment = NcclEnvironment();
    PartRunner runner(result, [](const std::string& what) { LogInfo("{}", what); });
    if (parts.host) MeasureHostPart(command, runner, result.machine);
    if (parts.disk) MeasureDiskPart(command, runner);
  }
  const std::string name = ProfileName(command, base, of_host);
  if (parts.device.any()) {
    DeviceMeasureOptions options{.parts = parts.device, .quick = command.quick};
    options.progress = [](const std::string& what) { LogInfo("{}", what); };
    try {
      MeasureGpus(group, options, result);
    } catch (const Error&) {
      if (group.rank() == 0) KeepPartial(command.output, base, result, name);
      throw;
    }
  }
  if (group.rank() != 0) return;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  LogInfo("all parts: {:.1f} s", seconds.count());
  const std::string text = WriteMeasured(command.output, base, result, name);
  if (!parts.device.any()) return;
  std::vector<DetectedGpu> found = QueryGpus();
  // None where detection is off: then nothing finds the kept profile.
  found.resize(found.size() < static_cast<size_t>(of_host) ? 0 : static_cast<size_t>(of_host));
  KeepMeasured(text, result.when, std::move(found), command.only.empty());
}

// Ranks of the CPU, one a process: those of a launcher, or as many as --gpus says.
void RunMeasureCpu(const MeasureCommand& command) {
  if (!command.only.empty() || !command.base.empty() || !command.nvme_path.empty()) {
    ThrowUsage("--only, --base and --nvme-path are not for --backend cpu; leave them out");
  }
  const int ranks = LaunchedRanks().value_or(command.gpus.value_or(1));
  RunOnGpus(ranks, [&](ProcessGroup& group) {
    CpuMeasureOptions options;
    const int cores = std::max(1, QueryHost().cores);
    options.threads =
        command.threads.value_or(std::max(1, cores / std::max(1, group.place().local_world_size)));
    options.quick = command.quick;
    options.progress = [](const std::string& what) { LogInfo("{}", what); };
    CpuRanksMeasurement measured = MeasureCpuRanks(group, options);
    if (group.rank() != 0) return;
    measured.when = Today();
    measured.version = kVersion;
    const std::string name = command.name.empty() ? "cpu-ranks-measured" : command.name;
    WriteProfileText(command.output, WriteProfile(CpuRanksProfile(measured, name)));
  });
}

void RunMeasure(const MeasureCommand& command) {
  if (command.backend == MeasuredBackend::kCpu) return RunMeasureCpu(command);
  if (command.threads) ThrowUsage("--threads: only for --backend cpu; leave it out");
  const Parts parts = ParseParts(command.only);
  if (!command.only.empty() && parts.device.network && !LaunchedOnHosts()) {
    ThrowUsage(
        "--only: network is between hosts, and all ranks are on this one; start 'zeroplan hw "
        "measure' on several with a launcher (torchrun, mpirun, srun), or leave network out");
  }
  const int gpus = parts.device.any() ? GpuCount(command) : 0;
  if (!parts.device.any() && command.gpus) {
    ThrowUsage("--gpus: {} is not allowed where no GPU is measured; leave it out", *command.gpus);
  }
  RunOnGpus(gpus, [&](ProcessGroup& group) { Measure(command, parts, group); });
}

}  // namespace

void RegisterHardwareMeasure(Command& hardware) {
  auto options = std::make_shared<MeasureCommand>();
  Command command = hardware.Add(kMeasureCommand.name, kMeasureCommand.help);
  command.Text({.group = "Output",
                .name = "-o,--out",
                .type = "FILE",
                .help = "File for the profile (default: stdout)",
                .path = PathRole::Writes(kProfileOut)},
               options->output);
  command.Text(
      {"Output", "--name", "NAME", "Name of the profile (default: the base's, with -measured)"},
      options->name);
  const char* what = "What is measured";
  command.Value({what, "--gpus", "COUNT", "GPUs, one process each (default: all that are visible)"},
                options->gpus, WholeIn<int>(1, 1024));
  command.Value({what, "--backend", "cpu|cuda",
                 "cpu: ranks of the CPU, one a process, with their collectives within a host and "
                 "between hosts; started by a launcher as train's are, or --gpus of them on this "
                 "host (default cuda)"},
                options->backend, WordIn<MeasuredBackend>({"cpu", "cuda"}));
  command.Value({what, "--threads", "COUNT",
                 "With --backend cpu: threads of a rank (default: cores / ranks of this host)"},
                options->threads, WholeIn<int>(1, 1024));
  command.Flag(what, "--quick", "Fewer shapes and sizes: about a quarter of the time",
               options->quick);
  command.List(
      {what, "--only", "PART", fmt::format("Measure only these: {}", fmt::join(PartNames(), ", "))},
      /*required=*/false, ',', options->only, PartNames);
  command.Text({.group = what,
                .name = "--nvme-path",
                .type = "DIR",
                .help = "Folder whose disk is measured, and whose free space is the capacity "
                        "(default: the temporary folder, no capacity)",
                .path = {PathRole::Use::kFill}},
               options->nvme_path);
  command.Text({what, "--base", "NAME|FILE",
                "Profile that gives what is not measured (default: the built-in one of these "
                "GPUs)"},
               options->base, ProfileNames);
  command.Footer(kFooter);
  command.Run([options] { RunMeasure(*options); });
}

}  // namespace zeroplan
