// The clock that a GPU keeps while it stays within its power limit.
//
// Kernels that follow each other for longer than some milliseconds share one clock. At the clock c
// (a share of the top one) a kernel of F FLOPs and B bytes that takes t seconds at the top clock
//
//   takes   t * (1 - s + s / c)                      s: the share of it that the clock sets
//   draws   base * its time + flop * F * c + byte * B joules
//
// and c is the largest one, up to 1, at which all of them together draw no more than `limit` on
// average. Products and attention have an s and an F, kernels that only move memory neither.
//
// That the energy of a FLOP rises with the clock, not with its square, is what an H200 does: ten
// products alone, and mixed with copies and pauses, drew 0.93 to 1.09 pJ a FLOP over the clock
// (1425 to 1980 MHz; 0.84 to 1.11 with the odd ones). Attention is taken to draw what products do.
#pragma once

#include "hwprofiles/profile.h"

namespace zeroplan {

// The work of one or several kernels, at the top clock.
struct GpuWork {
  double fixed_seconds = 0;    // at every clock
  double clocked_seconds = 0;  // 1 / c times as many at the clock c
  double joules = 0;           // beyond `base`, at every clock
  double clocked_joules = 0;   // c times as many at the clock c

  GpuWork& operator+=(const GpuWork& other);
  GpuWork operator*(double times) const;
  double seconds() const { return fixed_seconds + clocked_seconds; }
  double SecondsAt(double clock) const { return fixed_seconds + clocked_seconds / clock; }
};

// What a FLOP of an 8-bit product draws, over one of a 16-bit product, where it was not measured.
// Where the limit alone holds products back, rate^2 / peak goes as 1 / (joules of a FLOP). Best
// products of 16 and 8 bits at 16-bit peaks of 989 TFLOP/s: 794.5 and 1402.6 TFLOP/s on an H100,
// 794.5 and 1453.4 on an H200 (S. Bekman, ml-engineering, compute/accelerator): 0.64 and 0.60.
inline constexpr double kEightBitFlop = 0.62;

class PowerLimit {
 public:
  // Without gpu.power every clock is 1: rates are then what they are under the limit.
  explicit PowerLimit(const GpuProfile& gpu);

  // Attention's times are all clocked.
  GpuWork Product(double seconds, double flops, double bytes) const {
    return Kernel(seconds, flops, bytes, clocked_);
  }
  GpuWork Attention(double seconds, double flops, double bytes) const {
    return Kernel(seconds, flops, bytes, 1);
  }
  GpuWork Memory(double seconds, double bytes) const { return {seconds, 0, byte_ * bytes, 0}; }

  // FLOPs of 16 bits that draw what `flops` of `dtype` do, which is 16 or 8 bits wide.
  double As16Bits(Dtype dtype, double flops) const {
    return DtypeBytes(dtype) == 1 ? eight_bit_flop_ * flops : flops;
  }

  // The clock that the GPU keeps when it repeats `work`. It never falls when the GPU also waits.
  double Clock(const GpuWork& work) const;

  // Seconds at the top clock of a product or attention that took `seconds` over and over.
  double ProductAtTopClock(double seconds, double flops, double bytes) const {
    return AtTopClock(seconds, flops, bytes, clocked_);
  }
  double AttentionAtTopClock(double seconds, double flops, double bytes) const {
    return AtTopClock(seconds, flops, bytes, 1);
  }

 private:
  GpuWork Kernel(double seconds, double flops, double bytes, double share) const;
  double AtTopClock(double seconds, double flops, double bytes, double share) const;

  bool known_ = false;
  double spare_watts_ = 0;  // limit less base
  double flop_ = 0, byte_ = 0, clocked_ = 0;
  double eight_bit_flop_ = kEightBitFlop;  // over flop_
};

}  // namespace zeroplan
