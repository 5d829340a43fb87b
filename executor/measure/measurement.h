// The measurements of a machine, part by part. Parts that were not measured are empty.
//
// Plain numbers in base units (bytes, bytes per second, seconds, FLOP per second), and the rows of
// a hardware profile's tables. No CUDA headers.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "hwprofiles/profile.h"
#include "machine/detect.h"
#include "machine/gpu_state.h"
#include "machine/host_speed.h"

namespace zeroplan {

struct HostBandwidths {
  double triad = 0;  // read plus written, without the fetches of write allocate (STREAM's count)
  double adam = 0;   // counts 28 bytes a parameter: see MeasureHostMemory
  int threads = 0;
  uint64_t triad_bytes = 0;  // size of its arrays
  int64_t adam_parameters = 0;
  std::vector<NamedKernelTime> kernels;
  std::vector<MemoryKernelTime> updates;  // by the bytes of all states, 16 a parameter
  std::vector<LightUpdate> light;
};

// The runtime's properties of a GPU.
struct DeviceProperties {
  std::string name;  // "NVIDIA H200"
  int compute_major = 0, compute_minor = 0;
  double total_bytes = 0;  // cudaMemGetInfo's
  double sm_count = 0;
  double max_sm_clock = 0;       // Hz
  double memory_bandwidth = 0;   // twice the memory clock times the bus width; 0: not reported
  bool fused_attention = false;  // it has kernels, cuDNN's or our own
  // "CUDA 13.0, driver 580.65.06, cuBLASLt 13.0.2, cuDNN 9.14.0, NCCL 2.28.3"
  std::string libraries;
};

// A square matmul, [side, side] by [side, side].
struct SquareRate {
  int64_t side = 0;
  double flops_per_second = 0;
};

// cost_models/power_limit.h's figures, and the clock of a matmul under the limit.
struct PowerRates {
  double limit_watts = 0, base_watts = 0;
  double joules_per_flop = 0, joules_per_byte = 0;
  double clocked_share = 1;
  double product_clock = 0;  // Hz
  int64_t m = 0, k = 0, n = 0;
  double joules_per_flop_e4m3 = 0;  // 8-bit matmuls; 0: not measured
};

struct KernelRates {
  std::optional<double> launch_seconds;
  std::optional<double> copy_bandwidth;
  std::map<Dtype, SquareRate> reachable;
  std::vector<GemmRate> gemm;
  std::vector<AttentionRate> attention;
  std::vector<GroupedRate> grouped;
  std::vector<NamedKernelTime> memory;
  std::optional<PowerRates> power;
};

struct CopyRates {
  double to_device = 0, from_device = 0, both = 0;  // both: the sum of both directions
};
struct PcieMeasurement {
  CopyRates single;              // rank 0's GPU alone
  std::optional<CopyRates> all;  // all at once, summed; with several GPUs
  std::vector<CopyTime> copies;  // rank 0's GPU alone
  // Shares of speed that AdamW on the host and concurrent copies keep, at most 1; rank 0's.
  double overlapped_host = 0, overlapped_copy = 0;  // 0: not measured
};

// Shares of speed that concurrent work keeps, at most 1.
struct OverlapShares {
  double compute = 0, collective = 0;
  int64_t m = 0, k = 0, n = 0;  // the matmuls'
  double collective_bytes = 0;
};

struct RuntimeMeasurement {
  int world_size = 1;
  double bytes = 0;  // device memory in use minus the arenas, the maximum over ranks
  // The part of a second communicator; nothing if there is none.
  std::optional<double> communicator_bytes;
};

// Rates of collectives between hosts, with a host's ranks sending together.
struct NetworkMeasurement {
  double bytes_per_second = 0;  // from one host: groups of ranks at the same place of their hosts
  double whole_bytes_per_second = 0;  // from one host: one group of all ranks; 0: not measured
  double message_seconds = 0;         // one message between two ranks, alone
  double bytes = 0;                   // size of the collective behind `bytes_per_second`
  // From one host: a ring's bytes of an all-reduce of all ranks; 0: not measured.
  double all_reduce_bytes_per_second = 0;
};

// A part that could not be measured, and why.
struct FailedPart {
  std::string name;  // its name in --only
  std::string why;
};

struct MachineMeasurement {
  std::vector<std::string> measured;  // names of the parts, in order
  std::vector<FailedPart> failed;

  std::string when;     // "2026-01-31"
  std::string version;  // zeroplan's
  int gpus = 0;         // 0: no GPU was measured

  DetectedHost machine;  // memory and cores; 0: not measured
  std::optional<HostBandwidths> host;
  std::optional<DiskRates> disk;
  std::string disk_folder;
  std::optional<double> disk_free_bytes;  // set if the user named the folder

  std::optional<DeviceProperties> device;
  KernelRates kernels;
  std::optional<PcieMeasurement> pcie;
  std::optional<PinnedFacts> pinned;
  std::vector<CollectiveTime> collectives;
  std::string nccl_environment;  // NcclEnvironment during `collectives`
  std::optional<OverlapShares> overlap;
  std::optional<NetworkMeasurement> network;  // set for several hosts
  std::vector<RuntimeMeasurement> runtime;
};

// Scales of the units of measured figures.
constexpr double kTera = 1e12, kGiga = 1e9, kMega = 1e6, kMicro = 1e-6, kPico = 1e-12;
constexpr uint64_t kKib = 1024, kMib = 1024 * kKib, kGib = 1024 * kMib;

// Makes figures of a profile from plain numbers.

// Rounds to four significant digits, the precision of a measurement.
inline double FourDigits(double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  const double power = std::pow(10.0, 3 - std::floor(std::log10(std::abs(value))));
  // Divides if the power is a fraction: 4960 is 496 / 0.1 to the bit, not 496 * 10.000000001.
  return power >= 1 ? std::round(value * power) / power
                    : std::round(value * power) * std::round(1 / power);
}

// Rounds `value` (base unit) to four digits of a unit of `scale`.
inline void RoundTo(double& value, double scale) { value = FourDigits(value / scale) * scale; }

inline Figure MakeFigure(double written, double scale, const char* unit, FigureSource source,
                         std::string reference) {
  return {written * scale, written, unit, source, std::move(reference)};
}
inline Figure MeasuredFigure(double value, double scale, const char* unit, std::string reference) {
  return MakeFigure(FourDigits(value / scale), scale, unit, FigureSource::kMeasured,
                    std::move(reference));
}
inline Figure DerivedFigure(double value, double scale, const char* unit, std::string reference) {
  return MakeFigure(FourDigits(value / scale), scale, unit, FigureSource::kDerived,
                    std::move(reference));
}
inline Figure Count(double value, std::string reference) {
  return MakeFigure(value, 1, "count", FigureSource::kMeasured, std::move(reference));
}
// Rounded down to 0.01 GiB, because a profile must not promise more than there is.
inline Figure CapacityFigure(double bytes, std::string reference) {
  constexpr auto gib = static_cast<double>(kGib);
  return MakeFigure(std::floor(bytes / gib * 100) / 100, gib, "GiB", FigureSource::kMeasured,
                    std::move(reference));
}

}  // namespace zeroplan
