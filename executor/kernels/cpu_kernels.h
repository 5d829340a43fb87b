// The CPU backend's kernels, one for each KernelId; see core/program/kernel.h for arguments.
//
// What they keep to: nothing is allocated; only the bytes of the arguments and the pool's scratch
// are touched; results do not depend on the number of threads, since each sum is either made by one
// worker or in chunks whose cut does not depend on it.
#pragma once

#include "executor/kernels/kernel_call.h"

namespace zeroplan::cpu {

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

}  // namespace zeroplan::cpu
