// The CUDA libraries that a build of the executor was built with, and those that it finds: plain
// numbers, for programs that load none of them.
#pragma once

#include <string>

namespace zeroplan {

// Versions are numbers as the libraries give them: CUDA 13000, NCCL 22803, cuDNN 91400.
struct LibraryFacts {
  std::string version;        // zeroplan's
  bool cuda = false;          // built with CUDA; without it the rest is empty
  std::string architectures;  // that kernels were compiled for: "80-real,90-real"
  int runtime = 0;            // of CUDA, linked in
  int driver = 0;             // the newest CUDA that the driver takes; 0: no driver
  int gpus = 0;               // that CUDA can use here
  int failure = 0;            // CUDA's error code where it can use none
  std::string why;            // and what it says
  int nccl = 0, nccl_at_build = 0;
  int cudnn = 0, cudnn_at_build = 0;  // 0: not found, not built with
  std::string why_no_cudnn;
};

// "13.0" of 13000.
std::string CudaVersionText(int version);
// "2.28.3" of NCCL's 22803, "9.14.0" of cuDNN's 91400; cuBLASLt counts so too.
std::string LibraryVersionText(int version);

}  // namespace zeroplan
