#include "executor/measure/measure_device.h"

#include "core/base/error.h"
#include "executor/measure/cuda/device_parts.h"

namespace zeroplan {
namespace {

constexpr uint64_t kBenchBytes = uint64_t{3584} << 20;  // the 16384 x 50304 logits and more

// The rank's among the GPUs of its host, or the only one it sees: as the engine chooses.
int TakeDevice(const ProcessPlace& place) {
  const int count = VisibleGpus();
  if (count == 0) ThrowRuntime("there is no GPU to measure");
  const int device = count == 1 ? 0 : place.local_rank;
  if (device >= count) {
    ThrowRuntime("rank {} of this host has no GPU to measure: there are {}", device, count);
  }
  ZEROPLAN_CUDA(cudaSetDevice(device));
  return device;
}

}  // namespace

void MeasureDevice(ProcessGroup& group, const DeviceMeasureOptions& options,
                   MachineMeasurement& result) {
  const int device = TakeDevice(group.place());
  const auto say = [&](const std::string& what) {
    if (group.rank() == 0) options.progress(what);
  };
  const DeviceProperties properties = QueryDeviceProperties(device);
  const DeviceParts& parts = options.parts;
  result.gpus = group.world_size();
  result.device = properties;
  // First: afterwards other things lie on the GPU.
  if (parts.runtime) {
    say("runtime memory: steps of a small GPT");
    result.runtime = MeasureRuntime(group, properties);
  }
  if (group.rank() == 0 && (parts.gemm || parts.attention || parts.memory)) {
    KernelBench bench(device, kBenchBytes, options.quick);
    if (parts.memory) {
      say("kernels that move memory");
      MeasureMemoryKernels(bench, properties, options.quick, result.kernels);
    }
    if (parts.gemm) {
      say("matrix products");
      MeasureGemms(bench, properties, options.quick, result.kernels);
    }
    if (parts.attention && !properties.fused_attention) {
      say("attention: not measured, there is no cuDNN");
    } else if (parts.attention) {
      say("attention");
      MeasureAttention(bench, properties, options.quick, result.kernels);
    }
  }
  group.Barrier();
  if (parts.pcie) {
    say("copies between host and GPUs");
    result.pcie = MeasurePcie(group, options.quick);
  }
  if (parts.collectives && group.world_size() > 1) {
    say("collectives");
    MeasureCollectives(group, options.quick, result);
  }
}

}  // namespace zeroplan
