// The one list of a profile's fields and of its tables' columns, in the order in which a profile is
// written. All code that reads, writes or names fields visits them here. A new figure is a member
// of profile.h and a line below; whether it is required follows from the member's type (Figure, or
// std::optional<Figure>).
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "hwprofiles/profile.h"

namespace zeroplan {

// The quantity of a figure.
enum class Dimension : uint8_t {
  kBytes,
  kBytesPerSecond,
  kFlopsPerSecond,
  kHertz,
  kSeconds,
  kCount,
  kWatts,
  kJoules,
  kRatio  // share of a total, above 0 and up to 1
};

// The value of one `unit` in the dimension's base unit; nothing if the unit does not belong to it.
std::optional<double> UnitScale(Dimension dimension, std::string_view unit);
// "B, KB, MB, GB, TB, KiB, MiB, GiB or TiB".
std::string_view AllowedUnits(Dimension dimension);

// The value of "schema" in every profile.
inline constexpr std::string_view kProfileSchema = "zeroplan.hw/1";

// The rule for a figure: its dimension, and the range (base units) outside which it is a mistake.
struct FigureRule {
  Dimension dimension;
  double low, high;
};

// Wide enough for anything sold since 2016 and some years to come; narrow enough to catch a wrong
// prefix (MB for GB, Gb for GB) or a bandwidth of another component.
namespace figure_rules {
inline constexpr double kGiga = 1e9, kTera = 1e12;
inline constexpr FigureRule kGpuMemory{Dimension::kBytes, kGiga, 2 * kTera};
// For a rank of the CPU; a GPU has more (FindContradiction).
inline constexpr FigureRule kHbmBandwidth{Dimension::kBytesPerSecond, 0.1 * kGiga, 50 * kTera};
inline constexpr FigureRule kSmCount{Dimension::kCount, 1, 2000};
inline constexpr FigureRule kClock{Dimension::kHertz, 0.2 * kGiga, 5 * kGiga};
inline constexpr FigureRule kPeak{Dimension::kFlopsPerSecond, 0.1 * kGiga, 20e3 * kTera};
inline constexpr FigureRule kGpusPerNode{Dimension::kCount, 1, 1024};
inline constexpr FigureRule kHostMemory{Dimension::kBytes, kGiga, 100 * kTera};
inline constexpr FigureRule kPinnedLimit{Dimension::kBytes, 1e6, 100 * kTera};
inline constexpr FigureRule kCores{Dimension::kCount, 1, 10e3};
inline constexpr FigureRule kHostBandwidth{Dimension::kBytesPerSecond, kGiga, 20 * kTera};
inline constexpr FigureRule kPcie{Dimension::kBytesPerSecond, 0.1 * kGiga, 10 * kTera};
inline constexpr FigureRule kLink{Dimension::kBytesPerSecond, 0.01 * kGiga, 10 * kTera};
inline constexpr FigureRule kDisk{Dimension::kBytesPerSecond, 0.01 * kGiga, kTera};
inline constexpr FigureRule kDiskCapacity{Dimension::kBytes, kGiga, 10e3 * kTera};
inline constexpr FigureRule kDrives{Dimension::kCount, 1, 256};
inline constexpr FigureRule kNetworkBandwidth{Dimension::kBytesPerSecond, 0.001 * kGiga,
                                              10 * kTera};
inline constexpr FigureRule kLatency{Dimension::kSeconds, 1e-7, 0.1};
inline constexpr FigureRule kLaunch{Dimension::kSeconds, 1e-7, 1e-3};
inline constexpr FigureRule kPower{Dimension::kWatts, 1, 10e3};
inline constexpr FigureRule kEnergy{Dimension::kJoules, 1e-14, 1e-8};
inline constexpr FigureRule kShare{Dimension::kRatio, 0.01, 1};
inline constexpr FigureRule kRingShare{Dimension::kRatio, 0.01, 2};
inline constexpr FigureRule kRuntime{Dimension::kBytes, 0, 32 * kGiga};
}  // namespace figure_rules

// The allowed values of each field that is a word; WordOf returns their names in files.
inline constexpr LinkKind kLinkKinds[] = {LinkKind::kNvlink, LinkKind::kPcie};
inline constexpr GemmKind kGemmKinds[] = {GemmKind::kForward, GemmKind::kData, GemmKind::kWeight};
inline constexpr Dtype kMasterDtypes[] = {Dtype::kF32, Dtype::kI16, Dtype::kBF16, Dtype::kF16};
inline constexpr Dtype kMomentDtypes[] = {Dtype::kF32, Dtype::kBF16, Dtype::kDynamic8};
inline constexpr Dtype kProfileDtypes[] = {Dtype::kBF16, Dtype::kF16, Dtype::kF32, Dtype::kE4M3};
inline constexpr CollectiveOp kCollectiveOps[] = {
    CollectiveOp::kAllReduce, CollectiveOp::kAllGather, CollectiveOp::kReduceScatter};
inline constexpr KernelId kNamedKernels[] = {
    KernelId::kGeluForward,      KernelId::kGeluBackward,
    KernelId::kLayerNormForward, KernelId::kLayerNormBackward,
    KernelId::kRmsNormForward,   KernelId::kRmsNormBackward,
    KernelId::kSwiGluForward,    KernelId::kSwiGluBackward,
    KernelId::kCrossEntropy,     KernelId::kNormSq,
    KernelId::kConvert,          KernelId::kAdamW,
    KernelId::kLargestMagnitude, KernelId::kQuantize};
inline constexpr FigureSource kFigureSources[] = {FigureSource::kDatasheet, FigureSource::kMeasured,
                                                  FigureSource::kDerived, FigureSource::kGiven};
inline std::string_view WordOf(LinkKind kind) { return LinkKindName(kind); }
inline std::string_view WordOf(GemmKind kind) { return GemmKindName(kind); }
inline std::string_view WordOf(Dtype dtype) { return DtypeName(dtype); }
inline std::string_view WordOf(CollectiveOp op) { return CollectiveOpName(op); }
inline std::string_view WordOf(KernelId kernel) { return KernelInfo(kernel).name; }

template <typename T, size_t N>
constexpr std::span<const T> AllOf(const T (&values)[N]) {
  return values;
}

// T, or const T.
template <typename T, typename Wanted>
concept Is = std::same_as<std::remove_const_t<T>, Wanted>;

// The functions of a visitor of fields, by kind of field. `path` is dotted ("gpu.memory").
//
//   Text(path, string)               a text, or an optional one, which may be empty
//   Figure(path, rule, figure)       a figure, or an optional one
//   Flag(path, bool)                 true or false
//   Word(path, values, value)        one of `values`
//   Peak(path, rule, figures, dtype) a dense rate of figures[dtype], if there is one
//   Table(path, table)               optional measured rows
//   Section(path, section) -> bool   an optional section: whether its fields are visited
//   Runtimes(path, rule, entries)    the list of runtime overheads

template <typename Visitor, Is<NetworkProfile> Network>
void ForEachNetworkField(Network& network, Visitor&& visit) {
  visit.Text("network.name", network.name);
  visit.Figure("network.bandwidth_per_node", figure_rules::kNetworkBandwidth,
               network.bandwidth_per_node);
  visit.Figure("network.latency", figure_rules::kLatency, network.latency);
  visit.Figure("network.reached", figure_rules::kShare, network.reached);
  visit.Figure("network.reached_by_groups", figure_rules::kShare, network.reached_by_groups);
  visit.Figure("network.reached_by_all_reduces", figure_rules::kRingShare,
               network.reached_by_all_reduces);
  visit.Figure("network.most_nodes", figure_rules::kCores, network.most_nodes);
}

template <typename Visitor, Is<GpuProfile> Gpu>
void ForEachGpuField(Gpu& gpu, Visitor&& visit) {
  visit.Text("gpu.name", gpu.name);
  visit.Text("gpu.architecture", gpu.architecture);
  visit.Figure("gpu.memory", figure_rules::kGpuMemory, gpu.memory);
  visit.Figure("gpu.usable_memory", figure_rules::kGpuMemory, gpu.usable_memory);
  visit.Figure("gpu.hbm_bandwidth", figure_rules::kHbmBandwidth, gpu.hbm_bandwidth);
  visit.Figure("gpu.copy_bandwidth", figure_rules::kHbmBandwidth, gpu.copy_bandwidth);
  visit.Figure("gpu.sm_count", figure_rules::kSmCount, gpu.sm_count);
  visit.Figure("gpu.max_sm_clock", figure_rules::kClock, gpu.max_sm_clock);
  visit.Figure("gpu.launch_overhead", figure_rules::kLaunch, gpu.launch_overhead);
  for (const Dtype dtype : kProfileDtypes) {
    const std::string peaks = "gpu.peaks." + std::string(WordOf(dtype));
    visit.Peak(peaks + ".dense", figure_rules::kPeak, gpu.dense_peaks, dtype);
    visit.Peak(peaks + ".reachable", figure_rules::kPeak, gpu.reachable_peaks, dtype);
  }
  visit.Figure("gpu.attention_forward", figure_rules::kPeak, gpu.attention_forward);
  visit.Figure("gpu.attention_backward", figure_rules::kPeak, gpu.attention_backward);
  visit.Flag("gpu.capabilities.bf16", gpu.bf16);
  visit.Flag("gpu.capabilities.fp16", gpu.fp16);
  visit.Flag("gpu.capabilities.flash_attention", gpu.flash_attention);
  visit.Table("gpu.gemm", gpu.gemm);
  visit.Table("gpu.attention", gpu.attention);
  visit.Table("gpu.grouped", gpu.grouped);
  visit.Table("gpu.memory_kernels", gpu.memory_kernels);
  visit.Table("gpu.kernels", gpu.kernels);
  if (visit.Section("gpu.power", gpu.power)) {
    visit.Figure("gpu.power.limit", figure_rules::kPower, gpu.power->limit);
    visit.Figure("gpu.power.base", figure_rules::kPower, gpu.power->base);
    visit.Figure("gpu.power.flop", figure_rules::kEnergy, gpu.power->flop);
    visit.Figure("gpu.power.byte", figure_rules::kEnergy, gpu.power->byte);
    visit.Figure("gpu.power.clocked", figure_rules::kShare, gpu.power->clocked);
    visit.Figure("gpu.power.flop_e4m3", figure_rules::kEnergy, gpu.power->flop_e4m3);
  }
  visit.Figure("gpu.board_power", figure_rules::kPower, gpu.board_power);
}

template <typename Visitor, Is<NodeProfile> Node>
void ForEachNodeField(Node& node, Visitor&& visit) {
  visit.Figure("host.memory", figure_rules::kHostMemory, node.host_memory);
  visit.Figure("host.pinned_limit", figure_rules::kPinnedLimit, node.pinned_limit);
  visit.Figure("host.cores", figure_rules::kCores, node.cores);
  visit.Figure("host.triad_bandwidth", figure_rules::kHostBandwidth, node.triad_bandwidth);
  visit.Figure("host.adam_bandwidth", figure_rules::kHostBandwidth, node.adam_bandwidth);
  visit.Table("host.kernels", node.host_kernels);
  visit.Table("host.updates", node.host_updates);
  visit.Table("host.light_updates", node.light_updates);
  visit.Figure("host.nvme_read", figure_rules::kDisk, node.nvme_read);
  visit.Figure("host.nvme_write", figure_rules::kDisk, node.nvme_write);
  visit.Figure("host.nvme_capacity", figure_rules::kDiskCapacity, node.nvme_capacity);
  visit.Figure("host.nvme_drives", figure_rules::kDrives, node.nvme_drives);
  auto& pcie = node.pcie;
  visit.Figure("pcie.to_device_single", figure_rules::kPcie, pcie.to_device_single);
  visit.Figure("pcie.from_device_single", figure_rules::kPcie, pcie.from_device_single);
  visit.Figure("pcie.both_single", figure_rules::kPcie, pcie.both_single);
  visit.Figure("pcie.to_device_all", figure_rules::kPcie, pcie.to_device_all);
  visit.Figure("pcie.from_device_all", figure_rules::kPcie, pcie.from_device_all);
  visit.Figure("pcie.both_all", figure_rules::kPcie, pcie.both_all);
  visit.Table("pcie.copies", pcie.copies);
  visit.Figure("pcie.overlapped_host", figure_rules::kShare, pcie.overlapped_host);
  visit.Figure("pcie.overlapped_copy", figure_rules::kShare, pcie.overlapped_copy);
  visit.Word("link.kind", AllOf(kLinkKinds), node.link_kind);
  visit.Figure("link.bandwidth", figure_rules::kLink, node.gpu_link);
  visit.Figure("link.overlapped_compute", figure_rules::kShare, node.overlapped_compute);
  visit.Figure("link.overlapped_collective", figure_rules::kShare, node.overlapped_collective);
  visit.Table("link.collectives", node.collectives);
  visit.Text("link.nccl_environment", node.nccl_environment);
}

template <typename Visitor, Is<HardwareProfile> Profile>
void ForEachField(Profile& profile, Visitor&& visit) {
  visit.Text("name", profile.name);
  visit.Text("description", profile.description);
  visit.Figure("gpus", figure_rules::kGpusPerNode, profile.node.gpus);
  ForEachGpuField(profile.gpu, visit);
  ForEachNodeField(profile.node, visit);
  if (visit.Section("network", profile.network)) ForEachNetworkField(*profile.network, visit);
  visit.Runtimes("runtime", figure_rules::kRuntime, profile.runtime);
}

// Limits of a table's cells. Bytes, rates and times beyond them are no measurements, and overflow
// later computations.
inline constexpr int64_t kMostWhole = 1'000'000'000;  // limit of whole numbers, which begin at 1
inline constexpr double kLeastCell = 1e-9, kMostCell = 1e18;

// The quantity of a table's measured columns, the unit in which people read it, and the unit in
// which any value keeps its digits.
struct MeasuredUnit {
  Dimension dimension;
  std::string_view usual, base;
};
inline constexpr MeasuredUnit kMeasuredRates{Dimension::kFlopsPerSecond, "TFLOP/s", "FLOP/s"};
inline constexpr MeasuredUnit kMeasuredTimes{Dimension::kSeconds, "us", "s"};

// The columns of a table, from left to right. The functions of a visitor of cells, by kind:
//
//   Word(column, values, value)  one of `values`
//   Whole(column, value)         a whole number
//   Bytes(column, value)         a number of bytes
//   Measured(column, value)      a measurement, in the base unit of the row's MeasuredUnit
//
// The cells that are not measured identify the row: no two rows of a table have the same.

constexpr const MeasuredUnit& UnitOf(const GemmRate&) { return kMeasuredRates; }
template <typename Visitor, Is<GemmRate> Row>
void ForEachCell(Row& row, Visitor&& visit) {
  visit.Word("kind", AllOf(kGemmKinds), row.kind);
  visit.Word("dtype", AllOf(kProfileDtypes), row.dtype);
  visit.Whole("m", row.m);
  visit.Whole("k", row.k);
  visit.Whole("n", row.n);
  visit.Measured("rate", row.flops_per_second);
}

constexpr const MeasuredUnit& UnitOf(const GroupedRate&) { return kMeasuredRates; }
template <typename Visitor, Is<GroupedRate> Row>
void ForEachCell(Row& row, Visitor&& visit) {
  visit.Word("kind", AllOf(kGemmKinds), row.kind);
  visit.Word("dtype", AllOf(kProfileDtypes), row.dtype);
  visit.Whole("rows", row.rows);
  visit.Whole("k", row.k);
  visit.Whole("n", row.n);
  visit.Whole("matrices", row.experts);
  visit.Whole("fullest", row.fullest);
  visit.Measured("rate", row.flops_per_second);
}

constexpr const MeasuredUnit& UnitOf(const AttentionRate&) { return kMeasuredRates; }
template <typename Visitor, Is<AttentionRate> Row>
void ForEachCell(Row& row, Visitor&& visit) {
  visit.Whole("batch", row.batch);
  visit.Whole("heads", row.heads);
  visit.Whole("seq", row.seq);
  visit.Whole("head_dim", row.head_dim);
  visit.Measured("forward", row.forward_flops_per_second);
  visit.Measured("backward", row.backward_flops_per_second);
}

constexpr const MeasuredUnit& UnitOf(const MemoryKernelTime&) { return kMeasuredTimes; }
template <typename Visitor, Is<MemoryKernelTime> Row>
void ForEachCell(Row& row, Visitor&& visit) {
  visit.Bytes("bytes", row.bytes);
  visit.Measured("time", row.seconds);
}

constexpr const MeasuredUnit& UnitOf(const NamedKernelTime&) { return kMeasuredTimes; }
template <typename Visitor, Is<NamedKernelTime> Row>
void ForEachCell(Row& row, Visitor&& visit) {
  visit.Word("kernel", AllOf(kNamedKernels), row.kernel);
  visit.Bytes("bytes", row.bytes);
  visit.Measured("time", row.seconds);
}

constexpr const MeasuredUnit& UnitOf(const LightUpdate&) { return kMeasuredTimes; }
template <typename Visitor, Is<LightUpdate> Row>
void ForEachCell(Row& row, Visitor&& visit) {
  visit.Word("masters", AllOf(kMasterDtypes), row.masters);
  visit.Word("moments", AllOf(kMomentDtypes), row.moments);
  visit.Measured("time", row.seconds);
}

constexpr const MeasuredUnit& UnitOf(const CopyTime&) { return kMeasuredTimes; }
template <typename Visitor, Is<CopyTime> Row>
void ForEachCell(Row& row, Visitor&& visit) {
  visit.Bytes("bytes", row.bytes);
  visit.Measured("to_device", row.to_device_seconds);
  visit.Measured("from_device", row.from_device_seconds);
}

constexpr const MeasuredUnit& UnitOf(const CollectiveTime&) { return kMeasuredTimes; }
template <typename Visitor, Is<CollectiveTime> Row>
void ForEachCell(Row& row, Visitor&& visit) {
  visit.Word("op", AllOf(kCollectiveOps), row.op);
  visit.Whole("world_size", row.world_size);
  visit.Bytes("bytes", row.bytes);
  visit.Measured("time", row.seconds);
}

// The columns' names, from left to right.
struct ColumnNames {
  std::vector<std::string> names;

  void Word(std::string_view column, auto, auto) { names.emplace_back(column); }
  void Whole(std::string_view column, auto) { names.emplace_back(column); }
  void Bytes(std::string_view column, double) { names.emplace_back(column); }
  void Measured(std::string_view column, double) { names.emplace_back(column); }
};
template <typename Row>
std::vector<std::string> ColumnsOf() {
  const Row row{};
  ColumnNames columns;
  ForEachCell(row, columns);
  return columns.names;
}

// The path of `figure`, which is one of `profile`'s: "pcie.to_device_single".
std::string FigureKey(const HardwareProfile& profile, const Figure& figure);

}  // namespace zeroplan
