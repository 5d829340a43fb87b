// Placeholders until the plain attention kernels are there: they fail, naming themselves.
#include "core/base/error.h"
#include "executor/kernels/cuda/cuda_kernels.h"

namespace zeroplan::cuda {

void PlainAttentionForward(const KernelCall&) {
  ZEROPLAN_CHECK(false, "pending: PlainAttentionForward");
}
void PlainAttentionBackward(const KernelCall&) {
  ZEROPLAN_CHECK(false, "pending: PlainAttentionBackward");
}

}  // namespace zeroplan::cuda
