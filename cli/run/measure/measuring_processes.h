// The processes that measure GPUs, one a GPU, and what a build without CUDA says instead.
#pragma once

#include <functional>

#include "executor/measure/measure_device.h"
#include "executor/process/process_group.h"

namespace zeroplan {

// GPUs that can be measured: in one process of several, as many as there are processes. Throws
// Error(kUsage) if there is none, or no CUDA in this build.
int MeasurableGpus();

// Runs `measure` with `gpus` processes: in this one where that is at most one, or where it is one
// of them; else starts this command once for each GPU and waits. Throws as the ranks do.
void RunOnGpus(int gpus, const std::function<void(ProcessGroup&)>& measure);

// MeasureDevice (measure_device.h). REQUIRES: MeasurableGpus did not throw.
void MeasureGpus(ProcessGroup& group, const DeviceMeasureOptions& options,
                 MachineMeasurement& result);

}  // namespace zeroplan
