#include "core/base/error.h"
#include "executor/kernels/cuda/cuda_kernels.h"

namespace zeroplan::cuda {

void MatmulForward(const KernelCall&) { ZEROPLAN_CHECK(false, "pending"); }
void AttentionForward(const KernelCall&) { ZEROPLAN_CHECK(false, "pending"); }
void MatmulBackwardData(const KernelCall&) { ZEROPLAN_CHECK(false, "pending"); }
void MatmulBackwardWeight(const KernelCall&) { ZEROPLAN_CHECK(false, "pending"); }
void AttentionBackward(const KernelCall&) { ZEROPLAN_CHECK(false, "pending"); }
void UnfusedAttentionForward(const KernelCall&) { ZEROPLAN_CHECK(false, "pending"); }
void UnfusedAttentionBackward(const KernelCall&) { ZEROPLAN_CHECK(false, "pending"); }
void MatmulGeluForward(const KernelCall&) { ZEROPLAN_CHECK(false, "pending"); }
void MatmulGeluBackward(const KernelCall&) { ZEROPLAN_CHECK(false, "pending"); }
void PrepareMatmulForward(const KernelCall&) {}
void PrepareMatmulBackwardData(const KernelCall&) {}
void PrepareMatmulBackwardWeight(const KernelCall&) {}
void PrepareMatmulGeluForward(const KernelCall&) {}
void PrepareMatmulGeluBackward(const KernelCall&) {}
void PrepareAttentionForward(const KernelCall&) {}
void PrepareAttentionBackward(const KernelCall&) {}

}  // namespace zeroplan::cuda
