// Fused attention: cuDNN's where it can, else our own plain kernels.
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

SdpaPlan* Find(const KernelCall& call, Dtype dtype, const KernelArg& workspace, bool backward) {
  return call.context.cuda->attention->Find(
      {.dims = AttentionDimsOf(call), .dtype = dtype, .backward = backward},
      Present(workspace) ? workspace.bytes : 0, call.context.rank == 0);
}

// qkv_BTN -> out_BTHD lse_BHT [workspace]. Tensors of several dtypes are for the plain kernels.
SdpaPlan* FindForward(const KernelCall& call) {
  const bool alike = Arg(call, 0).dtype == Arg(call, 1).dtype;
  return Find(call, alike ? Arg(call, 0).dtype : Dtype::kF32, Arg(call, 3), false);
}

// dout_BTHD qkv_BTN out_BTHD lse_BHT -> dqkv_BTN [workspace].
SdpaPlan* FindBackward(const KernelCall& call) {
  const Dtype dtype = Arg(call, 1).dtype;
  const bool alike =
      Arg(call, 0).dtype == dtype && Arg(call, 2).dtype == dtype && Arg(call, 4).dtype == dtype;
  return Find(call, alike ? dtype : Dtype::kF32, Arg(call, 5), true);
}

}  // namespace

void AttentionForward(const KernelCall& call) {
  SdpaPlan* plan = FindForward(call);
  if (plan == nullptr) return PlainAttentionForward(call);
  CudaLaunch& cuda = *call.context.cuda;
  cuda.attention->library().Run(
      *plan, {.qkv = Arg(call, 0).data, .out = Arg(call, 1).data, .lse = Arg(call, 2).data},
      Arg(call, 3).data, cuda.stream);
}

void AttentionBackward(const KernelCall& call) {
  SdpaPlan* plan = FindBackward(call);
  if (plan == nullptr) return PlainAttentionBackward(call);
  CudaLaunch& cuda = *call.context.cuda;
  cuda.attention->library().Run(*plan,
                                {.qkv = Arg(call, 1).data,
                                 .out = Arg(call, 2).data,
                                 .lse = Arg(call, 3).data,
                                 .dout = Arg(call, 0).data,
                                 .dqkv = Arg(call, 4).data},
                                Arg(call, 5).data, cuda.stream);
}

// Building a plan compiles kernels, which takes seconds.
void PrepareAttentionForward(const KernelCall& call) { FindForward(call); }
void PrepareAttentionBackward(const KernelCall& call) { FindBackward(call); }

}  // namespace zeroplan::cuda
