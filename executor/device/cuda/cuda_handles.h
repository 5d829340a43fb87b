// Owners of CUDA streams, events and graphs. Views are the raw handles.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <type_traits>

#define ZEROPLAN_CUDA(call) ::zeroplan::CheckCuda((call), #call, __FILE__, __LINE__)
#include <sys/prctl.h>

#include <chrono>
#include <thread>

namespace zeroplan {

// Turns failures of the CUDA runtime into errors that name call, place and device.

// Throws Error(kRuntime) unless `status` is success.
void CheckCuda(cudaError_t status, const char* call, const char* file, int line);
// For destructors: logs instead.
void WarnCuda(cudaError_t status, const char* call) noexcept;

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
struct DestroyGraph {
  using pointer = cudaGraph_t;
  void operator()(cudaGraph_t graph) const noexcept {
    WarnCuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
};
struct DestroyGraphExec {
  using pointer = cudaGraphExec_t;
  void operator()(cudaGraphExec_t graph) const noexcept {
    WarnCuda(cudaGraphExecDestroy(graph), "cudaGraphExecDestroy");
  }
};
using CudaStream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, DestroyStream>;
using CudaEvent = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, DestroyEvent>;
using CudaGraph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, DestroyGraph>;
using CudaGraphExec = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, DestroyGraphExec>;

// A stream that does not wait for the legacy default stream. `urgent`: the blocks of its kernels
// are scheduled first if several streams have blocks to schedule.
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

// The wait of a thread for its GPU or for other ranks.

// Spins first, then yields to other threads.
class Patience {
 public:
  void Pause() {
    if (++asked_ < kSpins) {
      std::this_thread::yield();
    } else {
      // By default Linux wakes a thread up to 50 us late.
      [[maybe_unused]] static thread_local const int exact = prctl(PR_SET_TIMERSLACK, 1000UL);
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  int asked() const { return asked_; }

 private:
  static constexpr int kSpins = 2000;
  int asked_ = 0;
};

// Capture of a stream's work as a CUDA graph, to be launched again and again.

// Until EndCapture, work that this thread issues on `stream`, and on streams that fork from it and
// join it again, becomes part of a graph and does not run.
void BeginCapture(cudaStream_t stream);

// Returns the graph. Replaces small fills of memory in it by kernels: libraries set a counter or
// two before many of their kernels, and a fill by the driver holds a stream up for 6 us, a kernel
// for 2 (H200).
CudaGraphExec EndCapture(cudaStream_t stream);

}  // namespace zeroplan
