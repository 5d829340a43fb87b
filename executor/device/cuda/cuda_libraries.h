// cuBLASLt, NCCL and cuDNN, opened when they are first used: the program starts, and runs on the
// CPU, without them, and finds them where PyTorch finds them.
//
// A library is looked for, by the name of its ABI (libnccl.so.2), in this order:
//   1. the folders in LD_LIBRARY_PATH;
//   2. the packages nvidia/*/lib (PyPI's nvidia-*) on sys.path of the python3 in this program's
//   folder;
//   3. the places that the loader knows;
//   4. the same packages of the python3 on the PATH;
//   5. CUDA's folder on most machines, and the folders where the build found the libraries.
// All functions are thread-safe.
#pragma once

#include <cublasLt.h>
#include <nccl.h>

#include <string>

#include "machine/gpu_state.h"

namespace zeroplan {

struct OpenedLibrary {
  void* handle = nullptr;  // for dlsym; null if there is none
  std::string why;         // set if there is none: a sentence that names the file and the places
};

// Opened once; it stays open.
const OpenedLibrary& OpenCudaLibrary(CudaLibrary library);

// The functions of cuBLASLt that are called, without its prefix.
#define ZEROPLAN_LT_FUNCTIONS(apply)                                                         \
  apply(Create) apply(Destroy) apply(GetVersion) apply(GetStatusName) apply(GetStatusString) \
      apply(MatrixLayoutCreate) apply(MatrixLayoutDestroy) apply(MatrixLayoutSetAttribute)   \
          apply(MatmulDescCreate) apply(MatmulDescDestroy) apply(MatmulDescSetAttribute)     \
              apply(MatmulPreferenceCreate) apply(MatmulPreferenceDestroy)                   \
                  apply(MatmulPreferenceSetAttribute) apply(MatmulAlgoGetHeuristic)          \
                      apply(MatmulAlgoCheck) apply(Matmul)

struct LtFunctions {
#define ZEROPLAN_MEMBER(name) decltype(&::cublasLt##name) name;
  ZEROPLAN_LT_FUNCTIONS(ZEROPLAN_MEMBER)
#undef ZEROPLAN_MEMBER
};
// Throws Error(kRuntime) with the command that installs it if there is none.
const LtFunctions& Lt();

// The functions of NCCL that are called, without its prefix.
#define ZEROPLAN_NCCL_FUNCTIONS(apply)                                                         \
  apply(GetVersion) apply(GetErrorString) apply(GetLastError) apply(GetUniqueId)               \
      apply(CommInitRank) apply(CommSplit) apply(CommDestroy) apply(CommAbort)                 \
          apply(CommGetAsyncError) apply(GroupStart) apply(GroupEnd) apply(AllReduce)          \
              apply(ReduceScatter) apply(AllGather) apply(Broadcast) apply(Reduce) apply(Send) \
                  apply(Recv)

struct NcclFunctions {
#define ZEROPLAN_MEMBER(name) decltype(&::nccl##name) name;
  ZEROPLAN_NCCL_FUNCTIONS(ZEROPLAN_MEMBER)
#undef ZEROPLAN_MEMBER
};
// Throws as Lt() does.
const NcclFunctions& Nccl();

// In the library's own numbers (machine/gpu_state.h); 0 if there is none.
int LibraryVersion(CudaLibrary library);

// "cuBLASLt 13.1.0, NCCL 2.28.9, cuDNN 9.14.0": those that are found.
std::string CudaLibraryVersions();

}  // namespace zeroplan
