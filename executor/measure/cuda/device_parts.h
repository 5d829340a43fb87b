// The parts of a GPU's measurement, a file each.
#pragma once

#include <vector>

#include "core/settings/setup_facts.h"
#include "executor/measure/cuda/kernel_bench.h"
#include "executor/measure/measure_device.h"
#include "executor/measure/part_runner.h"
#include "executor/process/process_group.h"

namespace zeroplan {

// Properties of `device`, which is the current one.
DeviceProperties QueryDeviceProperties(int device);

// One GPU alone. Leaves out shapes that do not fit its memory.
void MeasureGemms(KernelBench& bench, const DeviceProperties& device, bool quick,
                  KernelRates& rates);
// Matmuls of experts, with even rows and with some experts that have most.
void MeasureGroupedGemms(KernelBench& bench, const DeviceProperties& device, bool quick,
                         KernelRates& rates);
// 8-bit matmuls of layers, on a GPU that supports them.
void MeasureEightBitGemms(KernelBench& bench, const DeviceProperties& device, bool quick,
                          KernelRates& rates);
void MeasureAttention(KernelBench& bench, const DeviceProperties& device, bool quick,
                      KernelRates& rates);
// Call after MeasureMemoryKernels, because it uses the copies timed there. Throws Error(kRuntime)
// if the driver does not report a GPU's power.
void MeasurePower(KernelBench& bench, int device, const DeviceProperties& properties, bool quick,
                  KernelRates& rates);
// Launch overhead, copies within the device, and the kernels that only move memory.
void MeasureMemoryKernels(KernelBench& bench, const DeviceProperties& device, bool quick,
                          KernelRates& rates);

// All ranks call these; the result is rank 0's.
PcieMeasurement MeasurePcie(ProcessGroup& group, bool quick);
void MeasureCollectives(ProcessGroup& group, bool quick, const PartRunner::Say& say,
                        MachineMeasurement& result);
// All ranks of several hosts call it, equally many on each.
void MeasureNetwork(ProcessGroup& group, bool quick, const PartRunner::Say& say,
                    MachineMeasurement& result);
// All ranks call these, before anything else uses the GPU. WhoIsBusy returns, the same to all,
// other users of a GPU's memory, which would count as the runtime's; "" if there are none.
std::string WhoIsBusy(ProcessGroup& group);
std::vector<RuntimeMeasurement> MeasureRuntime(ProcessGroup& group, const DeviceProperties& device,
                                               const PartRunner::Say& say);

// 1, 2, 4, ... and the group's own size.
std::vector<int> WorldSizes(int most);

// Whether the GPU supports 8-bit matmuls.
inline bool HasFp8(const DeviceProperties& device) {
  return Fp8GpuLacks({}, device.compute_major * 10 + device.compute_minor).empty();
}

// The 16-bit dtype in which this GPU trains.
inline Dtype HalfDtype(const DeviceProperties& device) {
  return device.compute_major >= 8 ? Dtype::kBF16 : Dtype::kF16;
}

}  // namespace zeroplan
