// cuDNN's causal attention (SDPA), behind plain types: only cudnn_sdpa.cc sees cuDNN. The library
// is loaded at run time, so that a program runs, with slower attention, where there is none.
//
// Legend: B micro-batch, T sequence, H heads of queries, G of keys and values, D head size,
// N = (H+2G)*D.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/dtype.h"
#include "executor/kernels/attention_dims.h"

namespace zeroplan {

struct SdpaShape {
  AttentionDims dims{};
  int64_t qkv_row = 0,
          out_row = 0;         // elements from a token to the next: more than dims', of a part
  Dtype dtype = Dtype::kBF16;  // of all tensors but lse
  bool backward = false;
  bool deterministic = false;  // backward: equal inputs give equal bits; needs more workspace
  // Above 0: not B sequences of T tokens but up to this many documents in their B*T tokens, each of
  // at most `longest`. Not deterministic.
  int64_t documents = 0, longest = 0;

  auto operator<=>(const SdpaShape&) const = default;
};

// One built plan; its launches need exactly `workspace_bytes`.
class SdpaPlan {
 public:
  virtual ~SdpaPlan() = default;
  uint64_t workspace_bytes = 0;
};

// Where the first heads lie. Forward: queries, keys and values in qkv_BTN, out_BTHD, lse_BHT (fp32,
// natural logarithm of the sums of exp of the scaled scores). Backward: those, dout_BTHD and the
// gradients in dqkv_BTN.
//
// With documents lse is [B*T, H]; in the backward pass keys, values and their gradients, where
// query heads share them, are [B*T, G*D] each; the arrays that DocumentWorkspace
// (core/program/attention_path.h) describes say where documents are.
struct SdpaPointers {
  void *q = nullptr, *k = nullptr, *v = nullptr;
  void *out = nullptr, *lse = nullptr, *dout = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  void *qkv_offsets = nullptr, *out_offsets = nullptr, *lse_offsets = nullptr;
  void *key_offsets = nullptr, *lengths = nullptr;
};

struct CudnnLibrary {
  int version = 0;   // of the library, 91400; 0: not found
  int at_build = 0;  // of the headers that this was built with; 0: built without
  std::string why;   // why it was not found
};
// Loads the library; needs no GPU.
CudnnLibrary FindCudnn();

// A handle of the library for one rank; for one thread at a time.
class SdpaLibrary {
 public:
  // Null where the build or the machine has no cuDNN 9; `why` says which.
  static std::unique_ptr<SdpaLibrary> Open(std::string* why);
  virtual ~SdpaLibrary() = default;

  struct Built {
    std::unique_ptr<SdpaPlan> plan;  // null: none fits
    // What the library's favourite needs, and the least hungry one; 0 where there is none at all.
    uint64_t favourite_bytes = 0, least_bytes = 0;
    std::string why;  // why there is no plan
  };
  // Takes the library's favourite if it fits into `workspace_bytes`; else, unless only the
  // favourite is wanted, the best one that fits.
  virtual Built Build(const SdpaShape& shape, uint64_t workspace_bytes, bool favourite_only) = 0;
  // Throws Error(kRuntime) if the library fails.
  virtual void Run(SdpaPlan& plan, const SdpaPointers& pointers, void* workspace,
                   cudaStream_t stream) = 0;
};

}  // namespace zeroplan
