// Fused attention: cuDNN's or our own plain kernels, as core/program/attention_path.h says.
//
// Legend: B micro-batch, T sequence, H heads of queries, D head size, N a row of qkv.
#include "executor/kernels/attention_call.h"
#include "executor/kernels/cuda/attention/attention_plans.h"
#include "executor/kernels/cuda/attention/plain_attention.h"
#include "executor/kernels/cuda/cuda_kernels.h"
#include "executor/kernels/cuda/cuda_launch.h"
#include "executor/kernels/kernel_util.h"

namespace zeroplan::cuda {
namespace {

SdpaParts Find(const KernelCall& call, Dtype dtype, const KernelArg& workspace, bool backward) {
  return call.context.cuda->attention->Find(AttentionDimsOf(call), dtype, backward,
                                            Present(workspace) ? workspace.bytes : 0,
                                            call.context.rank == 0);
}

// qkv_BTN -> out_BTHD lse_BHT [workspace]. Tensors of several dtypes are for the plain kernels.
SdpaParts FindForward(const KernelCall& call) {
  const bool alike = Arg(call, 0).dtype == Arg(call, 1).dtype;
  return Find(call, alike ? Arg(call, 0).dtype : Dtype::kF32, Arg(call, 3), false);
}

// dout_BTHD qkv_BTN out_BTHD lse_BHT -> dqkv_BTN [workspace].
SdpaParts FindBackward(const KernelCall& call) {
  const Dtype dtype = Arg(call, 1).dtype;
  const bool alike =
      Arg(call, 0).dtype == dtype && Arg(call, 2).dtype == dtype && Arg(call, 4).dtype == dtype;
  return Find(call, alike ? dtype : Dtype::kF32, Arg(call, 5), true);
}

struct Tensors {
  const KernelArg &qkv, &out, &lse;
  const KernelArg &dout, &dqkv;  // of the backward pass
};

void Run(const KernelCall& call, const SdpaParts& parts, const Tensors& t,
         const KernelArg& workspace) {
  const AttentionDims dims = AttentionDimsOf(call);
  CudaLaunch& cuda = *call.context.cuda;
  const auto at = [](const KernelArg& arg, int64_t element) -> void* {
    return Present(arg) ? ElementAt(arg, element) : nullptr;
  };
  for (int64_t b = 0; b < dims.B; b += parts.part.sequences) {
    for (int64_t g = 0; g < dims.G; g += parts.part.key_heads) {
      const int64_t h = g * dims.Sharing(), row = b * dims.T * dims.QkvRow();
      const int64_t q = row + dims.QueryColumn(h), k = row + dims.KeyColumn(g);
      const int64_t v = row + dims.ValueColumn(g), out = b * dims.T * dims.OutRow() + h * dims.D;
      cuda.attention->library().Run(*parts.plan,
                                    {.q = at(t.qkv, q),
                                     .k = at(t.qkv, k),
                                     .v = at(t.qkv, v),
                                     .out = at(t.out, out),
                                     .lse = at(t.lse, (b * dims.H + h) * dims.T),
                                     .dout = at(t.dout, out),
                                     .dq = at(t.dqkv, q),
                                     .dk = at(t.dqkv, k),
                                     .dv = at(t.dqkv, v)},
                                    workspace.data, cuda.stream);
    }
  }
}

}  // namespace

void AttentionForward(const KernelCall& call) {
  const SdpaParts parts = FindForward(call);
  if (parts.plan == nullptr) return PlainAttentionForward(call);
  Run(call, parts, {Arg(call, 0), Arg(call, 1), Arg(call, 2), kAbsent, kAbsent}, Arg(call, 3));
}

void AttentionBackward(const KernelCall& call) {
  const SdpaParts parts = FindBackward(call);
  if (parts.plan == nullptr) return PlainAttentionBackward(call);
  Run(call, parts, {Arg(call, 1), Arg(call, 2), Arg(call, 3), Arg(call, 0), Arg(call, 4)},
      Arg(call, 5));
}

// Building a plan compiles kernels, which takes seconds.
void PrepareAttentionForward(const KernelCall& call) { FindForward(call); }
void PrepareAttentionBackward(const KernelCall& call) { FindBackward(call); }

}  // namespace zeroplan::cuda
