#include "cli/measuring_processes.h"

#include <cstdlib>
#include <exception>
#include <optional>

#include "core/base/error.h"
#include "executor/process/launch_environment.h"
#include "executor/process/launcher.h"
#include "executor/process/single_process.h"
#include "executor/process/tcp_group.h"
#include "hwprofiles/detect.h"

namespace zeroplan {
namespace {

std::optional<ProcessPlace> OwnPlace() {
  return PlaceFromEnvironment([](const char* name) { return std::getenv(name); });
}

// One process of several.
void RunAsRank(const ProcessPlace& place, const std::function<void(ProcessGroup&)>& measure) {
  TcpGroup group(place, {.exit_when_stuck = std::chrono::milliseconds(20'000)});
  try {
    measure(group);
  } catch (const Error& error) {
    group.FailWith(error.code(), error.what());
    throw;
  } catch (const std::exception& error) {
    group.Fail(error.what());
    throw;
  }
}

}  // namespace

int MeasurableGpus() {
  constexpr const char* kWithout = "--only host,disk measures the rest";
#ifdef ZEROPLAN_WITH_CUDA
  if (const auto place = OwnPlace()) return place->world_size;
  // The driver's management library first: CUDA would start threads, which a launcher must not
  // have.
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
    RunAsRank(*place, measure);
    return;
  }
  LaunchOptions options;
  options.arguments = OwnArguments();
  options.ranks = gpus;
  const int code = Launch(options);
  if (code != 0) {
    throw Error(static_cast<ExitCode>(code), "hw measure: a process failed; its message is above");
  }
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
