#include <cuda_runtime_api.h>
#include <nccl.h>

#include "core/base/version.h"
#include "executor/kernels/cuda/attention/cudnn_sdpa.h"
#include "executor/measure/measure_device.h"

namespace zeroplan {

LibraryFacts QueryLibraries() {
  LibraryFacts facts;
  facts.version = kVersion;
  facts.cuda = true;
  facts.architectures = ZEROPLAN_CUDA_ARCHITECTURES;
  facts.runtime = CUDART_VERSION;
  if (cudaDriverGetVersion(&facts.driver) != cudaSuccess) facts.driver = 0;
  const cudaError_t status = cudaGetDeviceCount(&facts.gpus);
  if (status != cudaSuccess) {
    facts.gpus = 0;
    facts.failure = status;
    facts.why = cudaGetErrorString(status);
    cudaGetLastError();
  }
  facts.nccl_at_build = NCCL_VERSION_CODE;
  if (ncclGetVersion(&facts.nccl) != ncclSuccess) facts.nccl = 0;
  const CudnnLibrary cudnn = FindCudnn();
  facts.cudnn = cudnn.version;
  facts.cudnn_at_build = cudnn.at_build;
  facts.why_no_cudnn = cudnn.why;
  return facts;
}

}  // namespace zeroplan
