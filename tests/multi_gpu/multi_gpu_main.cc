// Runs the tests that need several GPUs of one host; where there are fewer than two they are skipped
// (exit code 77).
#include <cuda_runtime_api.h>

#include <cstdio>

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "tests/multi_gpu/gpu_count.h"

int main(int argc, char** argv) {
  const int gpus = zeroplan::GpuCount();
  if (gpus < 2) {
    std::printf("skipped: needs two GPUs, here are %d\n", gpus);
    return 77;
  }
  std::printf("on %d GPUs\n", gpus);
  return doctest::Context(argc, argv).run();
}

int zeroplan::GpuCount() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}
