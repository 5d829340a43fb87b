// Seconds of a matrix product on one GPU.
//
// A product of an output [R, S] over a contraction of length L is cut into tiles, which the
// multiprocessors work off in waves; a large one is held back by power instead; a flat one by
// memory:
//
//   waves  = min over tiles (a, b) of
//            ceil(ceil(R/a) * ceil(S/b) / SMs) * 2ab(L + ramp) / (dense_peak / SMs)
//                                              * (32768 / ab)^0.0735
//   power  = 2RSL / sustained
//   memory = bytes / (kMemoryShare * hbm_bandwidth)
//   t      = launch + (waves^q + power^q + memory^q)^(1/q),   q = kSharpness
//
// bytes: of the operands and the output, which has 16 bits where operands have 8.
//
// ramp: a tile's start and end, 3.4 us of the H200's multiprocessors as contraction length. It is a
// time (latency, and writing the tile), so that a GPU that multiplies slower loses less by it.
//
// A product whose best tiling leaves more than 30 % of the multiprocessors idle is split along L as
// well. No product is faster than the fastest one measured (what one library call costs), nor than
// the dense peak. What measured rows leave over is corrected locally, by kind. Without rows
// `sustained` is what makes a product of 8192 x 8192 x 8192 reach the profile's `reachable` rate.
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

// `count` equal products of [rows, depth] by [depth, columns].
struct Product {
  double rows = 0, columns = 0, depth = 0;
  double count = 1;

  double flops() const { return 2 * count * rows * columns * depth; }
  double inputs() const { return count * (rows * depth + columns * depth); }
  double outputs() const { return count * rows * columns; }
  double elements() const { return inputs() + outputs(); }
};
// Which of a layer's M, K, N the output and the contraction are.
Product LayerProduct(GemmKind kind, int64_t m, int64_t k, int64_t n);
// Bytes of an element of what a product of `dtype` writes: 16 bits where it takes 8.
constexpr double OutputBytes(Dtype dtype) {
  return DtypeBytes(dtype) == 1 ? 2 : static_cast<double>(DtypeBytes(dtype));
}
// Of operands and output, without bias, residual or accumulation.
inline double BareBytes(Dtype dtype, const Product& product) {
  return product.inputs() * static_cast<double>(DtypeBytes(dtype)) +
         product.outputs() * OutputBytes(dtype);
}

// What the formula needs of a GPU for one dtype.
struct GemmMachine {
  double multiprocessors = 0;
  double dense_peak = 0;        // FLOP/s at the clock that it runs at
  double sustained = 0;         // FLOP/s under the power limit; the power term's
  double memory_bandwidth = 0;  // bytes/s, HBM
  double element_bytes = 2, output_bytes = 2;
  double launch_seconds = 0;
  double ramp = 387;  // contraction elements that a tile's start and end cost; the H200's
};
// The formula alone, without floor and correction.
double TiledProductSeconds(const GemmMachine& machine, const Product& product);

class GemmCost {
 public:
  explicit GemmCost(const GpuProfile& gpu);

  // Throws Error(kUsage) if the GPU has no peak for `dtype`. 16-bit dtypes without rows of their
  // own use each other's; without any, `reachable_peaks` or kSustainedShare of the dense peak.
  // kE5M2 counts as kE4M3, of whose products kData and kWeight are one kind.
  double Seconds(GemmKind kind, Dtype dtype, int64_t m, int64_t k, int64_t n) const;
  // What is left of its speed on `share` of the multiprocessors, the others being a collective's:
  // a product whose tiles just fill the GPU needs another wave.
  double SpeedOnShare(GemmKind kind, Dtype dtype, int64_t m, int64_t k, int64_t n,
                      double share) const;
  // A batch of products of no layer (attention's): no local correction, more of the HBM bandwidth.
  double Seconds(Dtype dtype, const Product& product) const;

  double DensePeak(Dtype dtype) const;  // throws as above
  double Sustained(Dtype dtype) const;

 private:
  struct Fitted {
    GemmMachine machine;
    double dense_peak = 0;  // the profile's
    double sustained = 0;   // FLOP/s of large products
    std::array<double, 3> floor_seconds{};
    std::array<LocalCorrection, 3> correction;
  };
  Fitted Fit(const GpuProfile& gpu, Dtype dtype) const;
  const Fitted& Of(Dtype dtype) const;

  std::string gpu_name_;
  std::array<Fitted, 4> fitted_;  // fp32, bf16, fp16, e4m3
};

}  // namespace zeroplan
