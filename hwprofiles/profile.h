// The parts of a cluster: GPU, node, network and measured overheads. Every number has its source.
// Values are in base units (bytes, bytes per second, FLOP per second, hertz, counts).
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "core/program/kernel.h"

namespace zeroplan {

// kGiven: an option's, such as --network 25Gb.
enum class FigureSource : uint8_t { kDatasheet, kMeasured, kDerived, kGiven };
std::string_view FigureSourceName(FigureSource source);  // "datasheet", "measured", ..., "given"

struct Figure {
  double value = 0;    // base unit
  double written = 0;  // the file's number, in `unit`
  std::string unit;    // "GB", "TB/s", "TFLOP/s", ...
  FigureSource source = FigureSource::kDatasheet;
  std::string reference;  // a place to look it up, or the command that was run

  bool operator==(const Figure&) const = default;
};

// Rows measured together, with one source.
template <typename Row>
struct Measured {
  std::vector<Row> rows;
  FigureSource source = FigureSource::kMeasured;
  std::string reference;

  bool operator==(const Measured&) const = default;
};

// The three matmuls of a layer y[M,N] = a[M,K] * w[K,N]: kForward; kData, dy * w^T; kWeight, a^T *
// dy. All have 2*M*K*N FLOPs.
//
// 8-bit matmuls (kE4M3, which includes kE5M2) all use one kernel, KernelId::kFp8Matmul, and write
// 16 bits: kForward with `fast` sums, kData and kWeight without.
enum class GemmKind : uint8_t { kForward, kData, kWeight };
std::string_view GemmKindName(GemmKind kind);  // "forward", "data", "weight"
struct GemmRate {
  GemmKind kind = GemmKind::kForward;
  Dtype dtype = Dtype::kBF16;
  int64_t m = 0, k = 0, n = 0;
  double flops_per_second = 0;

  bool operator==(const GemmRate&) const = default;
};
// Matmuls of experts (KernelId::kGroupedMatmulForward and its gradients): `rows` rows in expert
// order times matrices [n, k] of `experts` experts, 2*rows*n*k FLOPs. `fullest`: rows of the
// fullest expert in percent of the mean; 100 if all have as many.
struct GroupedRate {
  GemmKind kind = GemmKind::kForward;
  Dtype dtype = Dtype::kBF16;
  int64_t rows = 0, k = 0, n = 0, experts = 0, fullest = 100;
  double flops_per_second = 0;

  bool operator==(const GroupedRate&) const = default;
};
// Causal attention in 16 bit, fused. FLOPs counted as in the kernel table (causal half).
struct AttentionRate {
  int64_t batch = 0, heads = 0, seq = 0, head_dim = 0;
  double forward_flops_per_second = 0, backward_flops_per_second = 0;

  bool operator==(const AttentionRate&) const = default;
};
enum class CollectiveOp : uint8_t { kAllReduce, kAllGather, kReduceScatter };
std::string_view CollectiveOpName(CollectiveOp op);  // "all_reduce", "all_gather", "reduce_scatter"
// `bytes`: those that all ranks hold together (all-gather, reduce-scatter) or each rank's whole
// input (all-reduce). Ranks of one node.
struct CollectiveTime {
  CollectiveOp op = CollectiveOp::kAllReduce;
  int world_size = 2;
  double bytes = 0;
  double seconds = 0;

  bool operator==(const CollectiveTime&) const = default;
};
// A copy between pinned host memory and one GPU, alone.
struct CopyTime {
  double bytes = 0;
  double to_device_seconds = 0, from_device_seconds = 0;

  bool operator==(const CopyTime&) const = default;
};
// A kernel that only moves memory; bytes are read plus written.
struct MemoryKernelTime {
  double bytes = 0;
  double seconds = 0;

  bool operator==(const MemoryKernelTime&) const = default;
};

// A memory-bound kernel, on the GPU or the host; bytes counted as in its row.
struct NamedKernelTime {
  KernelId kernel = KernelId::kAdamW;
  double bytes = 0;
  double seconds = 0;

  bool operator==(const NamedKernelTime&) const = default;
};

// AdamW on the host over 1e9 parameters whose states are lighter than fp32: less memory traffic,
// more arithmetic. Masters of kI16 are in two halves, those of a parameter's own dtype are the
// parameters.
struct LightUpdate {
  Dtype masters = Dtype::kF32, moments = Dtype::kF32;
  double seconds = 0;

  bool operator==(const LightUpdate&) const = default;
};

// The figures that determine the clock under a power limit: cost_models/power_limit.h.
struct PowerProfile {
  Figure limit;    // watts
  Figure base;     // watts at the top clock without work
  Figure flop;     // joules of a FLOP of a 16-bit matmul at the top clock
  Figure byte;     // joules of a byte of device memory read or written
  Figure clocked;  // share of a matmul's time at the top clock that grows at a lower one
  // Joules of a FLOP of an 8-bit matmul at the top clock. Absent: the cost model's assumption.
  std::optional<Figure> flop_e4m3{};

  bool operator==(const PowerProfile&) const = default;
};

struct GpuProfile {
  std::string name;  // "NVIDIA H200 SXM"
  // volta, turing, ampere, ampere-ga10x, ada, hopper, blackwell (B200, B300), or blackwell-gb20x
  // (GeForce and RTX PRO)
  std::string architecture;
  Figure memory;                         // as sold
  Figure usable_memory;                  // the memory available to a process; the default capacity
  Figure hbm_bandwidth;                  // datasheet
  std::optional<Figure> copy_bandwidth;  // read plus written by a device copy, measured
  Figure sm_count;
  Figure max_sm_clock;
  // FLOP/s without sparsity; kF32 is plain fp32, not TF32. kE4M3: if the GPU multiplies 8 bits.
  std::map<Dtype, Figure> dense_peaks;
  std::map<Dtype, Figure> reachable_peaks;  // the rate of a large GEMM: measured or derived
  // FLOP/s of fused causal attention with heads of 128 on long sequences (2*B*H*T*T*D FLOPs
  // forward, 2.5 times that backward). Used if there is no `attention` table. Set both or neither.
  std::optional<Figure> attention_forward, attention_backward;
  // Rates by shape. Without them the cost model scales the rates of the GPU that it knows best.
  std::optional<Measured<GemmRate>> gemm;
  std::optional<Measured<AttentionRate>> attention;
  std::optional<Measured<GroupedRate>> grouped;
  std::optional<Measured<MemoryKernelTime>> memory_kernels;
  std::optional<Measured<NamedKernelTime>> kernels;  // used instead of memory_kernels
  // If set, the rows of `gemm` and `attention` were measured on a GPU that did nothing else.
  std::optional<PowerProfile> power;
  // The datasheet's limit of the board's power, watts. It bounds a run's energy from above, and
  // affects neither clock nor time; a measured power->limit takes precedence.
  std::optional<Figure> board_power;
  Figure launch_overhead;  // seconds from one kernel's end to the next one's begin on a stream
  bool bf16 = false;       // supports bf16 arithmetic
  bool fp16 = false;
  bool flash_attention = false;  // it has fused kernels; else plans hold the s*s scores

  bool operator==(const GpuProfile&) const = default;
};

// Bytes per second of copies between host and one GPU, by the number of copying GPUs.
struct PcieProfile {
  Figure to_device_single, from_device_single, both_single;  // one GPU alone; `both` is the sum
  std::optional<Figure> to_device_all, from_device_all, both_all;  // all GPUs at once, summed
  std::optional<Measured<CopyTime>> copies;                        // by size, one GPU alone
  // The share of its speed that a host kernel and a concurrent copy keep.
  std::optional<Figure> overlapped_host, overlapped_copy;

  bool operator==(const PcieProfile&) const = default;
};

enum class LinkKind : uint8_t { kNvlink, kPcie };
std::string_view LinkKindName(LinkKind kind);  // "nvlink", "pcie"

struct NodeProfile {
  Figure gpus;
  int gpu_count() const { return static_cast<int>(std::lround(gpus.value)); }
  Figure host_memory;
  // the part of it that the driver can page-lock; absent: no limit known
  std::optional<Figure> pinned_limit;
  Figure cores;
  std::optional<Figure> triad_bandwidth;  // host memory, STREAM triad
  std::optional<Figure> adam_bandwidth;   // host memory, Adam-shaped loop
  // All cores at one of the executor's kernels, in calls as long as training's.
  std::optional<Measured<NamedKernelTime>> host_kernels;
  // AdamW over the states of all ranks, by their bytes, 16 bytes a parameter: small states stay in
  // the caches between steps. By rising bytes; larger states are as slow as the last.
  std::optional<Measured<MemoryKernelTime>> host_updates;
  std::optional<Measured<LightUpdate>> light_updates;
  PcieProfile pcie;
  LinkKind link_kind = LinkKind::kNvlink;
  Figure gpu_link;  // one GPU to its peers, each direction
  std::optional<Measured<CollectiveTime>> collectives;
  // The variables NCCL_* under which `collectives` were measured, "NAME=VALUE NAME=VALUE", sorted;
  // "": none. Absent: unknown.
  std::optional<std::string> nccl_environment;
  // The share of its speed that a collective and a concurrent compute kernel keep.
  std::optional<Figure> overlapped_compute, overlapped_collective;
  std::optional<Figure> nvme_read, nvme_write;
  std::optional<Figure> nvme_capacity;  // absent: not checked
  // number of equal drives that these three figures describe; absent: 1 is assumed
  std::optional<Figure> nvme_drives;

  bool operator==(const NodeProfile&) const = default;
};

struct NetworkProfile {
  std::string name;           // "8 x InfiniBand NDR 400"
  Figure bandwidth_per_node;  // each direction, all the node's adapters together
  Figure latency;             // seconds, one message between two nodes
  // Share of bandwidth_per_node that collectives reach: headers, routes that collide, switches that
  // carry less than all adapters send (oversubscribed). Absent: the cost model's assumption.
  std::optional<Figure> reached;
  // The same for collectives in several groups at once, each with ranks of its own in a node.
  // Absent: equals `reached`.
  std::optional<Figure> reached_by_groups;
  // Share of bandwidth_per_node at which an all-reduce of nodes with several ranks moves the bytes
  // that a ring sends, 2 S (N-1)/N: above 1 if trees or switches send less. Absent: the cheaper of
  // a ring and a tree at `reached`.
  std::optional<Figure> reached_by_all_reduces;
  // The most nodes that it joins, such as the trays of a rack. Absent: any number.
  std::optional<Figure> most_nodes;

  bool operator==(const NetworkProfile&) const = default;
};

// Device memory outside zeroplan's arenas (context, modules, communicators) at one world size.
struct RuntimeOverhead {
  int world_size = 1;
  Figure bytes;  // including both communicators
  // The bytes of one communicator once it is used; absent: unknown.
  std::optional<Figure> communicator;

  bool operator==(const RuntimeOverhead&) const = default;
};

// HardwareProfile::source of a profile of this machine as the driver and the system report it, with
// the rates of a built-in GPU.
inline constexpr const char* kFoundSource = "this machine";

// The GPUs of one kind in a node.
struct GpuKind {
  GpuProfile gpu;
  Figure gpus;

  bool operator==(const GpuKind&) const = default;
};

struct HardwareProfile {
  std::string name;
  std::string description;
  std::string source;  // file it was read from, "built in", or kFoundSource
  GpuProfile gpu;
  // If a node has GPUs of several kinds: all kinds; then `gpu` has the figures that each of them
  // reaches (hwprofiles/unequal.h). Empty: all are `gpu`.
  std::vector<GpuKind> kinds;
  NodeProfile node;
  std::optional<NetworkProfile> network;
  std::vector<RuntimeOverhead> runtime;  // by rising world_size, at least one

  bool operator==(const HardwareProfile&) const = default;
};

// The machine found if no profile is named, and remarks about it.
struct FoundMachine {
  std::optional<HardwareProfile> profile;  // absent: no known machine
  int gpus = 0;                            // set with a profile
  std::vector<std::string> assumed, notes;
};

// The `runtime` bytes of one GPU among `world_size`. Between two entries linear in
// log2(world_size), because rings and trees of communicators grow with the logarithm or not at all;
// outside them the nearest entry.
uint64_t RuntimeBytes(const HardwareProfile& profile, int world_size);

// The part of one communicator, by the same rule; an entry without it counts as 0.
uint64_t CommunicatorBytes(const HardwareProfile& profile, int world_size);

// kBF16 if the GPU supports it, else kF16.
Dtype DefaultDtype(const HardwareProfile& profile);

}  // namespace zeroplan
