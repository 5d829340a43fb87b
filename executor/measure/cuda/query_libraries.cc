#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "core/base/error.h"
#include "core/base/version.h"
#include "executor/device/cuda/cuda_arenas.h"
#include "executor/device/cuda/cuda_handles.h"
#include "executor/device/cuda/cuda_libraries.h"
#include "executor/kernels/cuda/attention/cudnn_sdpa.h"
#include "executor/measure/measure_device.h"
#include "machine/detect.h"
#include "machine/host_state.h"

namespace zeroplan {

namespace {

void FindCublasLt(LibraryFacts& facts) {
  facts.cublaslt = LibraryVersion(CudaLibrary::kCublasLt);
  facts.why_no_cublaslt = OpenCudaLibrary(CudaLibrary::kCublasLt).why;
}

void FindNccl(LibraryFacts& facts) {
  facts.nccl = LibraryVersion(CudaLibrary::kNccl);
  facts.why_no_nccl = OpenCudaLibrary(CudaLibrary::kNccl).why;
}

}  // namespace

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
  FindCublasLt(facts);
  facts.nccl_at_build = NCCL_VERSION_CODE;
  FindNccl(facts);
  const CudnnLibrary cudnn = FindCudnn();
  facts.cudnn = cudnn.version;
  facts.cudnn_at_build = cudnn.at_build;
  facts.why_no_cudnn = cudnn.why;
  return facts;
}

void RequireCuda(int gpus) {
  LibraryFacts facts;
  facts.runtime = CUDART_VERSION;
  if (cudaDriverGetVersion(&facts.driver) != cudaSuccess) facts.driver = 0;
  FindCublasLt(facts);
  if (gpus > 1) FindNccl(facts);
  if (const auto lack = FindCudaLack(facts, gpus, !QueryGpus().empty())) {
    ThrowRuntime("{} cannot be used: {}; {}; --backend cpu runs without",
                 gpus > 1 ? fmt::format("{} GPUs", gpus) : "a GPU", lack->fact, lack->fix);
  }
}

PinnedFacts TryPinnedMemory(uint64_t most_bytes, double seconds) {
  constexpr uint64_t kPiece = uint64_t{256} << 20;
  ZEROPLAN_CUDA(cudaFree(nullptr));  // makes the context, which takes its own time
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  const uint64_t free_bytes = MemoryInfo("MemAvailable").value_or(0);
  PinnedFacts facts;
  facts.asked_bytes = most_bytes > 0 ? most_bytes : free_bytes / 4 * 3;
  std::vector<std::unique_ptr<PinnedArena>> pieces;
  while (facts.locked_bytes < facts.asked_bytes && std::chrono::steady_clock::now() < end) {
    const uint64_t bytes = std::min(kPiece, facts.asked_bytes - facts.locked_bytes);
    pieces.push_back(PinnedArena::Try(bytes, 0, QueryHost().cores, facts.refusal));
    if (pieces.back() == nullptr) break;
    facts.locked_bytes += bytes;
  }
  return facts;
}

}  // namespace zeroplan
