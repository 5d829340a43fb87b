// Seconds of a matmul on one GPU.
//
// A matmul of an output [R, S] over a contraction of length L is split into tiles, which the
// multiprocessors process in waves. A large one is limited by power instead, a flat one by memory:
//
//   waves  = min over tiles (a, b) of
//            ceil(ceil(R/a) * ceil(S/b) / SMs) * 2ab(L + ramp) / (dense_peak / SMs)
//                                              * (32768 / ab)^0.0735
//   power  = 2RSL / sustained
//   memory = bytes / (kMemoryShare * hbm_bandwidth)
//   t      = launch + (waves^q + power^q + memory^q)^(1/q),   q = kSharpness
//
// bytes: of the operands and the output, whose elements have 16 bits if the operands' have 8.
//
// ramp: a tile's start and end, 3.4 us of the H200's multiprocessors expressed as contraction
// length. It is a time (latency, and writing the tile), so a GPU that multiplies slower loses less
// by it.
//
// A matmul whose best tiling leaves more than 30 % of the multiprocessors idle is split along L as
// well. No matmul is faster than the fastest one measured (the cost of one library call), nor than
// the dense peak. Residuals of measured rows are corrected locally, by kind. Without rows
// `sustained` is set so that a matmul of 8192 x 8192 x 8192 reaches the profile's `reachable` rate.
//
// Sources: wave quantisation, NVIDIA "Matrix Multiplication Background User's Guide", section 3.3;
// the time of a tile from its contraction, Osama et al. 2023 ("Stream-K", section 4); constants
// fitted on the H200 rows that docs/cost-model.md lists.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "cost_models/calibration.h"
#include "hwprofiles/profile.h"

namespace zeroplan {

// `count` equal matmuls of [rows, depth] by [depth, columns].
struct Product {
  double rows = 0, columns = 0, depth = 0;
  double count = 1;

  double flops() const { return 2 * count * rows * columns * depth; }
  double inputs() const { return count * (rows * depth + columns * depth); }
  double outputs() const { return count * rows * columns; }
  double elements() const { return inputs() + outputs(); }
};
// The output and contraction of a layer's matmul of that kind, from its M, K, N.
Product LayerProduct(GemmKind kind, int64_t m, int64_t k, int64_t n);
// Bytes of an output element of a matmul in `dtype`: 16 bits for 8-bit operands.
constexpr double OutputBytes(Dtype dtype) {
  return DtypeBytes(dtype) == 1 ? 2 : static_cast<double>(DtypeBytes(dtype));
}
// Bytes of operands and output, without bias, residual or accumulation.
inline double BareBytes(Dtype dtype, const Product& product) {
  return product.inputs() * static_cast<double>(DtypeBytes(dtype)) +
         product.outputs() * OutputBytes(dtype);
}

// The formula's figures of a GPU for one dtype.
struct GemmMachine {
  double multiprocessors = 0;
  double dense_peak = 0;        // FLOP/s at the clock at which it runs
  double sustained = 0;         // FLOP/s under the power limit, for the power term
  double memory_bandwidth = 0;  // bytes/s, HBM
  double element_bytes = 2, output_bytes = 2;
  double launch_seconds = 0;
  double ramp = 387;  // contraction elements equivalent to a tile's start and end; the H200's
};
// The formula alone, without floor and correction.
double TiledProductSeconds(const GemmMachine& machine, const Product& product);

class GemmCost {
 public:
  explicit GemmCost(const GpuProfile& gpu);

  // Throws Error(kUsage) if the GPU has no peak for `dtype`. 16-bit dtypes without rows of their
  // own use each other's; without any, `reachable_peaks` or kSustainedShare of the dense peak.
  // kE5M2 counts as kE4M3, whose kData and kWeight matmuls are one kind.
  double Seconds(GemmKind kind, Dtype dtype, int64_t m, int64_t k, int64_t n) const;
  // The share of its speed that a matmul keeps on `share` of the multiprocessors while a collective
  // uses the others: if its tiles just fill the GPU, it needs another wave.
  double SpeedOnShare(GemmKind kind, Dtype dtype, int64_t m, int64_t k, int64_t n,
                      double share) const;
  // A batch of matmuls outside the linears (attention's): no local correction, a higher share of
  // the HBM bandwidth.
  double Seconds(Dtype dtype, const Product& product) const;

  double DensePeak(Dtype dtype) const;  // throws as above
  double Sustained(Dtype dtype) const;

 private:
  struct Fitted {
    GemmMachine machine;
    double dense_peak = 0;  // the profile's
    double sustained = 0;   // FLOP/s of large matmuls
    std::array<double, 3> floor_seconds{};
    std::array<LocalCorrection, 3> correction;
  };
  Fitted Fit(const GpuProfile& gpu, Dtype dtype) const;
  const Fitted& Of(Dtype dtype) const;

  std::string gpu_name_;
  std::array<Fitted, 4> fitted_;  // fp32, bf16, fp16, e4m3
};

}  // namespace zeroplan
