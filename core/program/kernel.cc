// The kernel table. FLOPs are those of the formulas, not of an implementation; matmuls and
// attention decide a step's time, the elementwise counts only keep such kernels from looking free.
#include "core/program/kernel.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/program/kernel_workspace.h"

namespace zeroplan {
namespace {

constexpr ArgMode kIn = ArgMode::kIn;
constexpr ArgMode kOut = ArgMode::kOut;
constexpr ArgMode kInOut = ArgMode::kInOut;
constexpr ArgMode kOutOrAdd = ArgMode::kOutOrAdd;
constexpr ArgMode kOutOrAddDx = ArgMode::kOutOrAddDx;
constexpr ArgMode kScratch = ArgMode::kScratch;

// ---- FLOPs -------------------------------------------------------------------------------------

double Product(const KernelDims& d, int count) {
  double product = 1;
  for (int i = 0; i < count; ++i) product *= static_cast<double>(d[static_cast<size_t>(i)]);
  return product;
}

double NoFlops(const KernelDims&) { return 0; }
// One addition of token and position embedding an element.
double EmbedFlops(const KernelDims& d) { return Product(d, 3); }
// An element: 1 for the mean, 3 for the variance, 4 to shift, scale, weigh and add the bias.
double LayerNormForwardFlops(const KernelDims& d) { return 8 * Product(d, 2); }
// An element: 2 to normalise x again, 3 for dw and db, 4 for the two row sums, 5 for dx.
double LayerNormBackwardFlops(const KernelDims& d) { return 14 * Product(d, 2); }
double MatmulFlops(const KernelDims& d) { return 2 * Product(d, 3); }
// Q*K^T and P*V are 2*B*T*T*C each; the causal mask leaves half.
double AttentionForwardFlops(const KernelDims& d) {
  return 2 * Product(d, 3) * static_cast<double>(d[1]);
}
// Five products of the forward's size where that has two: the scores again (only lse was saved),
// dV, dP, dQ and dK. The convention of the FlashAttention-2 paper (Dao 2023, section 4.1): 2.5
// times.
double AttentionBackwardFlops(const KernelDims& d) { return 2.5 * AttentionForwardFlops(d); }
// Two products of the forward's size in place of each of its own: dV and dP, dQ and dK. The
// probabilities were kept, so none of them is made again.
double UnfusedAttentionBackwardFlops(const KernelDims& d) { return 2 * AttentionForwardFlops(d); }
// x*(1+tanh(s*(x+k*x^3)))/2, tanh as one.
double GeluForwardFlops(const KernelDims& d) { return 9 * Product(d, 1); }
double GeluBackwardFlops(const KernelDims& d) { return 18 * Product(d, 1); }
double MatmulGeluForwardFlops(const KernelDims& d) {
  return MatmulFlops(d) + GeluForwardFlops({d[0] * d[2]});
}
double MatmulGeluBackwardFlops(const KernelDims& d) {
  return MatmulFlops(d) + GeluBackwardFlops({d[0] * d[1]});
}
// A logit: maximum, difference, exponential, sum; then quotient, difference, scaling.
double CrossEntropyFlops(const KernelDims& d) { return 7 * Product(d, 2); }
double OnePerElement(const KernelDims& d) { return Product(d, 1); }
double TwoPerElement(const KernelDims& d) { return 2 * Product(d, 1); }
// Adds each row of dx to a row of dwte and a row of dwpe.
double EmbedBackwardFlops(const KernelDims& d) { return 2 * Product(d, 3); }
// Gradient factor 1, m 3, v 4, bias corrections 2, root and epsilon 2, quotient 1, decay and
// step 4.
double AdamWFlops(const KernelDims& d) { return 17 * Product(d, 1); }
// A counter-based random number and half a Box-Muller transform, roughly.
double ParamInitFlops(const KernelDims& d) { return 40 * Product(d, 1); }

// ---- workspace ---------------------------------------------------------------------------------

constexpr uint64_t kAlign = 256;  // cudaMalloc's; libraries and vector loads rely on it

uint64_t NoWorkspace(const KernelDims&, Backend) { return 0; }

// 32 MiB: what the cuBLAS documentation recommends for Hopper and data-centre Blackwell
// ("cublasSetWorkspace": 4 MiB on older GPUs). With less, cuBLASLt drops split-K algorithms.
uint64_t MatmulWorkspace(const KernelDims&, Backend backend) {
  return backend == Backend::kCuda ? uint64_t{32} << 20 : 0;
}

// What cuDNN 9's Hopper kernels ask for, measured at 9.14 and 9.19. Without it the library falls
// back on kernels of an older design that take half as long again.
uint64_t AttentionForwardWorkspace(const KernelDims&, Backend backend) {
  return backend == Backend::kCuda ? 256 : 0;
}

// 4*B*H*T*D + 4*B*H*T + 256: measured for cuDNN 9's attention backward on Hopper, and what its
// algorithm needs: dQ in fp32, the row sums of dout*out in fp32, and a header. D = C/H.
uint64_t AttentionBackwardWorkspace(const KernelDims& d, Backend backend) {
  if (backend == Backend::kCpu) return 0;
  const auto batch = static_cast<uint64_t>(d[0]), tokens = static_cast<uint64_t>(d[1]);
  const auto channels = static_cast<uint64_t>(d[2]), heads = static_cast<uint64_t>(d[3]);
  return 4 * batch * tokens * (channels / heads) * heads + 4 * batch * heads * tokens + 256;
}

// Our own kernels: kernel_workspace.h.
// Every thread block sums dw and db over its rows in fp32, and a second launch adds the blocks up,
// in a fixed order.
uint64_t LayerNormBackwardWorkspace(const KernelDims& d, Backend backend) {
  if (backend == Backend::kCpu) return 0;
  const auto blocks = static_cast<uint64_t>(LayerNormBackwardBlocks(d[0]));
  return AlignUp(2 * static_cast<uint64_t>(d[1]) * blocks * sizeof(float), kAlign);
}

uint64_t NormWorkspace(const KernelDims& d, Backend backend) {
  if (backend == Backend::kCpu) return 0;
  return AlignUp(static_cast<uint64_t>(NormBlocks(d[0])) * sizeof(double), kAlign);
}

uint64_t EmbedBackwardWorkspace(const KernelDims& d, Backend backend) {
  if (backend == Backend::kCpu) return 0;
  return static_cast<uint64_t>(EmbedScratchOf(d[0] * d[1], d[2]).bytes);
}

// ---- the table ---------------------------------------------------------------------------------

constexpr std::array<KernelRow, kKernelCount> kTable = {{
    {KernelId::kEmbedForward, "embed_forward", {kIn, kIn, kIn, kOut}, 4, EmbedFlops, NoWorkspace},
    {KernelId::kLayerNormForward,
     "layer_norm_forward",
     {kIn, kIn, kIn, kOut, kOut},
     5,
     LayerNormForwardFlops,
     NoWorkspace},
    {KernelId::kMatmulForward,
     "matmul_forward",
     {kIn, kIn, kIn, kIn, kOut, kScratch},
     6,
     MatmulFlops,
     MatmulWorkspace},
    {KernelId::kAttentionForward,
     "attention_forward",
     {kIn, kOut, kOut, kScratch},
     4,
     AttentionForwardFlops,
     AttentionForwardWorkspace},
    {KernelId::kGeluForward, "gelu_forward", {kIn, kOut}, 2, GeluForwardFlops, NoWorkspace},
    // Even with kForwardOnly the logits may serve as scratch.
    {KernelId::kCrossEntropy,
     "cross_entropy",
     {kInOut, kIn, kIn, kOut},
     4,
     CrossEntropyFlops,
     NoWorkspace},
    {KernelId::kLossReduce, "loss_reduce", {kIn, kInOut}, 2, OnePerElement, NoWorkspace},
    {KernelId::kMatmulBackwardData,
     "matmul_backward_data",
     {kIn, kIn, kOutOrAdd, kScratch},
     4,
     MatmulFlops,
     MatmulWorkspace},
    {KernelId::kMatmulBackwardWeight,
     "matmul_backward_weight",
     {kIn, kIn, kOutOrAdd, kOutOrAdd, kScratch},
     5,
     MatmulFlops,
     MatmulWorkspace},
    {KernelId::kLayerNormBackward,
     "layer_norm_backward",
     {kIn, kIn, kIn, kIn, kOutOrAddDx, kOutOrAdd, kOutOrAdd, kScratch},
     8,
     LayerNormBackwardFlops,
     LayerNormBackwardWorkspace},
    {KernelId::kGeluBackward, "gelu_backward", {kIn, kInOut}, 2, GeluBackwardFlops, NoWorkspace},
    {KernelId::kAttentionBackward,
     "attention_backward",
     {kIn, kIn, kIn, kIn, kOut, kScratch},
     6,
     AttentionBackwardFlops,
     AttentionBackwardWorkspace},
    // dwte is always added to: the tied head has written it before.
    {KernelId::kEmbedBackward,
     "embed_backward",
     {kIn, kIn, kInOut, kOutOrAdd, kScratch},
     5,
     EmbedBackwardFlops,
     EmbedBackwardWorkspace},
    {KernelId::kFill, "fill", {kOut}, 1, NoFlops, NoWorkspace},
    {KernelId::kConvert, "convert", {kIn, kOutOrAdd}, 2, OnePerElement, NoWorkspace},
    {KernelId::kNormSq, "norm_sq", {kIn, kInOut, kScratch}, 3, TwoPerElement, NormWorkspace},
    {KernelId::kStepScalars, "step_scalars", {kInOut}, 1, NoFlops, NoWorkspace},
    {KernelId::kAdamW,
     "adamw",
     {kIn, kIn, kInOut, kInOut, kInOut, kOut},
     6,
     AdamWFlops,
     NoWorkspace},
    {KernelId::kParamInit, "param_init", {kOut}, 1, ParamInitFlops, NoWorkspace},
    {KernelId::kSelectRow, "select_row", {kIn, kIn, kOut}, 3, NoFlops, NoWorkspace},
    // For each sequence one batched product over its heads, D apart, with a leading dimension of
    // 3*C: q, k and v are read, and their gradients written, where they lie in qkv. No permuted
    // copies, so the library's workspace is all the scratch.
    {KernelId::kUnfusedAttentionForward,
     "unfused_attention_forward",
     {kIn, kOut, kOut, kScratch},
     4,
     AttentionForwardFlops,
     MatmulWorkspace},
    {KernelId::kUnfusedAttentionBackward,
     "unfused_attention_backward",
     {kIn, kIn, kIn, kOut, kOut, kScratch},
     6,
     UnfusedAttentionBackwardFlops,
     MatmulWorkspace},
    {KernelId::kMatmulGeluForward,
     "matmul_gelu_forward",
     {kIn, kIn, kIn, kOut, kOut, kScratch},
     6,
     MatmulGeluForwardFlops,
     MatmulWorkspace},
    {KernelId::kMatmulGeluBackward,
     "matmul_gelu_backward",
     {kIn, kIn, kIn, kOut, kScratch},
     5,
     MatmulGeluBackwardFlops,
     MatmulWorkspace},
}};

constexpr bool InEnumOrder() {
  for (size_t i = 0; i < kTable.size(); ++i) {
    if (kTable[i].id != static_cast<KernelId>(i)) return false;
  }
  return true;
}
static_assert(InEnumOrder(), "KernelInfo indexes the table by KernelId");

}  // namespace

const KernelRow& KernelInfo(KernelId id) { return kTable[static_cast<size_t>(id)]; }

double UnfusedAttentionGemmFlops(KernelId id, const KernelDims& dims) {
  ZEROPLAN_CHECK(
      id == KernelId::kUnfusedAttentionForward || id == KernelId::kUnfusedAttentionBackward,
      "{} is not unfused attention", KernelInfo(id).name);
  return 2 * KernelInfo(id).flops(dims);
}

ArgMode AccessMode(KernelId id, int index, uint8_t flags) {
  const ArgMode mode = kTable[static_cast<size_t>(id)].modes[static_cast<size_t>(index)];
  switch (mode) {
    case ArgMode::kIn:
    case ArgMode::kOut:
    case ArgMode::kInOut:
      return mode;
    case ArgMode::kOutOrAdd:
      return (flags & kAccumulate) != 0 ? kInOut : kOut;
    case ArgMode::kOutOrAddDx:
      return (flags & kAddToOutput) != 0 ? kInOut : kOut;
    case ArgMode::kScratch:
      return kOut;
  }
  return mode;
}

}  // namespace zeroplan
