#include "cli/run/measure/measured_output.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "cli/common/output.h"
#include "cli/run/train/train_ranks.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/stop_signals.h"
#include "executor/measure/measured_profile.h"
#include "executor/process/launch_environment.h"
#include "executor/process/process_group.h"
#include "hwprofiles/loader.h"
#include "hwprofiles/writer.h"
#include "machine/detect.h"

namespace zeroplan {

namespace {

constexpr std::string_view kDefaultFile = "zeroplan-hw.json";

// No name that a profile is looked for under: it is none to plan with.
std::string RejectedFile(const std::string& file) {
  return fmt::format("{}.rejected", file.empty() ? kDefaultFile : std::string_view(file));
}

// "mine.partial.json" of "mine.json" and "partial": a name that --base takes.
std::string FileBeside(const std::string& file, std::string_view what) {
  constexpr std::string_view kSuffix = ".json";
  std::string_view stem = file.empty() ? kDefaultFile : std::string_view(file);
  if (stem.ends_with(kSuffix)) stem.remove_suffix(kSuffix.size());
  return fmt::format("{}.{}{}", stem, what, kSuffix);
}

std::string FailedParts(const MachineMeasurement& measurement) {
  std::vector<std::string> names;
  for (const FailedPart& part : measurement.failed) names.push_back(part.name);
  return fmt::format("{}", fmt::join(names, ","));
}

std::string MeasuredReasons(const MachineMeasurement& measurement) {
  std::string text;
  for (const FailedPart& part : measurement.failed) {
    text += fmt::format("\n  {}: {}", part.name, part.why);
  }
  return text;
}

}  // namespace

void WriteProfileText(const std::string& file, const std::string& text, const std::string& failed) {
  try {
    ParseProfile(text, file.empty() ? "measured profile" : file);
  } catch (const Error& error) {
    // Not for planning, but a minute of measuring is worth a look.
    const std::string rejected = RejectedFile(file);
    WriteData(rejected, text);
    ThrowRuntime(
        "{}\n  These measurements contradict each other or --base; they are in {}. Measure again "
        "on an idle machine.{}",
        error.what(), rejected, failed);
  }
  WriteData(file, text);
}

std::string WriteMeasured(const std::string& file, const std::optional<HardwareProfile>& base,
                          const MachineMeasurement& measurement, const std::string& name) {
  if (!measurement.failed.empty()) {
    if (measurement.measured.empty()) {
      ThrowRuntime("hw measure: nothing could be measured:{}", MeasuredReasons(measurement));
    }
    if (!base && (!measurement.pcie || measurement.runtime.empty())) {
      ThrowRuntime(
          "hw measure: no profile was written: these parts failed, and there is no --base whose "
          "figures could take their place:{}",
          MeasuredReasons(measurement));
    }
  }
  std::string text = WriteProfile(MeasuredProfile(base, measurement, name));
  WriteProfileText(file, text, MeasuredReasons(measurement));
  if (measurement.failed.empty()) return text;
  const std::string written = file.empty() ? "the profile" : file;
  ThrowRuntime(
      "hw measure: {} was written, but these parts failed and have the figures of {}:{}\n  To "
      "measure them again: zeroplan hw measure --only {} --base {} -o {}",
      written, base ? base->name : "the GPU's properties, or none", MeasuredReasons(measurement),
      FailedParts(measurement), file.empty() ? "FILE" : file, FileBeside(file, "again"));
}

void KeepMeasured(const std::string& text, const std::string& when, std::vector<DetectedGpu> gpus,
                  bool whole) {
  if (gpus.empty()) return;
  if (!whole) {
    LogInfo(
        "Not kept for plan, estimate and train: --only measures a part; name the file with --hw");
    return;
  }
  const std::string file = KeptProfileFile(gpus.size());
  if (file.empty()) {
    LogWarning(
        "not kept for plan, estimate and train: HOME is not set; ZEROPLAN_CACHE_DIR names a "
        "folder");
    return;
  }
  try {
    KeepProfile(file, IdentityOf(std::move(gpus)), text, when);
  } catch (const Error& error) {
    LogWarning("{}", error.what());
    return;
  }
  LogInfo("Kept in {}: plan, estimate and train on these GPUs use it where --hw is left out.",
          file);
}

void KeepPartial(const std::string& file, const std::optional<HardwareProfile>& base,
                 const MachineMeasurement& measurement, const std::string& name) noexcept {
  try {
    if (!base || measurement.measured.empty()) return;
    const std::string partial = FileBeside(file, "partial");
    WriteData(partial, WriteProfile(MeasuredProfile(base, measurement, name)));
    LogWarning(
        "{} has what was measured before the failure ({}), and the figures of {} for the "
        "rest; --base takes it, --only measures the rest",
        partial, fmt::join(measurement.measured, ","), base->name);
  } catch (const std::exception& error) {
    LogLine(LogLevel::kWarning, error.what());
  }
}

namespace {

std::optional<ProcessPlace> OwnPlace() {
  return PlaceFromEnvironment([](const char* name) { return std::getenv(name); });
}

}  // namespace

std::optional<int> LaunchedRanks() {
  const auto place = OwnPlace();
  return place ? std::optional(place->world_size) : std::nullopt;
}

bool LaunchedOnHosts() {
  const auto place = OwnPlace();
  return place && place->local_world_size < place->world_size;
}

int MeasurableGpus() {
  constexpr const char* kWithout = "--only host,disk measures the rest";
  const std::optional<ProcessPlace> place = OwnPlace();
#ifdef ZEROPLAN_WITH_CUDA
  if (place) return place->world_size;
  // The driver's management library first, since CUDA starts threads: where it is asked, they must
  // leave stop signals to a launcher.
  const StopSignalsBlocked blocked;
  const auto found = static_cast<int>(QueryGpus().size());
  const int gpus = found > 0 ? found : VisibleGpus();
  if (gpus == 0) ThrowUsage("hw measure: no GPU is visible here; {}", kWithout);
  return gpus;
#else
  ThrowUsage("hw measure: this build has no CUDA executor, so it cannot measure GPUs; {}",
             kWithout);
#endif
}

void RunOnGpus(int gpus, const std::function<void(ProcessGroup&)>& measure) {
  if (gpus <= 1) {
    SingleProcess alone;
    measure(alone);
    return;
  }
  if (const auto place = OwnPlace()) {
    if (place->world_size != gpus) {
      ThrowUsage("--gpus: {} is not the {} processes that were started; leave it out", gpus,
                 place->world_size);
    }
    const std::unique_ptr<ProcessGroup> group = JoinGroup(*place);
    SpreadFailure(*group, [&] { measure(*group); });
    return;
  }
  LaunchRanks(gpus);
}

#ifdef ZEROPLAN_WITH_CUDA
void MeasureGpus(ProcessGroup& group, const DeviceMeasureOptions& options,
                 MachineMeasurement& result) {
  MeasureDevice(group, options, result);
}
#else
void MeasureGpus(ProcessGroup&, const DeviceMeasureOptions&, MachineMeasurement&) {
  ZEROPLAN_CHECK(false, "no CUDA in this build");
}
#endif

}  // namespace zeroplan
