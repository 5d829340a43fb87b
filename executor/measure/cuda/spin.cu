#include "executor/measure/cuda/spin.h"

namespace zeroplan::cuda {
namespace {

__device__ unsigned long long Nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void SpinKernel(unsigned long long nanoseconds) {
  const unsigned long long begin = Nanoseconds();
  while (Nanoseconds() - begin < nanoseconds) {
  }
}

}  // namespace

void Spin(uint64_t nanoseconds, cudaStream_t stream) {
  SpinKernel<<<1, 1, 0, stream>>>(nanoseconds);
}

}  // namespace zeroplan::cuda
