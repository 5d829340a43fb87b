// The context of a CUDA kernel's launch in addition to its arguments. Plain types, because .cu
// files include this.
#pragma once

#include <cuda_runtime_api.h>

namespace zeroplan {

class GemmPlans;       // executor/kernels/cuda/gemm/gemm_plans.h
class AttentionPlans;  // executor/kernels/cuda/attention/attention_plans.h

// The data shared by all launches of one rank on one GPU. The stream is set for each launch;
// everything is ordered on it.
struct CudaLaunch {
  cudaStream_t stream = nullptr;
  int sm_count = 0;
  GemmPlans* gemm = nullptr;
  AttentionPlans* attention = nullptr;
};

}  // namespace zeroplan
