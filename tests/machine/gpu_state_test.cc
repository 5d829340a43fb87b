#include "machine/gpu_state.h"

#include <doctest/doctest.h>

namespace zeroplan {
namespace {

TEST_CASE("versions as the libraries' releases are named") {
  CHECK(CudaVersionText(13000) == "13.0");
  CHECK(CudaVersionText(12080) == "12.8");
  CHECK(LibraryVersionText(22803) == "2.28.3");   // NCCL
  CHECK(LibraryVersionText(91400) == "9.14.0");   // cuDNN
  CHECK(LibraryVersionText(130001) == "13.0.1");  // cuBLASLt
}

}  // namespace
}  // namespace zeroplan
