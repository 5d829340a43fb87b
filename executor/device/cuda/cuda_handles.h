// Owners of CUDA streams and events. Views are the raw cudaStream_t and cudaEvent_t.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <type_traits>

#include "executor/device/cuda/cuda_check.h"

namespace zeroplan {

struct DestroyStream {
  using pointer = cudaStream_t;
  void operator()(cudaStream_t stream) const noexcept {
    WarnCuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
  }
};
struct DestroyEvent {
  using pointer = cudaEvent_t;
  void operator()(cudaEvent_t event) const noexcept {
    WarnCuda(cudaEventDestroy(event), "cudaEventDestroy");
  }
};
using CudaStream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, DestroyStream>;
using CudaEvent = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, DestroyEvent>;

// A stream that does not wait for the legacy default stream. `urgent`: its kernels' blocks go first
// where several streams have blocks to place.
inline CudaStream MakeStream(bool urgent) {
  int least = 0, greatest = 0;
  ZEROPLAN_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  ZEROPLAN_CUDA(
      cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? greatest : least));
  return CudaStream(stream);
}

inline CudaEvent MakeEvent(bool timed) {
  cudaEvent_t event = nullptr;
  ZEROPLAN_CUDA(
      cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming));
  return CudaEvent(event);
}

}  // namespace zeroplan
