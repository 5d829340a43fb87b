// A stream's work recorded as a CUDA graph, to be launched again and again.
#pragma once

#include <cuda_runtime_api.h>

#include "executor/device/cuda/cuda_handles.h"

namespace zeroplan {

// Until EndCapture, what this thread issues on `stream`, and on streams that fork from it and join
// it again, becomes part of a graph and does not run.
void BeginCapture(cudaStream_t stream);

// The graph. Small fills of memory in it have become kernels: libraries set a counter or two before
// many of their kernels, and a fill of the driver's own holds a stream up for 6 us where a kernel
// takes 2 (H200).
CudaGraphExec EndCapture(cudaStream_t stream);

}  // namespace zeroplan
