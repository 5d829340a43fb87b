// What a CUDA kernel's launch gets beside its arguments. Plain types: .cu files include this.
#pragma once

#include <cuda_runtime_api.h>

namespace zeroplan {

class GemmPlans;       // executor/kernels/cuda/gemm/gemm_plans.h
class AttentionPlans;  // executor/kernels/cuda/attention/attention_plans.h

// What launches on one GPU, for one rank, share. The stream is set for each launch; everything is
// ordered on it.
struct CudaLaunch {
  cudaStream_t stream = nullptr;
  int sm_count = 0;
  GemmPlans* gemm = nullptr;
  AttentionPlans* attention = nullptr;
};

}  // namespace zeroplan
