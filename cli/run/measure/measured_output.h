// The output of hw measure, whole or in part.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "executor/measure/measure_device.h"
#include "executor/measure/measurement.h"
#include "executor/process/process_group.h"
#include "hwprofiles/profile.h"
#include "machine/detect.h"

namespace zeroplan {

// Writes the measured profile to `file`, or to stdout if that is empty. Throws Error(kRuntime) if
// it contradicts itself, and stores it as FILE.rejected; and if parts failed: the profile has the
// base's figures in their place, and the error names them. Without a base to replace them, writes
// no profile. Returns the text.
std::string WriteMeasured(const std::string& file, const std::optional<HardwareProfile>& base,
                          const MachineMeasurement& measurement, const std::string& name);

// Stores the profile `text`, measured on the day `when` with these GPUs of this machine, where
// plan, estimate and train find it (machine/detect.h), and prints that; or prints why not. Does not
// store a part of a measurement, because the rest would be the base's. Nothing without GPUs
// (detection is off).
void KeepMeasured(const std::string& text, const std::string& when, std::vector<DetectedGpu> gpus,
                  bool whole);

// After a failure that ended measuring: stores the finished parts, if there are any and a base has
// the others, as FILE.partial.json (after FILE without ".json"), and prints that.
void KeepPartial(const std::string& file, const std::optional<HardwareProfile>& base,
                 const MachineMeasurement& measurement, const std::string& name) noexcept;

// Writes the text of a profile to `file` ("" stdout), if it passes the loader's checks; else into
// FILE.rejected, and throws Error(kRuntime) with the contradiction and then `failed`.
void WriteProfileText(const std::string& file, const std::string& text,
                      const std::string& failed = "");

// The processes that measure GPUs, one a GPU, and the error of a build without CUDA.

// GPUs of this host that can be measured; in one process of several, the number of processes on all
// hosts. Throws Error(kUsage) if there is none, or if this build lacks CUDA.
int MeasurableGpus();

// The number of ranks that a launcher started, including this process; nothing without a launcher.
std::optional<int> LaunchedRanks();
// Whether those ranks are on several hosts.
bool LaunchedOnHosts();

// Runs `measure` with `gpus` processes: in this one if that is at most one, or if it is one of
// them; else starts this command once for each GPU and waits. Throws as the ranks do.
void RunOnGpus(int gpus, const std::function<void(ProcessGroup&)>& measure);

// MeasureDevice (measure_device.h). REQUIRES: MeasurableGpus did not throw.
void MeasureGpus(ProcessGroup& group, const DeviceMeasureOptions& options,
                 MachineMeasurement& result);

}  // namespace zeroplan
