#include "executor/measure/measured_profile.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "executor/measure/measurement.h"
#include "hwprofiles/fields.h"
#include "hwprofiles/loader.h"
#include "hwprofiles/sanity.h"
#include "hwprofiles/unequal.h"
#include "machine/detect.h"

namespace zeroplan {
namespace {

// What was run, by what, when and where.
class Origin {
 public:
  explicit Origin(const MachineMeasurement& m)
      : host_(fmt::format("zeroplan {} hw measure, {}", m.version, m.when)), device_(host_) {
    if (m.device) {
      device_ += fmt::format(", {} x {}, {}", m.gpus, m.device->name, m.device->libraries);
    }
  }
  std::string OnHost(const std::string& what) const { return what + "; " + host_; }
  std::string OnGpu(const std::string& what) const { return what + "; " + device_; }

 private:
  std::string host_, device_;
};

template <typename Row, typename Round>
Measured<Row> Table(std::vector<Row> rows, std::string reference, Round round) {
  for (Row& row : rows) round(row);
  return {std::move(rows), FigureSource::kMeasured, std::move(reference)};
}

Measured<NamedKernelTime> NamedTable(std::vector<NamedKernelTime> rows, std::string reference) {
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return std::tie(a.kernel, a.bytes) < std::tie(b.kernel, b.bytes);
  });
  return Table(std::move(rows), std::move(reference),
               [](NamedKernelTime& t) { RoundTo(t.seconds, kMicro); });
}

void PutHost(const MachineMeasurement& m, const Origin& origin, NodeProfile& node) {
  if (m.machine.memory_bytes > 0) {
    node.host_memory = CapacityFigure(m.machine.memory_bytes,
                                      origin.OnHost("memory of this machine or its control group"));
  }
  if (m.pinned) node.pinned_limit.reset();  // the base's, not this machine's
  if (m.pinned && !m.pinned->refusal.empty()) {
    node.pinned_limit = CapacityFigure(
        static_cast<double>(m.pinned->locked_bytes),
        origin.OnHost(fmt::format("page-locked by cudaHostRegister, then: {}", m.pinned->refusal)));
  }
  if (m.machine.cores > 0) {
    node.cores = Count(m.machine.cores, origin.OnHost("cores that zeroplan may use"));
  }
  if (m.host) {
    node.triad_bandwidth = MeasuredFigure(
        m.host->triad, kGiga, "GB/s",
        origin.OnHost(fmt::format("a = b + s*c in fp32, {} threads, {:.1f} GB", m.host->threads,
                                  static_cast<double>(m.host->triad_bytes) / kGiga)));
    node.adam_bandwidth = MeasuredFigure(
        m.host->adam, kGiga, "GB/s",
        origin.OnHost(fmt::format("the CPU backend's AdamW of {} parameters, 28 bytes each, {} "
                                  "threads",
                                  m.host->adam_parameters, m.host->threads)));
    if (!m.host->updates.empty()) {
      node.host_updates = Table(
          m.host->updates,
          origin.OnHost(fmt::format(
              "AdamW over states of so many bytes, again and again, {} threads", m.host->threads)),
          [](MemoryKernelTime& t) { RoundTo(t.seconds, kMicro); });
    }
    if (!m.host->light.empty()) {
      node.light_updates = Table(
          m.host->light,
          origin.OnHost(fmt::format("the CPU backend's AdamW of {} parameters by the dtypes of its "
                                    "states, {} threads; times of 1e9",
                                    m.host->adam_parameters, m.host->threads)),
          [](LightUpdate& t) { RoundTo(t.seconds, kMicro); });
    }
    if (!m.host->kernels.empty()) {
      node.host_kernels = NamedTable(
          m.host->kernels,
          origin.OnHost(fmt::format("the CPU backend's kernels, {} threads", m.host->threads)));
    }
  }
  if (m.disk) {
    const std::string how = fmt::format(
        "{:.2f} GB in {}, {} threads, {}", static_cast<double>(m.disk->bytes) / kGiga,
        m.disk_folder, m.disk->threads,
        m.disk->direct ? "past the page cache" : "written out, then dropped from the page cache");
    node.nvme_read = MeasuredFigure(m.disk->read, kGiga, "GB/s", origin.OnHost(how));
    node.nvme_write = MeasuredFigure(m.disk->write, kGiga, "GB/s", origin.OnHost(how));
    node.nvme_drives.reset();  // the base's, not this folder's
    if (m.disk_free_bytes) {
      node.nvme_capacity =
          CapacityFigure(*m.disk_free_bytes, origin.OnHost("free in " + m.disk_folder));
    }
  }
}

void PutPower(const PowerRates& rates, const Origin& origin, GpuProfile& gpu) {
  const auto figure = [&](double value, double scale, const char* unit, const std::string& what) {
    return MeasuredFigure(value, scale, unit, origin.OnGpu(what));
  };
  const std::string product = fmt::format("products {} x {} x {}", rates.m, rates.k, rates.n);
  const std::string at =
      fmt::format("{} over and over, at {:.0f} MHz on average", product, rates.product_clock / 1e6);
  gpu.power = {
      figure(rates.limit_watts, 1, "W", at + "; the driver's limit where they keep the top clock"),
      figure(rates.base_watts, 1, "W", "one thread that waits"),
      figure(rates.joules_per_flop, kPico, "pJ", at + ", over their share of the top clock"),
      figure(rates.joules_per_byte, kPico, "pJ",
             "copies within device memory, bytes read and written"),
      figure(rates.clocked_share, 1, "ratio", product + " over and over, and with pauses as long")};
  if (rates.joules_per_flop_e4m3 > 0) {
    gpu.power->flop_e4m3 = figure(rates.joules_per_flop_e4m3, kPico, "pJ",
                                  "the same products of 8 bits, over their share of the top clock");
  }
}

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
                         "the fastest product measured: more than its multiprocessors "
                         "and their clock give");
  }
  return DerivedFigure(peak, kTera, "TFLOP/s",
                       fmt::format("{} SMs at {:.0f} MHz, {} dense FLOP a clock each as the "
                                   "architecture has it; the data sheet may say less",
                                   device.sm_count, device.max_sm_clock / kMega, per_clock));
}

// A base may have no peak of 8 bits, or a datasheet's that is below what was measured.
void PutEightBitPeak(const DeviceProperties& device, const KernelRates& measured, GpuProfile& gpu) {
  const double fastest = FastestProduct(measured, Dtype::kE4M3);
  const auto peak = gpu.dense_peaks.find(Dtype::kE4M3);
  if (fastest == 0 || (peak != gpu.dense_peaks.end() && fastest <= peak->second.value)) return;
  gpu.dense_peaks[Dtype::kE4M3] = DerivedPeak(device, gpu.architecture, measured, Dtype::kE4M3);
}

void PutKernels(const KernelRates& kernels, const Origin& origin, GpuProfile& gpu) {
  if (kernels.launch_seconds) {
    gpu.launch_overhead = MeasuredFigure(*kernels.launch_seconds, kMicro, "us",
                                         origin.OnGpu("tiny kernel to tiny kernel on one stream"));
  }
  if (kernels.copy_bandwidth) {
    gpu.copy_bandwidth =
        MeasuredFigure(*kernels.copy_bandwidth, kTera, "TB/s",
                       origin.OnGpu("copy within device memory, bytes read plus written"));
  }
  for (const auto& [dtype, rate] : kernels.reachable) {
    gpu.reachable_peaks[dtype] = MeasuredFigure(
        rate.flops_per_second, kTera, "TFLOP/s",
        origin.OnGpu(fmt::format("product of {0} x {0} matrices on random data", rate.side)));
  }
  if (!kernels.gemm.empty()) {
    gpu.gemm = Table(kernels.gemm, origin.OnGpu("the executor's tuned products on random data"),
                     [](GemmRate& r) { RoundTo(r.flops_per_second, kTera); });
  }
  if (!kernels.attention.empty()) {
    gpu.attention =
        Table(kernels.attention, origin.OnGpu("the executor's causal attention in 16 bit"),
              [](AttentionRate& r) {
                RoundTo(r.forward_flops_per_second, kTera);
                RoundTo(r.backward_flops_per_second, kTera);
              });
  }
  if (!kernels.grouped.empty()) {
    gpu.grouped =
        Table(kernels.grouped, origin.OnGpu("the executor's matmuls of experts on random data"),
              [](GroupedRate& r) { RoundTo(r.flops_per_second, kTera); });
  }
  if (!kernels.memory.empty()) {
    gpu.kernels = NamedTable(
        kernels.memory, origin.OnGpu("the executor's kernels that memory holds "
                                     "back; activations of a few megabytes within the caches"));
    gpu.memory_kernels.reset();
  }
  if (kernels.power) PutPower(*kernels.power, origin, gpu);
}

void PutPcie(const PcieMeasurement& m, int gpus, const Origin& origin, PcieProfile& pcie) {
  const auto rate = [&](double value, const std::string& what) {
    return MeasuredFigure(value, kGiga, "GB/s", origin.OnGpu(what));
  };
  pcie.to_device_single = rate(m.single.to_device, "page-locked host to device, one GPU alone");
  pcie.from_device_single = rate(m.single.from_device, "device to page-locked host, one GPU alone");
  pcie.both_single = rate(m.single.both, "both directions at once, one GPU alone, sum");
  pcie.to_device_all.reset();
  pcie.from_device_all.reset();
  pcie.both_all.reset();
  if (m.all) {
    const std::string all = fmt::format("all {} GPUs at once, sum", gpus);
    pcie.to_device_all = rate(m.all->to_device, all);
    pcie.from_device_all = rate(m.all->from_device, all);
    pcie.both_all = rate(m.all->both, all + ", both directions");
  }
  if (m.overlapped_host > 0) {
    const std::string how =
        origin.OnGpu("AdamW on all cores beside copies to a GPU, time alone / time side by side");
    pcie.overlapped_host = MeasuredFigure(m.overlapped_host, 1, "ratio", how);
    pcie.overlapped_copy = MeasuredFigure(m.overlapped_copy, 1, "ratio", how);
  }
  pcie.copies.reset();
  if (m.copies.empty()) return;
  pcie.copies =
      Table(m.copies, origin.OnGpu("page-locked host memory, one GPU alone"), [](CopyTime& t) {
        RoundTo(t.to_device_seconds, kMicro);
        RoundTo(t.from_device_seconds, kMicro);
      });
}

void PutCollectives(const MachineMeasurement& m, const Origin& origin, NodeProfile& node) {
  if (!m.collectives.empty()) {
    node.collectives = Table(m.collectives, origin.OnGpu("NCCL in bf16, slowest rank"),
                             [](CollectiveTime& t) { RoundTo(t.seconds, kMicro); });
    node.nccl_environment = m.nccl_environment;
    std::sort(node.collectives->rows.begin(), node.collectives->rows.end(),
              [](const auto& a, const auto& b) {
                return std::tie(a.world_size, a.op, a.bytes) <
                       std::tie(b.world_size, b.op, b.bytes);
              });
  }
  if (m.overlap) {
    const OverlapShares& o = *m.overlap;
    const std::string how = origin.OnGpu(
        fmt::format("products {} x {} x {} beside collectives of {:.0f} MiB, time alone / time "
                    "side by side, median over operations",
                    o.m, o.k, o.n, o.collective_bytes / kMib));
    node.overlapped_compute = MeasuredFigure(o.compute, 1, "ratio", how);
    node.overlapped_collective = MeasuredFigure(o.collective, 1, "ratio", how);
  }
}

// What base measured with more GPUs than there are here says nothing of this machine.
void DropLargerGroups(NodeProfile& node) {
  if (!node.collectives) return;
  std::erase_if(node.collectives->rows,
                [&](const CollectiveTime& row) { return row.world_size > node.gpus.value; });
  if (!node.collectives->rows.empty()) return;
  node.collectives.reset();
  node.nccl_environment.reset();
}

std::vector<RuntimeOverhead> Runtime(const std::vector<RuntimeMeasurement>& measured,
                                     const Origin& origin) {
  std::vector<RuntimeOverhead> runtime;
  runtime.reserve(measured.size());
  for (const RuntimeMeasurement& m : measured) {
    const std::string how = origin.OnGpu(
        "device memory in use less the arenas after steps of a small GPT, the most over ranks");
    RuntimeOverhead entry{m.world_size, MeasuredFigure(std::max(1.0, m.bytes), kGib, "GiB", how),
                          std::nullopt};
    // Profiles hold at most half of it: the first communicator takes no less than the second.
    if (m.communicator_bytes && *m.communicator_bytes >= 1) {
      entry.communicator = MeasuredFigure(std::min(*m.communicator_bytes, 0.49 * m.bytes), kGib,
                                          "GiB", how + "; stage 2 less stage 0");
    }
    runtime.push_back(std::move(entry));
  }
  std::sort(runtime.begin(), runtime.end(),
            [](const auto& a, const auto& b) { return a.world_size < b.world_size; });
  return runtime;
}

}  // namespace

HardwareProfile MeasuredProfile(const std::optional<HardwareProfile>& base,
                                const MachineMeasurement& m, const std::string& name) {
  ZEROPLAN_CHECK(base || (m.device && m.pcie && !m.runtime.empty()),
                 "too little was measured to do without a base");
  const Origin origin(m);
  HardwareProfile profile;
  if (base) profile = *base;
  // What is measured of a GPU is of the first one.
  if (m.device && !profile.kinds.empty()) {
    const std::string part = MatchGpu({m.device->name, m.device->total_bytes});
    const std::string gpu_name = part.empty() ? "" : LoadProfile(part).gpu.name;
    const auto of_device =
        std::find_if(profile.kinds.begin(), profile.kinds.end(),
                     [&](const GpuKind& kind) { return kind.gpu.name == gpu_name; });
    if (of_device != profile.kinds.end()) std::iter_swap(profile.kinds.begin(), of_device);
    profile.gpu = profile.kinds.front().gpu;
  }
  profile.name = name;
  profile.source = "measured";
  profile.description = fmt::format(
      "{}, measured {}",
      m.device ? fmt::format("{} x {}", m.gpus, m.device->name) : "host of " + profile.description,
      m.when);
  if (m.gpus > 0) profile.node.gpus = Count(m.gpus, origin.OnGpu("GPUs that were measured"));
  if (m.device && !base) profile.gpu = GpuOfProperties(*m.device, m.kernels);
  if (m.device && base) {
    profile.gpu.usable_memory =
        CapacityFigure(m.device->total_bytes, origin.OnGpu("total of cudaMemGetInfo"));
  }
  PutHost(m, origin, profile.node);
  PutKernels(m.kernels, origin, profile.gpu);
  if (m.device) PutEightBitPeak(*m.device, m.kernels, profile.gpu);
  if (m.pcie) PutPcie(*m.pcie, m.gpus, origin, profile.node.pcie);
  PutCollectives(m, origin, profile.node);
  if (!base) PutDerivedLink(m, profile.node);
  if (m.network) profile.network = MeasuredNetwork(*m.network, origin.OnGpu(""));
  DropLargerGroups(profile.node);
  if (!m.runtime.empty()) profile.runtime = Runtime(m.runtime, origin);
  if (m.device && !profile.kinds.empty()) {
    profile.kinds.front().gpu = profile.gpu;
    TakeSlowest(profile);
  }
  return profile;
}

NetworkProfile MeasuredNetwork(const NetworkMeasurement& m, const std::string& where) {
  NetworkProfile network;
  const double most = std::max(m.bytes_per_second, m.whole_bytes_per_second);
  const std::string gathers =
      fmt::format("all-gathers of {:.2f} MiB between hosts, ", m.bytes / kMib);
  network.name = "between these hosts";
  const char* fastest = most == m.bytes_per_second ? "all ranks at once" : "all ranks in one group";
  network.bandwidth_per_node = MeasuredFigure(most, kGiga, "GB/s", gathers + fastest + where);
  network.latency = MeasuredFigure(m.message_seconds, kMicro, "us",
                                   "all-gathers of 4 KiB by one rank of each host" + where);
  if (m.whole_bytes_per_second == 0) {
    network.reached =
        MeasuredFigure(1, 1, "ratio", "bandwidth_per_node is what collectives reach" + where);
    return network;
  }
  network.reached = MeasuredFigure(m.whole_bytes_per_second / most, 1, "ratio",
                                   gathers + "all ranks in one group" + where);
  network.reached_by_groups = MeasuredFigure(
      m.bytes_per_second / most, 1, "ratio",
      gathers + "ranks in the same place of their hosts, all groups at once" + where);
  if (m.all_reduce_bytes_per_second > 0) {
    network.reached_by_all_reduces = MeasuredFigure(
        std::min(m.all_reduce_bytes_per_second / most, figure_rules::kRingShare.high), 1, "ratio",
        fmt::format("an all-reduce of {:.2f} MiB, a ring's bytes, all ranks in one group{}",
                    m.bytes / kMib, where));
  }
  return network;
}

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
        "with ⟦base⟧",
        device.name, device.compute_major, device.compute_minor);
  }
  const std::string runtime = "as the CUDA runtime says of " + device.name;
  gpu.memory = DerivedFigure(device.total_bytes, kGib, "GiB",
                             "total of cudaMemGetInfo; sold with somewhat more");
  gpu.usable_memory = CapacityFigure(device.total_bytes, "total of cudaMemGetInfo");
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
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16, Dtype::kF32, Dtype::kE4M3}) {
    if (dtype == Dtype::kBF16 && !gpu.bf16) continue;
    if (DenseFlopsPerClock(gpu.architecture, dtype) == 0) continue;
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
