#include "cost_models/cost_model.h"

#include <algorithm>
#include <limits>

#include "core/program/collectives.h"
#include "cost_models/closed_form.h"
#include "cost_models/collective_cost.h"
#include "cost_models/host_cost.h"
#include "cost_models/kernel_cost.h"
#include "hwprofiles/sanity.h"

namespace zeroplan {
namespace {

// Products beside collectives, medians of six pairs on 2 H200 (benchmarks/measure/results,
// "overlap"): the products keep all of their speed, the collective two thirds of its.
constexpr double kComputeBesideCollective = 1.0;
constexpr double kCollectiveBesideCompute = 0.66;

// Bytes that a rank's memory moves for each that it sends: a gather reads it and writes what comes,
// a sum reads its addend, too.
constexpr double kMemoryOfSent = 2.5;

// What one rank's update on the host walks over: gradient and parameter, and the states. Counted
// from the model: programs that searches keep have no units.
double HostStateBytes(const Program& program) {
  const StateBytesPerParam bytes = StateBytes(program.setup.precision, /*with_params=*/false);
  const double of_param = 4 + bytes.optimizer;
  return of_param * program.setup.zero.offload_optimizer.ratio *
         static_cast<double>(program.model.TrainedParamCount()) /
         static_cast<double>(program.layout.owners());
}

// As HostCost counts them: a conversion that overwrites its destination fetches it first, and AdamW
// over light states takes longer than their bytes do.
double HostTraffic(const HostCost& host, const Program& program, const LaunchKernel& launch) {
  const double bytes = LaunchBytes(program, launch);
  if (launch.kernel == KernelId::kAdamW) {
    const auto dtype_of = [&](size_t arg) {
      return program.buffers[program.args(launch)[arg].buffer].dtype;
    };
    return bytes * host.UpdateWork(dtype_of(2), dtype_of(3));
  }
  const bool overwrites = launch.kernel == KernelId::kConvert && (launch.flags & kAccumulate) == 0;
  return bytes + (overwrites ? static_cast<double>(program.args(launch)[1].bytes) : 0);
}

double Share(const std::optional<Figure>& figure, double otherwise) {
  return std::clamp(figure ? figure->value : otherwise, 0.01, 1.0);
}

// A rank of the CPU runs one instruction after another: this share of its time goes to compute
// where a collective waits too.
constexpr double kOfCpuRank = 0.5;

double ComputeShare(const HardwareProfile& profile) {
  if (profile.gpu.architecture == kCpuArchitecture) return kOfCpuRank;
  return Share(profile.node.overlapped_compute, kComputeBesideCollective);
}

}  // namespace

struct CostModel::Impl {
  Impl(const HardwareProfile& profile, const ClusterShape& cluster, double gpu_link_scale)
      : shape(cluster),
        slowest_rank(zeroplan::SlowestRank(cluster)),
        kernels(profile.gpu, ComputeShare(profile)),
        collectives(profile, cluster, gpu_link_scale),
        transfers(profile, cluster.ranks_per_node()),
        host(profile, cluster.ranks_per_node()),
        storage(profile, cluster.ranks_per_node()) {
    rates.compute_beside_collective = ComputeShare(profile);
    rates.collective_beside_compute =
        Share(profile.node.overlapped_collective, kCollectiveBesideCompute);
    if (shape.nodes() > 1) rates.ranks_per_node = shape.ranks_per_node();
    if (profile.gpu.architecture == kCpuArchitecture) {
      rates.collective_beside_compute = rates.two_collectives = 1 - kOfCpuRank;
      rates.ranks_per_node = 0;  // two collectives of any axes
    }
    rates.pcie_both = transfers.BothShare();
    rates.host_beside_copy = Share(profile.node.pcie.overlapped_host, 1);
    rates.copy_beside_host = Share(profile.node.pcie.overlapped_copy, 1);
  }

  InstructionCost LaunchCost(const Program& program, const LaunchKernel& launch,
                             Stream stream) const {
    if (stream != Stream::kHost) {
      const KernelCost::Cost cost = kernels.Of(program, launch);
      return {cost.seconds, cost.beside_collective, cost.work};
    }
    const double states = host.StatesMatter(launch.kernel) ? HostStateBytes(program) : 0;
    const double seconds = host.Seconds(launch.kernel, HostTraffic(host, program, launch), states);
    return {seconds, 1, {seconds}};
  }

  InstructionCost CostOfCollective(const Program& program, const Collective& collective) const {
    const double seconds = collectives.Seconds(program, collective);
    const auto sent = static_cast<double>(RingSentBytes(program, collective));
    return {seconds, 1, kernels.power().Memory(seconds, kMemoryOfSent * sent)};
  }

  double CopySeconds(const Program& program, const Copy& copy) const {
    const Space from = program.buffers[copy.src.buffer].space;
    const Space to = program.buffers[copy.dst.buffer].space;
    const auto bytes = static_cast<double>(copy.src.bytes);
    const bool pageable = from == Space::kPageable || to == Space::kPageable;
    if (from == Space::kDevice && to == Space::kDevice) return kernels.memory().Seconds(2 * bytes);
    if (from != Space::kDevice && to != Space::kDevice) return host.CopySeconds(2 * bytes);
    return transfers.Seconds(to == Space::kDevice, bytes, pageable);
  }

  ClusterShape shape;
  double slowest_rank;
  KernelCost kernels;
  CollectiveCost collectives;
  TransferCost transfers;
  HostCost host;
  StorageCost storage;
  OverlapRates rates;
};

CostModel::CostModel(const HardwareProfile& profile, const ClusterShape& shape,
                     double gpu_link_scale)
    : impl_(std::make_unique<Impl>(profile, shape, gpu_link_scale)) {}
CostModel::~CostModel() = default;
CostModel::CostModel(CostModel&&) noexcept = default;
CostModel& CostModel::operator=(CostModel&&) noexcept = default;

CostModel::InstructionCost CostModel::CostOf(const Program& program,
                                             const Instruction& instruction) const {
  const auto alone = [](double seconds) { return InstructionCost{seconds, 1, {seconds}}; };
  return std::visit(
      Overload{[&](const LaunchKernel& launch) {
                 return impl_->LaunchCost(program, launch, instruction.stream);
               },
               [&](const Collective& collective) {
                 return impl_->CostOfCollective(program, collective);
               },
               [&](const Copy& copy) { return alone(impl_->CopySeconds(program, copy)); },
               [&](const FileIo& io) {
                 return alone(impl_->storage.Seconds(io.write, static_cast<double>(io.host.bytes)));
               },
               [&](const Alloc&) { return alone(0); }, [&](const Free&) { return alone(0); },
               [&](const RecordEvent&) { return alone(0); },
               [&](const WaitEvent&) { return alone(0); }},
      instruction.op);
}

double CostModel::Clock(const GpuWork& work) const { return impl_->kernels.power().Clock(work); }

double CostModel::EventSeconds() const { return impl_->kernels.EventSeconds(); }

double CostModel::SlowestRank() const { return impl_->slowest_rank; }

const OverlapRates& CostModel::overlap() const { return impl_->rates; }
const ClusterShape& CostModel::shape() const { return impl_->shape; }
double CostModel::CollectiveSeconds(CollectiveOp op, double full_bytes) const {
  return impl_->collectives.LeastSeconds(op, full_bytes);
}
CollectiveCost CostModel::CollectivesOver(const RankAxes& axes, RankAxis axis) const {
  return impl_->collectives.Over(axes, axis);
}
double CostModel::CollectiveBytesPerSecond() const { return impl_->collectives.BytesPerSecond(); }
double CostModel::PcieBytesPerSecond() const {
  return std::max(impl_->transfers.BytesPerSecond(true), impl_->transfers.BytesPerSecond(false));
}
double CostModel::HbmBytesPerSecond() const { return impl_->kernels.HbmBytesPerSecond(); }
double CostModel::HostBytesPerSecond() const { return impl_->host.BytesPerSecond(); }
double CostModel::HostUpdateWork(Dtype master, Dtype moments) const {
  return impl_->host.UpdateWork(master, moments);
}
double CostModel::StorageReadBytesPerSecond() const { return impl_->storage.BytesPerSecond(false); }
double CostModel::StorageWriteBytesPerSecond() const { return impl_->storage.BytesPerSecond(true); }
double CostModel::DensePeak(Dtype dtype) const { return impl_->kernels.gemm().DensePeak(dtype); }

}  // namespace zeroplan
