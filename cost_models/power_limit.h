// The clock at which a GPU stays within its power limit.
//
// Kernels that follow each other for longer than some milliseconds share one clock. At the clock c
// (a share of the top one) a kernel of F FLOPs and B bytes that lasts t seconds at the top clock
//
//   lasts   t * (1 - s + s / c)                      s: the share of it that the clock sets
//   uses    base * its time + flop * F * c + byte * B joules
//
// and c is the largest value, up to 1, at which the average power of all of them is at most
// `limit`. Matmuls and attention have an s and an F, kernels that only move memory neither.
//
// The energy of a FLOP rises with the clock, not with its square. This was measured on an H200: ten
// matmuls alone, and mixed with copies and pauses, used 0.93 to 1.09 pJ a FLOP over the clock (1425
// to 1980 MHz; 0.84 to 1.11 with the odd ones). Attention is assumed to use as much as matmuls.
#pragma once

#include "hwprofiles/profile.h"

namespace zeroplan {

// The work of one or several kernels, at the top clock.
struct GpuWork {
  double fixed_seconds = 0;    // equal at every clock
  double clocked_seconds = 0;  // multiplied by 1 / c at the clock c
  double joules = 0;           // beyond `base`, equal at every clock
  double clocked_joules = 0;   // multiplied by c at the clock c

  GpuWork& operator+=(const GpuWork& other);
  GpuWork operator*(double times) const;
  double seconds() const { return fixed_seconds + clocked_seconds; }
  double SecondsAt(double clock) const { return fixed_seconds + clocked_seconds / clock; }
};

// Energy of a FLOP of an 8-bit matmul over that of a 16-bit one, if it was not measured. Where
// power alone limits matmuls, rate^2 / peak is proportional to 1 / (joules of a FLOP). The best
// matmuls of 16 and 8 bits at 16-bit peaks of 989 TFLOP/s: 794.5 and 1402.6 TFLOP/s on an H100,
// 794.5 and 1453.4 on an H200 (S. Bekman, ml-engineering, compute/accelerator): 0.64 and 0.60.
inline constexpr double kEightBitFlop = 0.62;

class PowerLimit {
 public:
  // Without gpu.power every clock is 1, because the rates are then those under the limit.
  explicit PowerLimit(const GpuProfile& gpu);

  // All of attention's time depends on the clock.
  GpuWork Product(double seconds, double flops, double bytes) const {
    return Kernel(seconds, flops, bytes, clocked_);
  }
  GpuWork Attention(double seconds, double flops, double bytes) const {
    return Kernel(seconds, flops, bytes, 1);
  }
  GpuWork Memory(double seconds, double bytes) const { return {seconds, 0, byte_ * bytes, 0}; }

  // The 16-bit FLOPs that use as much energy as `flops` of `dtype`, which is 16 or 8 bits wide.
  double As16Bits(Dtype dtype, double flops) const {
    return DtypeBytes(dtype) == 1 ? eight_bit_flop_ * flops : flops;
  }

  // The clock that the GPU keeps when it repeats `work`. It never falls if the GPU also waits.
  double Clock(const GpuWork& work) const;

  // Seconds at the top clock of a matmul or attention that lasted `seconds` when repeated.
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
  double spare_watts_ = 0;  // limit minus base
  double flop_ = 0, byte_ = 0, clocked_ = 0;
  double eight_bit_flop_ = kEightBitFlop;  // relative to flop_
};

}  // namespace zeroplan
