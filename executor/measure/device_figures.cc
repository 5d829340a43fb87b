#include "executor/measure/device_figures.h"

#include <algorithm>

#include "core/base/error.h"
#include "executor/measure/figures.h"
#include "executor/measure/scales.h"
#include "hwprofiles/sanity.h"

namespace zeroplan {
namespace {

double FastestProduct(const KernelRates& measured, Dtype dtype) {
  double best = 0;
  for (const GemmRate& row : measured.gemm) {
    if (row.dtype == dtype) best = std::max(best, row.flops_per_second);
  }
  const auto square = measured.reachable.find(dtype);
  return square == measured.reachable.end() ? best
                                            : std::max(best, square->second.flops_per_second);
}

// FLOP/s that the SMs of the architecture do at this clock, or what was measured if that is more.
Figure DerivedPeak(const DeviceProperties& device, const std::string& architecture,
                   const KernelRates& measured, Dtype dtype) {
  const double per_clock = DenseFlopsPerClock(architecture, dtype);
  const double peak = per_clock * device.sm_count * device.max_sm_clock;
  const double fastest = FastestProduct(measured, dtype);
  if (fastest > peak) {
    return DerivedFigure(fastest, kTera, "TFLOP/s",
                         "the fastest product measured: no data sheet "
                         "is built in for this GPU");
  }
  return DerivedFigure(peak, kTera, "TFLOP/s",
                       fmt::format("{} SMs at {:.0f} MHz, {} dense FLOP a clock each as the "
                                   "architecture has it; the data sheet may say less",
                                   device.sm_count, device.max_sm_clock / kMega, per_clock));
}

}  // namespace

std::string ArchitectureOf(int compute_major, int compute_minor) {
  switch (compute_major) {
    case 7:
      return compute_minor >= 5 ? "turing" : "volta";
    case 8:
      return compute_minor == 0 ? "ampere" : compute_minor == 9 ? "ada" : "ampere-ga10x";
    case 9:
      return "hopper";
    case 10:
    case 11:
      return "blackwell";
    case 12:
      return "blackwell-gb20x";
    default:
      return "";
  }
}

GpuProfile GpuOfProperties(const DeviceProperties& device, const KernelRates& measured) {
  GpuProfile gpu;
  gpu.name = device.name;
  gpu.architecture = ArchitectureOf(device.compute_major, device.compute_minor);
  if (gpu.architecture.empty()) {
    ThrowUsage(
        "hw measure: {} has compute capability {}.{}, whose peaks are not known; give a profile "
        "with --base",
        device.name, device.compute_major, device.compute_minor);
  }
  const std::string runtime = "as the CUDA runtime says of " + device.name;
  gpu.memory = DerivedFigure(device.total_bytes, kGib, "GiB",
                             "total of cudaMemGetInfo; sold with somewhat more");
  gpu.usable_memory = Capacity(device.total_bytes, "total of cudaMemGetInfo");
  gpu.sm_count = MakeFigure(device.sm_count, 1, "count", FigureSource::kDerived, runtime);
  gpu.max_sm_clock = DerivedFigure(device.max_sm_clock, kMega, "MHz", runtime);
  gpu.launch_overhead = DerivedFigure(kMicro, kMicro, "us", "usual for GPUs; not measured");
  const double copy = measured.copy_bandwidth.value_or(0);
  gpu.hbm_bandwidth =
      device.memory_bandwidth >= copy && device.memory_bandwidth > 0
          ? DerivedFigure(device.memory_bandwidth, kGiga, "GB/s",
                          "twice the memory clock times the bus width, " + runtime)
          : DerivedFigure(copy / 0.885, kGiga, "GB/s",
                          "measured copy over 0.885, the share that a copy reaches on an H200");
  gpu.bf16 = device.compute_major >= 8;
  gpu.fp16 = true;
  gpu.flash_attention = device.fused_attention;
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16, Dtype::kF32}) {
    if (dtype == Dtype::kBF16 && !gpu.bf16) continue;
    gpu.dense_peaks[dtype] = DerivedPeak(device, gpu.architecture, measured, dtype);
  }
  return gpu;
}

void PutDerivedLink(const MachineMeasurement& m, NodeProfile& node) {
  // One way over PCIe is at most what one GPU copies; NVLink is several times that.
  constexpr double kNotPcie = 1.5, kRingShare = 0.83;
  const double pcie = std::max(m.pcie->single.to_device, m.pcie->single.from_device);
  double best = 0;
  for (const CollectiveTime& row : m.collectives) {
    // What a rank must at least send or receive, as the loader checks it.
    const double share =
        row.op == CollectiveOp::kAllReduce ? 1.0 : (row.world_size - 1.0) / row.world_size;
    best = std::max(best, row.bytes * share / row.seconds);
  }
  node.link_kind = best > kNotPcie * pcie ? LinkKind::kNvlink : LinkKind::kPcie;
  node.gpu_link = best > 0
                      ? DerivedFigure(best / kRingShare, kGiga, "GB/s",
                                      "the fastest collective's bytes a rank over 0.83, the share "
                                      "of its links that an 8 x H200 host reaches")
                      : DerivedFigure(pcie, kGiga, "GB/s", "one GPU: as fast as its PCIe link");
}

}  // namespace zeroplan
