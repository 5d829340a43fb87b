// The parts of a GPU's measurement, a file each.
#pragma once

#include <vector>

#include "core/config/setup_facts.h"
#include "executor/measure/cuda/kernel_bench.h"
#include "executor/measure/measure_device.h"
#include "executor/measure/part_runner.h"
#include "executor/process/process_group.h"

namespace zeroplan {

// Properties of `device`, which is the current one.
DeviceProperties QueryDeviceProperties(int device);

// One GPU alone. Shapes that do not fit its memory are left out.
void MeasureGemms(KernelBench& bench, const DeviceProperties& device, bool quick,
                  KernelRates& rates);
// Products of layers in eight bits, on a GPU that has them.
void MeasureEightBitGemms(KernelBench& bench, const DeviceProperties& device, bool quick,
                          KernelRates& rates);
void MeasureAttention(KernelBench& bench, const DeviceProperties& device, bool quick,
                      KernelRates& rates);
// Called after the copies that MeasureMemoryKernels times. Throws Error(kRuntime) where the driver
// does not say what a GPU draws.
void MeasurePower(KernelBench& bench, int device, const DeviceProperties& properties, bool quick,
                  KernelRates& rates);
// Launch overhead, copies within the device, and the kernels that only move memory.
void MeasureMemoryKernels(KernelBench& bench, const DeviceProperties& device, bool quick,
                          KernelRates& rates);

// All ranks; the result is rank 0's.
PcieMeasurement MeasurePcie(ProcessGroup& group, bool quick);
void MeasureCollectives(ProcessGroup& group, bool quick, const PartRunner::Say& say,
                        MachineMeasurement& result);
// All ranks of several hosts, as many on each.
void MeasureNetwork(ProcessGroup& group, bool quick, const PartRunner::Say& say,
                    MachineMeasurement& result);
// All ranks, before anything else is on the GPU. The first says, alike to all, whether others use a
// GPU's memory, which would count as the runtime's: "" if none does.
std::string WhoIsBusy(ProcessGroup& group);
std::vector<RuntimeMeasurement> MeasureRuntime(ProcessGroup& group, const DeviceProperties& device,
                                               const PartRunner::Say& say);

// 1, 2, 4, ... and the group's own size.
std::vector<int> WorldSizes(int most);

// Whether the GPU multiplies eight bits.
inline bool HasFp8(const DeviceProperties& device) {
  return Fp8GpuLacks({}, device.compute_major * 10 + device.compute_minor).empty();
}

// 16-bit dtype that this GPU trains in.
inline Dtype HalfDtype(const DeviceProperties& device) {
  return device.compute_major >= 8 ? Dtype::kBF16 : Dtype::kF16;
}

}  // namespace zeroplan
