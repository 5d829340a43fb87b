// Graphs of a stream's work do what the stream would, with small fills as kernels too.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

#include "executor/device/cuda/cuda_handles.h"
#include "tests/executor/kernels/kernel_harness.h"

namespace zeroplan::kernel_test {
namespace {

TEST_CASE("gpu graphs: fills of every size keep their place between copies") {
  // Small ones become kernels, up to 4096 bytes; the driver takes odd sizes as bytes.
  const std::vector<size_t> sizes = {1, 2, 3, 4, 8, 127, 128, 2048, 4095, 4096, 4097, 100'000};
  const CudaStream stream = MakeStream(false);
  for (const size_t size : sizes) {
    CAPTURE(size);
    // [filled][first copy][second copy], each with a byte behind it that nobody may touch.
    const size_t part = size + 1;
    std::byte* data = nullptr;
    CheckGpu(cudaMalloc(reinterpret_cast<void**>(&data), 3 * part), "cudaMalloc");
    CheckGpu(cudaMemset(data, 0xee, 3 * part), "cudaMemset");
    CheckGpu(cudaDeviceSynchronize(), "cudaMemset");
    const auto copy_to = [&](int to) {
      CheckGpu(cudaMemcpyAsync(data + static_cast<size_t>(to) * part, data, size,
                               cudaMemcpyDeviceToDevice, stream.get()),
               "cudaMemcpyAsync");
    };
    BeginCapture(stream.get());
    CheckGpu(cudaMemsetAsync(data, 0x11, size, stream.get()), "cudaMemsetAsync");
    copy_to(1);
    CheckGpu(cudaMemsetAsync(data, 0xa5, size, stream.get()), "cudaMemsetAsync");
    copy_to(2);
    const CudaGraphExec graph = EndCapture(stream.get());
    for (int launch = 0; launch < 2; ++launch) {
      CheckGpu(cudaGraphLaunch(graph.get(), stream.get()), "cudaGraphLaunch");
    }
    CheckGpu(cudaStreamSynchronize(stream.get()), "the graph");
    std::vector<unsigned char> found(3 * part);
    CheckGpu(cudaMemcpy(found.data(), data, found.size(), cudaMemcpyDefault), "download");
    std::vector<unsigned char> wanted(3 * part, 0xee);
    for (size_t i = 0; i < size; ++i) {
      wanted[i] = wanted[2 * part + i] = 0xa5;
      wanted[part + i] = 0x11;
    }
    CHECK(found == wanted);
    cudaFree(data);
  }
}

}  // namespace
}  // namespace zeroplan::kernel_test
