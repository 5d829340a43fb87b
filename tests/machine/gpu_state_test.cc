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

TEST_CASE("the first thing that CUDA lacks is named with what gets it") {
  LibraryFacts facts;
  facts.cuda = true;
  facts.runtime = 13000;
  const auto lack = [&](int gpus, bool shown = false) {
    const auto found = FindCudaLack(facts, gpus, shown);
    return found ? found->fact + "; " + found->fix : "";
  };
  CHECK(lack(1) == "there is no NVIDIA driver; install NVIDIA's driver, then nvidia-smi");
  CHECK(lack(1, true).find("NVIDIA_DRIVER_CAPABILITIES=compute,utility") != std::string::npos);
  facts.driver = 12080;
  CHECK(lack(1) ==
        "the NVIDIA driver is too old: it takes CUDA up to 12.8, this zeroplan needs 13.0; install "
        "driver 580 or newer (Ubuntu: sudo apt-get install nvidia-driver-580), then restart");
  facts.driver = 13010;
  facts.why_no_cublaslt = "there is no libcublasLt.so.13";
  facts.why_no_nccl = "there is no libnccl.so.2";
  CHECK(lack(1) ==
        "there is no libcublasLt.so.13; pip install 'nvidia-cublas<14', or name its folder in "
        "LD_LIBRARY_PATH");
  facts.cublaslt = 130100;
  CHECK(lack(1) == "");  // one GPU needs no NCCL
  CHECK(lack(2) ==
        "several GPUs need NCCL: there is no libnccl.so.2; pip install nvidia-nccl-cu13, or name "
        "its folder in LD_LIBRARY_PATH, or use ⟦gpus⟧ 1");
  facts.nccl = 22809;
  CHECK(lack(8) == "");
  // A newer minor version of the toolkit runs on each driver of its major one.
  facts.runtime = 13010;
  facts.driver = 13000;
  CHECK(lack(1) == "");
  facts.runtime = 12040;
  CHECK(InstallAdvice(CudaLibrary::kCublasLt, facts.runtime)
            .starts_with("pip install nvidia-cublas-cu12,"));
}

}  // namespace
}  // namespace zeroplan
