// Every kernel a step program may launch: its arguments, FLOPs, bytes and workspace. The lowering,
// the cost model and each backend read this one table.
//
// Legend: B micro-batch, T sequence, C hidden, F ffn, H heads, V vocabulary, Vp padded vocabulary,
// M rows (= B*T unless said), R rows of a chunk. "P" is the compute dtype (params and activations),
// "G" the gradient dtype of the destination buffer, "F32" float, "I32" int32. All tensors are dense
// and row-major; a suffix names the axes (x_BTC).
//
// Every argument carries its own dtype (that of its buffer), so a kernel converts as needed: reads
// widen to float, sums are float (double where said), writes round to nearest even.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace zeroplan {

enum class KernelId : uint8_t {
  kEmbedForward,      // dims B,T,C,V : tokens_BT(I32) wte_VpC wpe_TC -> x_BTC
  kLayerNormForward,  // dims M,C : x_MC w_C b_C -> y_MC stats_M2(F32: mean, 1/std)
  kMatmulForward,     // dims M,K,N : a_MK w bias_N? residual_MN? -> y_MN = a*w (+bias) (+residual)
                      //   w is [K,N], with kTransposed [N,K]
  kAttentionForward,  // dims B,T,C,H : qkv_BT3C -> out_BTC lse_BHT(F32) [workspace]; causal, scale
                      //   1/sqrt(C/H)
  kGeluForward,       // dims n : x_n -> y_n ; tanh form
  kCrossEntropy,      // dims R,V,Vp : logits_RVp(in/out) targets_R(I32) state -> loss_R(F32)
                      //   unless kForwardOnly, logits become dlogits:
                      //   (softmax - onehot)*state.grad_scale, 0 in columns >= V;
                      //   a target < 0 is ignored: loss 0, dlogits 0
  kLossReduce,  // dims n : loss_n(F32) -> state.loss_sum (+)= mean (double sum in index order)
  kMatmulBackwardData,    // dims M,K,N : dy_MN w -> dx_MK (+)= dy*w^T   (w as in forward)
  kMatmulBackwardWeight,  // dims M,K,N : a_MK dy_MN -> dw (+)= a^T*dy (as w lies), bias grad db_N?
                          // (+)= sum_M dy
  kLayerNormBackward,     // dims M,C : dy_MC x_MC w_C stats_M2 -> dx_MC (+)=, dw_C (+)=, db_C (+)=
                          //   [workspace]
                          //   kAccumulate is for dw and db; kAddToOutput is for dx
  kGeluBackward,          // dims n : x_n -> d_n = d_n * gelu'(x_n) in place
  kAttentionBackward,  // dims B,T,C,H : dout_BTC qkv_BT3C out_BTC lse_BHT -> dqkv_BT3C [workspace]
  kEmbedBackward,      // dims B,T,C,V : tokens_BT(I32) dx_BTC -> dwte_VpC += ; dwpe_TC (+)=
                       //   [workspace]
  kFill,               // dims n bytes : -> dst zeroed
  kConvert,            // dims n : src_n -> dst_n (+)= src, converting dtype
  kNormSq,             // dims n : g_n -> state.grad_norm_sq (+)= sum g^2 (double) [workspace]
  kStepScalars,  // dims - : state -> state. Norm, overflow, clip factor, lr, bias correction, loss
                 // scale
  kAdamW,        // dims n,unit,begin : grad_n state -> master_n(F32) m_n v_n param_n?
                 //   elements [begin + rank*shard, ...) of the unit; decay by its tensor table
  kParamInit,    // dims n,unit,begin : -> master_n(F32), from (seed, tensor, index) only
  kSelectRow,    // dims C : x_BTC state -> row_C = x[state.position]
  // Attention without a fused kernel, by batched matrix products: the probabilities exist in
  // memory, in dtype P, 0 above the diagonal. See UnfusedAttentionGemmFlops for what they cost.
  kUnfusedAttentionForward,   // dims B,T,C,H : qkv_BT3C -> out_BTC probs_BHTT [workspace]; causal,
                              //   scale 1/sqrt(C/H). The scores live in probs until the softmax.
  kUnfusedAttentionBackward,  // dims B,T,C,H : dout_BTC qkv_BT3C probs_BHTT -> dqkv_BT3C
                              //   dprobs_BHTT [workspace]. dprobs holds the gradient of the
                              //   probabilities, then that of the scores; of no use afterwards.
  // GELU on the fp32 sums of a product, before they are rounded. w as in the other products.
  kMatmulGeluForward,   // dims M,K,N : a_MK w bias_N -> pre_MN y_MN [workspace]
                        //   pre = a*w + bias, y = gelu(pre)
  kMatmulGeluBackward,  // dims M,K,N : dy_MN w pre_MK -> dx_MK [workspace]
                        //   dx = (dy*w^T) * gelu'(pre)
  kCount
};
inline constexpr int kKernelCount = static_cast<int>(KernelId::kCount);

// Bits of LaunchKernel::flags.
enum KernelFlag : uint8_t {
  kNoFlags = 0,
  kAccumulate = 1,   // (+)= adds to what is there; else writes
  kTransposed = 2,   // w of the matmul lies as [N,K]
  kForwardOnly = 4,  // cross-entropy: loss only
  kAddToOutput = 8,  // layer norm backward: dx += instead of dx =
  kOnRank = 16,  // kAdamW, kParamInit: `begin` is within this rank's shard (else within the unit)
};

enum class ArgMode : uint8_t { kIn, kOut, kInOut, kOutOrAdd, kOutOrAddDx, kScratch };

using KernelDims = std::array<int64_t, 4>;

// Which library's workspace sizes and which materialised tensors a program is lowered for.
enum class Backend : uint8_t { kCpu, kCuda };

inline constexpr int kMaxKernelArgs = 8;

struct KernelRow {
  KernelId id;
  std::string_view name;                      // "matmul_forward"
  std::array<ArgMode, kMaxKernelArgs> modes;  // in argument order, as listed above
  int arg_count;                              // workspace (kScratch) last, where there is one
  // Floating-point operations of the mathematics (multiply-add = 2); causal attention counts half.
  double (*flops)(const KernelDims&);
  // Bytes of scratch the library needs on this backend; 0: the argument is left out.
  uint64_t (*workspace_bytes)(const KernelDims&, Backend);
};

const KernelRow& KernelInfo(KernelId id);

// Floating-point operations that the batched matrix products of unfused attention carry out:
// twice the row's `flops`, since a product of T x T knows no mask. Between the products a softmax
// passes over all B*H*T*T elements: read and written once in the forward pass; in the backward
// pass probs and dprobs are read and dprobs is written. A cost model takes its time from these.
// REQUIRES: `id` is one of the two unfused kernels.
double UnfusedAttentionGemmFlops(KernelId id, const KernelDims& dims);

// How argument `index` of a launch is accessed, flags taken into account (kOutOrAdd resolved to
// kOut or kInOut, kScratch to kOut).
ArgMode AccessMode(KernelId id, int index, uint8_t flags);
inline bool Reads(ArgMode mode) { return mode == ArgMode::kIn || mode == ArgMode::kInOut; }
inline bool Writes(ArgMode mode) { return mode != ArgMode::kIn; }

}  // namespace zeroplan
