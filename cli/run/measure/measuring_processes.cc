#include "cli/run/measure/measuring_processes.h"

#include <cstdlib>
#include <memory>
#include <optional>

#include "cli/run/train/train_ranks.h"
#include "core/base/error.h"
#include "executor/process/launch_environment.h"
#include "executor/process/process_group.h"
#include "executor/process/stop_signals.h"
#include "machine/detect.h"

namespace zeroplan {
namespace {

std::optional<ProcessPlace> OwnPlace() {
  return PlaceFromEnvironment([](const char* name) { return std::getenv(name); });
}

}  // namespace

int MeasurableGpus() {
  constexpr const char* kWithout = "--only host,disk measures the rest";
#ifdef ZEROPLAN_WITH_CUDA
  if (const auto place = OwnPlace()) return place->world_size;
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
