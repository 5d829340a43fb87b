#include "cost_models/gemm_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/base/error.h"
#include "cost_models/power_limit.h"

namespace zeroplan {
namespace {

// Fitted once on the H200's bf16 rows of the fit set (soft L1 loss of log errors).
constexpr double kMemoryShare = 0.378;  // of the HBM bandwidth, for a product's operands
// Batches of products that mostly write or read a large square: measured for Q*K^T and P*V of 1024
// tokens on an H200, 2.8 to 3.2 of 4.8 TB/s.
constexpr double kBatchedMemoryShare = 0.63;
constexpr double kSharpness = 5.23;
// The GPU on whose rows GemmMachine::ramp was fitted: dense 16-bit FLOP/s and multiprocessors of
// the H200 SXM (NVIDIA H200 datasheet, half of the sparse 1979 TFLOP/s; NVIDIA H100 white paper,
// table 3: the same processor).
constexpr double kH200DensePeak = 989.4e12, kH200Multiprocessors = 132;
constexpr double kRampRate = kH200DensePeak / kH200Multiprocessors;
constexpr double kSplitTraffic = 5.0;  // times one fp32 write and read of the output
constexpr double kSplitBelow = 0.7;    // utilisation below which the library splits
constexpr double kSplitUtilisation = 0.95;
// What the shortest product takes at most, in launches: in a graph 3.8 us on an H200, where a row
// may hold the 10 us that issuing a library's call takes.
constexpr double kLaunchesOfProduct = 5;
// Sustained over dense peak, H200 bf16: 702 of 989.4 TFLOP/s.
constexpr double kSustainedShare = 0.71;
// The same of 8 bits: 1304.5 of 1979 TFLOP/s, products of 8192 on an H100
// (github.com/pytorch/pytorch/issues/143465).
constexpr double kEightBitSustainedShare = 0.66;

// penalty: (32768 / area)^0.0735, fitted too.
struct Tile {
  double rows, columns, penalty;
};
constexpr double kLargestTile = 128 * 256;
constexpr double kHalf = 1.0523, kThreeQuarters = 1.0214, kQuarter = 1.1073;  // of kLargestTile
constexpr std::array<Tile, 7> kTiles = {{{128, 256, 1},
                                         {256, 128, 1},
                                         {128, 128, kHalf},
                                         {128, 192, kThreeQuarters},
                                         {192, 128, kThreeQuarters},
                                         {64, 128, kQuarter},
                                         {128, 64, kQuarter}}};

double BestTilingSeconds(const GemmMachine& machine, const Product& product) {
  const double rate = machine.dense_peak / machine.multiprocessors;
  double best = std::numeric_limits<double>::infinity();
  for (const Tile& tile : kTiles) {
    const double area = tile.rows * tile.columns;
    const double tiles = product.count * std::ceil(product.rows / tile.rows) *
                         std::ceil(product.columns / tile.columns);
    const double waves = std::ceil(tiles / machine.multiprocessors);
    best = std::min(best, waves * 2 * area * (product.depth + machine.ramp) / rate * tile.penalty);
  }
  return best;
}

double SplitSeconds(const GemmMachine& machine, const Product& product) {
  const double rate = machine.dense_peak / machine.multiprocessors;
  const double outputs = product.count * product.rows * product.columns;
  return product.flops() / machine.dense_peak / kSplitUtilisation +
         kSplitTraffic * outputs * 2 * sizeof(float) / (kMemoryShare * machine.memory_bandwidth) +
         2 * kLargestTile * machine.ramp / rate;
}

bool EightBits(Dtype dtype) { return DtypeBytes(dtype) == 1; }

// Which rows a product is corrected by.
size_t Index(Dtype dtype, GemmKind kind) {
  return static_cast<size_t>(EightBits(dtype) && kind == GemmKind::kWeight ? GemmKind::kData
                                                                           : kind);
}

LocalCorrection::Position Position(const Product& product) {
  return {std::log2(product.rows), std::log2(product.columns), std::log2(product.depth)};
}

std::vector<GemmRate> RowsOf(const GpuProfile& gpu, Dtype dtype) {
  std::vector<GemmRate> rows;
  if (!gpu.gemm) return rows;
  for (const GemmRate& row : gpu.gemm->rows) {
    if (row.dtype == dtype) rows.push_back(row);
  }
  return rows;
}

// What a tile's start and end cost on this GPU, over what they cost on an H200, both counted in
// contraction elements. Never more: a faster multiprocessor is taken to hide as large a share.
// Products of 8 bits have as many elements as those of 16: of an H100's, over 1,024 to 16,384,
// 387 leaves 7 % at most (github.com/pytorch/pytorch/issues/143465; TileLang's matmul_fp8).
double RampShare(const GpuProfile& gpu) {
  double fastest = 0;
  for (const auto& [dtype, peak] : gpu.dense_peaks) {
    if (!EightBits(dtype)) fastest = std::max(fastest, peak.value);
  }
  return std::min(1.0, fastest / std::max(1.0, gpu.sm_count.value) / kRampRate);
}

struct TimedProduct {
  GemmKind kind;
  Product product;
  double seconds;  // at the top clock, where the profile says what the power limit does
};

std::vector<TimedProduct> TimedProducts(const GpuProfile& gpu, const std::vector<GemmRate>& rows) {
  const PowerLimit power(gpu);
  std::vector<TimedProduct> timed;
  timed.reserve(rows.size());
  for (const GemmRate& row : rows) {
    const Product product = LayerProduct(row.kind, row.m, row.k, row.n);
    const double seconds = product.flops() / row.flops_per_second;
    // What a FLOP draws is known in 16 bits.
    timed.push_back(
        {row.kind, product,
         row.dtype == Dtype::kF32
             ? seconds
             : power.ProductAtTopClock(seconds, power.As16Bits(row.dtype, product.flops()),
                                       BareBytes(row.dtype, product))});
  }
  return timed;
}

// What the formula adds up before the power term, to the power of kSharpness.
double OtherTerms(const GemmMachine& machine, const Product& product) {
  double waves = BestTilingSeconds(machine, product);
  if (product.flops() / machine.dense_peak < kSplitBelow * waves) {
    waves = std::min(waves, SplitSeconds(machine, product));
  }
  const double bytes =
      product.inputs() * machine.element_bytes + product.outputs() * machine.output_bytes;
  const double memory = bytes / (kMemoryShare * machine.memory_bandwidth);
  return std::pow(waves, kSharpness) + std::pow(memory, kSharpness);
}
double WithPower(const GemmMachine& machine, const Product& product, double other_terms) {
  const double power = std::pow(product.flops() / machine.sustained, kSharpness);
  return machine.launch_seconds + std::pow(other_terms + power, 1 / kSharpness);
}

// The sustained rate that minimises the sum of |log(formula / measured)|, by golden section between
// 0.3 and 1 of the dense peak. Absolute errors, so that a few odd shapes do not pull it.
double FitSustained(GemmMachine machine, const std::vector<TimedProduct>& rows) {
  struct Sample {
    Product product;
    double seconds, other_terms;
  };
  std::vector<Sample> samples;
  double largest = 0;
  for (const TimedProduct& row : rows) {
    samples.push_back({row.product, row.seconds, OtherTerms(machine, row.product)});
    largest = std::max(largest, row.product.flops());
  }
  // Small products say nothing about power.
  std::erase_if(samples, [&](const Sample& s) { return s.product.flops() < largest / 1024; });
  auto loss = [&](double share) {
    machine.sustained = share * machine.dense_peak;
    double sum = 0;
    for (const Sample& s : samples) {
      sum += std::abs(std::log(WithPower(machine, s.product, s.other_terms) / s.seconds));
    }
    return sum;
  };
  constexpr double kGolden = 0.6180339887498949;
  double low = 0.3, high = 1;
  double a = high - kGolden * (high - low), b = low + kGolden * (high - low);
  double loss_a = loss(a), loss_b = loss(b);
  while (high - low > 2e-3) {
    if (loss_a < loss_b) {
      high = b, b = a, loss_b = loss_a;
      a = high - kGolden * (high - low), loss_a = loss(a);
    } else {
      low = a, a = b, loss_a = loss_b;
      b = low + kGolden * (high - low), loss_b = loss(b);
    }
  }
  return (low + high) / 2 * machine.dense_peak;
}

// The rate of the power term with which a large product takes what `reached` says of it: where the
// multiprocessors alone would take nearly as long, more than that.
double PowerRate(const GemmMachine& machine, double reached) {
  constexpr double kLarge = 8192, kNoLimit = 1e3;
  const Product large{kLarge, kLarge, kLarge};
  const double rest = std::pow(large.flops() / reached, kSharpness) - OtherTerms(machine, large);
  const double most = kNoLimit * machine.dense_peak;
  return rest <= 0 ? most : std::min(most, large.flops() / std::pow(rest, 1 / kSharpness));
}

}  // namespace

Product LayerProduct(GemmKind kind, int64_t m, int64_t k, int64_t n) {
  const auto dm = static_cast<double>(m), dk = static_cast<double>(k), dn = static_cast<double>(n);
  switch (kind) {
    case GemmKind::kForward:
      return {dm, dn, dk};
    case GemmKind::kData:
      return {dm, dk, dn};
    case GemmKind::kWeight:
      return {dk, dn, dm};
  }
  return {};
}

double TiledProductSeconds(const GemmMachine& machine, const Product& product) {
  return WithPower(machine, product, OtherTerms(machine, product));
}

GemmCost::GemmCost(const GpuProfile& gpu) : gpu_name_(gpu.name) {
  constexpr std::array kDtypes = {Dtype::kF32, Dtype::kBF16, Dtype::kF16, Dtype::kE4M3};
  for (size_t i = 0; i < kDtypes.size(); ++i) fitted_[i] = Fit(gpu, kDtypes[i]);
  // Without rows of its own, the shortest product of 8 bits is a call of the library as of 16.
  Fitted& eight_bits = fitted_[3];
  if (eight_bits.floor_seconds[0] == 0) eight_bits.floor_seconds = fitted_[1].floor_seconds;
}

GemmCost::Fitted GemmCost::Fit(const GpuProfile& gpu, Dtype dtype) const {
  Fitted fitted;
  const auto peak = gpu.dense_peaks.find(dtype);
  if (peak == gpu.dense_peaks.end()) return fitted;
  GemmMachine& machine = fitted.machine;
  machine.multiprocessors = std::max(1.0, gpu.sm_count.value);
  fitted.dense_peak = machine.dense_peak = peak->second.value;
  machine.memory_bandwidth = gpu.hbm_bandwidth.value;
  machine.element_bytes = static_cast<double>(DtypeBytes(dtype));
  machine.output_bytes = OutputBytes(dtype);
  machine.launch_seconds = gpu.launch_overhead.value;
  machine.ramp *= RampShare(gpu);
  const auto reachable = gpu.reachable_peaks.find(dtype);
  machine.sustained =
      reachable != gpu.reachable_peaks.end()
          ? reachable->second.value
          : (EightBits(dtype) ? kEightBitSustainedShare : kSustainedShare) * machine.dense_peak;
  std::vector<GemmRate> rows = RowsOf(gpu, dtype);
  // Few rows of one's own (a check that fp16 is as fast as bf16) say less than the other's many.
  const Dtype other = dtype == Dtype::kBF16 ? Dtype::kF16 : Dtype::kBF16;
  if (DtypeBytes(dtype) == 2) {
    std::vector<GemmRate> others = RowsOf(gpu, other);
    if (others.size() > rows.size()) rows = std::move(others);
  }
  if (rows.empty()) {
    fitted.sustained = machine.sustained;
    if (reachable != gpu.reachable_peaks.end()) {
      // What the clock allows, where that is above the datasheet's.
      machine.dense_peak = std::max(machine.dense_peak, reachable->second.value);
      machine.sustained = PowerRate(machine, reachable->second.value);
    }
    return fitted;
  }

  const std::vector<TimedProduct> timed = TimedProducts(gpu, rows);
  fitted.sustained = machine.sustained = FitSustained(machine, timed);
  double least = std::numeric_limits<double>::infinity();
  std::array<double, 3> floors = {least, least, least};
  for (const TimedProduct& row : timed) {
    const size_t at = Index(dtype, row.kind);
    floors[at] = std::min(floors[at], row.seconds);
    least = std::min(least, row.seconds);
    const double formula = TiledProductSeconds(machine, row.product);
    fitted.correction[at].Add(Position(row.product), row.seconds / formula);
  }
  for (size_t i = 0; i < floors.size(); ++i) {
    fitted.floor_seconds[i] = std::min(std::isfinite(floors[i]) ? floors[i] : least,
                                       kLaunchesOfProduct * machine.launch_seconds);
  }
  return fitted;
}

const GemmCost::Fitted& GemmCost::Of(Dtype dtype) const {
  if (dtype == Dtype::kE5M2) dtype = Dtype::kE4M3;
  const Fitted& fitted = fitted_[dtype == Dtype::kBF16   ? 1
                                 : dtype == Dtype::kF16  ? 2
                                 : dtype == Dtype::kE4M3 ? 3
                                                         : 0];
  if (fitted.machine.dense_peak <= 0) {
    ThrowUsage(
        "hardware profile of {}: gpu.peaks.{} is missing, so no product in {} can be timed; "
        "add the dense peak, or {}",
        gpu_name_, DtypeName(dtype), DtypeName(dtype),
        EightBits(dtype) ? "leave fp8 off: GPUs multiply eight bits from compute capability 8.9 on"
                         : "choose a dtype that the GPU has");
  }
  return fitted;
}

double GemmCost::Seconds(GemmKind kind, Dtype dtype, int64_t m, int64_t k, int64_t n) const {
  const Fitted& fitted = Of(dtype);
  const Product product = LayerProduct(kind, m, k, n);
  const double formula = TiledProductSeconds(fitted.machine, product) *
                         fitted.correction[Index(dtype, kind)].Factor(Position(product));
  return std::max({formula, fitted.floor_seconds[Index(dtype, kind)],
                   product.flops() / fitted.machine.dense_peak});
}

double GemmCost::SpeedOnShare(GemmKind kind, Dtype dtype, int64_t m, int64_t k, int64_t n,
                              double share) const {
  const GemmMachine& whole = Of(dtype).machine;
  const Product product = LayerProduct(kind, m, k, n);
  GemmMachine part = whole;
  part.multiprocessors = std::max(1.0, std::floor(share * whole.multiprocessors));
  part.dense_peak *= part.multiprocessors / whole.multiprocessors;
  return std::min(1.0, TiledProductSeconds(whole, product) / TiledProductSeconds(part, product));
}

double GemmCost::Seconds(Dtype dtype, const Product& product) const {
  const Fitted& fitted = Of(dtype);
  GemmMachine machine = fitted.machine;
  machine.memory_bandwidth *= kBatchedMemoryShare / kMemoryShare;
  return std::max(TiledProductSeconds(machine, product), fitted.floor_seconds[0]);
}

double GemmCost::DensePeak(Dtype dtype) const { return Of(dtype).dense_peak; }
double GemmCost::Sustained(Dtype dtype) const { return Of(dtype).sustained; }

}  // namespace zeroplan
