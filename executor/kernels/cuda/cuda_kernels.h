// The CUDA backend's kernels, one for each KernelId; see core/program/kernel.h for arguments.
//
// What they keep to: nothing is allocated and nothing synchronises; only the bytes of the arguments
// are touched (scratch is an argument); every launch goes to KernelContext::cuda->stream; sums have
// a fixed order, so that the same inputs give the same bits (attention's backward pass through
// cuDNN: where AttentionPlans was made deterministic).
#pragma once

#include "executor/kernels/kernel_call.h"

namespace zeroplan::cuda {

void EmbedForward(const KernelCall& call);
void LayerNormForward(const KernelCall& call);
void MatmulForward(const KernelCall& call);
void AttentionForward(const KernelCall& call);
void GeluForward(const KernelCall& call);
void CrossEntropy(const KernelCall& call);
void LossReduce(const KernelCall& call);
void MatmulBackwardData(const KernelCall& call);
void MatmulBackwardWeight(const KernelCall& call);
void LayerNormBackward(const KernelCall& call);
void GeluBackward(const KernelCall& call);
void AttentionBackward(const KernelCall& call);
void EmbedBackward(const KernelCall& call);
void Fill(const KernelCall& call);
void Convert(const KernelCall& call);
void NormSq(const KernelCall& call);
void StepScalars(const KernelCall& call);
void AdamW(const KernelCall& call);
void ParamInit(const KernelCall& call);
void SelectRow(const KernelCall& call);
void UnfusedAttentionForward(const KernelCall& call);
void UnfusedAttentionBackward(const KernelCall& call);
void MatmulGeluForward(const KernelCall& call);
void MatmulGeluBackward(const KernelCall& call);

// Attention in fp32 on CUDA cores, arguments as AttentionForward's and AttentionBackward's: for
// fp32, and for builds without cuDNN. Heads of at most 256 channels; the workspace is not touched.
void PlainAttentionForward(const KernelCall& call);
void PlainAttentionBackward(const KernelCall& call);

// Choose algorithms and build plans for a launch before the first step runs it. The arguments'
// memory is theirs to scribble on; they may synchronise and allocate host memory.
void PrepareMatmulForward(const KernelCall& call);
void PrepareMatmulBackwardData(const KernelCall& call);
void PrepareMatmulBackwardWeight(const KernelCall& call);
void PrepareMatmulGeluForward(const KernelCall& call);
void PrepareMatmulGeluBackward(const KernelCall& call);
void PrepareAttentionForward(const KernelCall& call);
void PrepareAttentionBackward(const KernelCall& call);
void PrepareUnfusedAttentionForward(const KernelCall& call);
void PrepareUnfusedAttentionBackward(const KernelCall& call);

}  // namespace zeroplan::cuda
