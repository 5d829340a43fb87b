#include "executor/kernels/cuda/attention/plain_attention.h"

#include "core/program/attention_path.h"
#include "executor/kernels/attention_dims.h"
#include "executor/kernels/cuda/launch_util.h"

namespace zeroplan::cuda {
namespace {

AttentionDims DimsOf(const KernelCall& call) {
  const AttentionDims dims = AttentionDimsOf(call);
  if (dims.D > kMostPlainHead) {
    ThrowRuntime("attention without cuDNN takes heads of at most {} channels, not {}",
                 kMostPlainHead, dims.D);
  }
  return dims;
}

void Check(const KernelCall& call, cudaError_t error) {
  if (error != cudaSuccess) {
    ThrowRuntime("{}: the GPU has too little shared memory: {}", KernelInfo(call.id).name,
                 cudaGetErrorString(error));
  }
  CheckLaunched(call);
}

}  // namespace

void PlainAttentionForward(const KernelCall& call) {
  Check(call,
        LaunchPlainAttentionForward(DimsOf(call), Floats(call, 0), Arg(call, 4).as<const int32_t>(),
                                    Floats(call, 1), Arg(call, 2).as<float>(), LaunchStream(call)));
}

void PlainAttentionBackward(const KernelCall& call) {
  Check(call, LaunchPlainAttentionBackward(DimsOf(call), Floats(call, 0), Floats(call, 1),
                                           Floats(call, 2), Arg(call, 3).as<const float>(),
                                           Arg(call, 6).as<const int32_t>(), Floats(call, 4),
                                           LaunchStream(call)));
}

}  // namespace zeroplan::cuda
