// What a cluster is made of: GPU, node, network and measured overheads. Every number knows where it
// comes from. Values are in base units (bytes, bytes per second, FLOP per second, hertz, counts).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"

namespace zeroplan {

enum class FigureSource : uint8_t { kDatasheet, kMeasured, kDerived };
std::string_view FigureSourceName(FigureSource source);  // "datasheet", "measured", "derived"

struct Figure {
  double value = 0;    // base unit
  double written = 0;  // as the file has it, in `unit`
  std::string unit;    // "GB", "TB/s", "TFLOP/s", ...
  FigureSource source = FigureSource::kDatasheet;
  std::string reference;  // where to look it up, or what was run
};

struct GpuProfile {
  std::string name;          // "NVIDIA H200 SXM"
  std::string architecture;  // volta, turing, ampere, ampere-ga10x, ada, hopper, blackwell
  Figure memory;             // as sold
  Figure usable_memory;      // what a process can have; the default capacity
  Figure hbm_bandwidth;      // datasheet
  std::optional<Figure> copy_bandwidth;  // read plus written by a device copy, measured
  Figure sm_count;
  Figure max_sm_clock;
  std::map<Dtype, Figure> dense_peaks;     // FLOP/s without sparsity; kF32 is plain fp32, not TF32
  std::map<Dtype, Figure> measured_peaks;  // large square GEMM
  bool bf16 = false;                       // has bf16 arithmetic
  bool fp16 = false;
  bool flash_attention = false;  // cuDNN has fused attention; else plans hold the s*s scores
};

// Bytes per second of copies between host and one GPU, while that many GPUs copy.
struct PcieProfile {
  Figure to_device_single, from_device_single, both_single;  // one GPU alone; `both` is the sum
  std::optional<Figure> to_device_all, from_device_all, both_all;  // all GPUs at once, summed
};

struct NodeProfile {
  Figure gpus;
  Figure host_memory;
  Figure cores;
  std::optional<Figure> triad_bandwidth;  // host memory, STREAM triad
  std::optional<Figure> adam_bandwidth;   // host memory, Adam-shaped loop
  PcieProfile pcie;
  Figure gpu_link;  // one GPU to its peers, each direction
  std::optional<Figure> nvme_read, nvme_write;
  std::optional<Figure> nvme_capacity;  // absent: not checked
};

struct NetworkProfile {
  Figure bandwidth_per_gpu;  // each direction
};

// Device memory outside zeroplan's arenas (context, modules, communicators) at one world size.
struct RuntimeOverhead {
  int world_size = 1;
  Figure bytes;
};

struct HardwareProfile {
  std::string name;
  std::string description;
  std::string source;  // file it was read from, or "built in"
  GpuProfile gpu;
  NodeProfile node;
  std::optional<NetworkProfile> network;
  std::vector<RuntimeOverhead> runtime;  // by rising world_size, at least one
};

// `runtime` bytes of one GPU among `world_size`. Between two entries linear in log2(world_size),
// since rings and trees of communicators grow with the logarithm or not at all; outside them the
// nearest.
uint64_t RuntimeBytes(const HardwareProfile& profile, int world_size);

// kBF16 where the GPU has it, else kF16.
Dtype DefaultDtype(const HardwareProfile& profile);

}  // namespace zeroplan
