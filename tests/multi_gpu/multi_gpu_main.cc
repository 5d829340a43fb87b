// Runs the tests that need several GPUs of one host; where there are fewer than two they are
// skipped (exit code 77).
#include <cstdio>

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "machine/detect.h"

int main(int argc, char** argv) {
  const size_t gpus = zeroplan::QueryGpus().size();
  if (gpus < 2) {
    std::printf("skipped: needs two GPUs, here are %zu\n", gpus);
    return 77;
  }
  std::printf("on %zu GPUs\n", gpus);
  return doctest::Context(argc, argv).run();
}
