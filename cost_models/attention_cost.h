// Seconds of causal attention.
//
// Fused (FlashAttention, Dao et al. 2022; cuDNN): blocks of 128 query rows of a head, each over the
// keys up to its own, so that
//
//   t = start + F / rate(D) * (1 + kDiagonal / T) * (1 + kFill / q),
//   q = B * H * T / 128 / SMs
//
// T: the sequence, rounded up to whole blocks. F: FLOPs of the causal half of those blocks, over
// the padded head size (64, 128, ...). 1/T: the diagonal blocks, which are computed whole, and a
// head's start and end. 1/q: the last wave, a part of which idles on average. `start` and the rate
// of small and of large heads are fitted, each pass by itself.
//
// The backward pass has additional kernels:
// - Heads of keys and values that several query heads share: dK and dV of every query head are read
// and added up. (The matmuls are those of as many heads of keys as of queries: fewer reads of keys
// and values were hidden behind them.)
// - Deterministic: the main kernel writes the gradients of the scores, and the kernel that makes dQ
// reads them. It runs in as many calls as the workspace requires (AttentionPathOf).
//
// Own fused kernels: the same formula over heads padded to 64, 96, 128 or 256, with constants by
// head size, and in the backward pass the heads of keys in q. Their rates are an H200's, as a share
// of its 16-bit matmuls. They multiply by mma.sync, which is taken to reach 0.62 of Hopper's peak
// and all of the peak of GPUs before it; the share grows accordingly, less a margin where no GPU
// was measured.
//
// Within documents: with v keys visible to a token in the mean, 2 v - 1 in the place of T in the
// work of a row, so that v = (T + 1) / 2 is a whole row: rows * (2 v - 1 + kDiagonal). cuDNN's
// kernels for ragged batches are slower by a factor. Unknown v: as if each document filled its row,
// which is the most that attention can cost.
//
// Plain kernels: the same in smaller tiles, at a share of the GPU's fp32 rate. The shares are
// an H200's, assumed for other GPUs too.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/program/attention_path.h"
#include "cost_models/calibration.h"
#include "cost_models/gemm_cost.h"
#include "cost_models/memory_cost.h"
#include "hwprofiles/profile.h"

namespace zeroplan {

// Fused kernels of PyTorch programs. kNewest: cuDNN's and FlashAttention's, whose rates profiles
// have. kTriton: FlashAttention in Triton of 2022 and 2023, as llm-foundry called it.
// kMemoryEfficient: CUTLASS's, which scaled_dot_product_attention uses below compute capability
// 8.0, where FlashAttention is not supported.
enum class TorchFused : uint8_t { kNewest, kTriton, kMemoryEfficient };

struct AttentionShape {
  int64_t batch = 1, seq = 1, heads = 1, head_dim = 1;
  int64_t key_heads = 0;    // heads that the query heads share; 0: as many as query heads
  double visible_keys = 0;  // mean number of keys that a token attends to; 0: (seq + 1) / 2
};

class AttentionCost {
 public:
  // Without measured rows: the profile's attention_forward and attention_backward, with smaller
  // heads slower as on the H200; without those figures, the H200's rates scaled by the sustained
  // rate of 16-bit matmuls. REQUIRES: `gemm` of the same GPU; used in the constructor only.
  AttentionCost(const GpuProfile& gpu, const GemmCost& gemm);

  // Seconds on the kernels that this GPU uses for `launch`. The compute capability of `launch` is
  // ignored. `visible_keys`: LowerOptions::visible_keys, used with documents only.
  double Seconds(AttentionLaunch launch, double visible_keys = 0) const;

  // Fused, in one call, not deterministic.
  double ForwardSeconds(const AttentionShape& shape) const { return Seconds(forward_, shape); }
  double BackwardSeconds(const AttentionShape& shape) const {
    return Seconds(backward_, shape) + SharedSeconds(shape);
  }
  double PlainSeconds(const AttentionShape& shape, Dtype dtype, bool backward) const;
  // Own fused kernels. `deterministic`: the backward pass adds dQ up in order.
  double OwnSeconds(const AttentionShape& shape, bool backward, bool deterministic = false) const;
  double TorchSeconds(TorchFused kernels, const AttentionShape& shape, bool backward) const;

 private:
  struct Pass {
    double flops_factor = 1, diagonal = 0, fill = 0;
    double start_seconds = 0, floor_seconds = 0;
    double launches_of_call = 8;  // upper limit of the shortest call: H200, 7.7 and 14 us
    std::array<double, 2> seconds_per_flop{};  // heads of at most 64, larger ones
    std::array<LocalCorrection, 2> correction;
  };
  struct Timed {
    AttentionShape shape;
    double seconds;
  };
  // FLOPs including overheads, with heads padded to `padded_head` channels.
  double Work(const Pass& pass, const AttentionShape& shape, double padded_head) const;
  double Formula(const Pass& pass, const AttentionShape& shape) const;
  double Seconds(const Pass& pass, const AttentionShape& shape) const;
  // At the dense peak.
  double LeastSeconds(double flops_factor, const AttentionShape& shape) const;
  double SharedSeconds(const AttentionShape& shape) const;
  double OrderedSeconds(
      const AttentionShape& shape) const;  // deterministic, beyond BackwardSeconds
  void Fit(const GpuProfile& gpu, double AttentionRate::*rate, Pass& pass) const;
  void FitRates(const std::vector<Timed>& rows, Pass& pass) const;

  double multiprocessors_ = 1;
  double dense_peak_ = 0, fp32_peak_ = 0;  // FLOP/s
  double launch_seconds_ = 0, seconds_per_byte_ = 0;
  // Own kernels' FLOP/s over their rates on an H200.
  double own_scale_ = 0;
  int compute_capability_ = 0;
  Pass forward_, backward_;
};

// Seconds of attention that writes the T*T scores of each head, whole squares regardless of the
// mask (GPUs without fused kernels). Forward: Q*K^T, softmax (one read and one write of the
// square), P*V. Backward, with P kept: dP = dO*V^T, dV = P^T*dO, softmax backward (reads P and dP,
// writes dS), dQ = dS*K, dK = dS^T*Q. Source: Dao et al. 2022, algorithms 0 and 3 ("standard
// attention").
double UnfusedAttentionSeconds(const GemmCost& gemm, const MemoryCost& memory, Dtype dtype,
                               const AttentionShape& shape, bool backward);

}  // namespace zeroplan
