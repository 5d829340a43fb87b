#include "cli/measuring_processes.h"

#include "core/base/error.h"
#include "executor/process/single_process.h"

namespace zeroplan {

int MeasurableGpus() {
  constexpr const char* kWithout = "--only host,disk measures the rest";
#ifdef ZEROPLAN_WITH_CUDA
  const int gpus = VisibleGpus();
  if (gpus == 0) ThrowUsage("hw measure: no GPU is visible here; {}", kWithout);
  return gpus;
#else
  ThrowUsage("hw measure: this build has no CUDA executor, so it cannot measure GPUs; {}",
             kWithout);
#endif
}

void RunOnGpus(int gpus, const std::function<void(ProcessGroup&)>& measure) {
  if (gpus > 1) ThrowUsage("hw measure: {} GPUs need a process each; use --gpus 1", gpus);
  SingleProcess alone;
  measure(alone);
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
