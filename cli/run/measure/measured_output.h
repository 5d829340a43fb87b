// What hw measure writes, whole or in part.
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

// The measured profile to `file`, or to stdout if that is empty. Throws Error(kRuntime) if it
// contradicts itself, which is then kept as FILE.rejected, and if parts failed: what the profile
// has in their place is the base's, and the error names them. Without a base that could stand in,
// no profile is written. Returns the text.
std::string WriteMeasured(const std::string& file, const std::optional<HardwareProfile>& base,
                          const MachineMeasurement& measurement, const std::string& name);

// Keeps the profile `text`, measured on the day `when` with these GPUs of this machine, where plan,
// estimate and train find it (machine/detect.h), and says so; or says why not. A part of a
// measurement is not kept: the rest would be the base's. Nothing without GPUs (detection is off).
void KeepMeasured(const std::string& text, const std::string& when, std::vector<DetectedGpu> gpus,
                  bool whole);

// After a failure that ended measuring: keeps the parts that were done, if there are any and a base
// has the others, as FILE.partial.json (after FILE without ".json"), and says so.
void KeepPartial(const std::string& file, const std::optional<HardwareProfile>& base,
                 const MachineMeasurement& measurement, const std::string& name) noexcept;

// Writes the text of a profile to `file` ("" stdout), if it passes the loader's checks; else into
// FILE.rejected, and throws Error(kRuntime) with what contradicts what and then `failed`.
void WriteProfileText(const std::string& file, const std::string& text,
                      const std::string& failed = "");

// The processes that measure GPUs, one a GPU, and what a build without CUDA says instead.

// GPUs of this host that can be measured: in one process of several, as many as there are
// processes, on all hosts. Throws Error(kUsage) if there is none, or if this build has no CUDA.
int MeasurableGpus();

// The ranks that a launcher started, this process among them; nothing without one.
std::optional<int> LaunchedRanks();
// Whether there are such on several hosts.
bool LaunchedOnHosts();

// Runs `measure` with `gpus` processes: in this one where that is at most one, or where it is one
// of them; else starts this command once for each GPU and waits. Throws as the ranks do.
void RunOnGpus(int gpus, const std::function<void(ProcessGroup&)>& measure);

// MeasureDevice (measure_device.h). REQUIRES: MeasurableGpus did not throw.
void MeasureGpus(ProcessGroup& group, const DeviceMeasureOptions& options,
                 MachineMeasurement& result);

}  // namespace zeroplan
