// cuDNN's causal attention (SDPA), behind plain types: only cudnn_sdpa.cc includes cuDNN. The
// library is loaded at run time, so that a program runs without it, with slower attention.
//
// Legend: B micro-batch, T sequence, H heads of queries, G of keys and values, D head size, N =
// (H+2G)*D.
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
          out_row = 0;  // elements from a token to the next: more than dims' if this is a part
  Dtype dtype = Dtype::kBF16;  // dtype of all tensors but lse
  bool backward = false;
  bool deterministic = false;  // backward: equal inputs give equal bits; needs more workspace
  // Above 0: the B*T tokens hold up to this many documents, each of at most `longest`, instead of B
  // sequences of T tokens. Not deterministic.
  int64_t documents = 0, longest = 0;

  auto operator<=>(const SdpaShape&) const = default;
};

// One built plan; its launches need exactly `workspace_bytes`.
class SdpaPlan {
 public:
  virtual ~SdpaPlan() = default;
  uint64_t workspace_bytes = 0;
};

// Addresses of the first heads. Forward: queries, keys and values in qkv_BTN, out_BTHD, lse_BHT
// (fp32, natural logarithm of the sums of exp of the scaled scores). Backward: the same, dout_BTHD
// and the gradients in dqkv_BTN.
//
// Documents change three things: lse is [B*T, H]; in the backward pass keys, values and their
// gradients are [B*T, G*D] each if query heads share them; the arrays described by
// DocumentWorkspace (core/program/attention_path.h) hold the places of documents.
struct SdpaPointers {
  void *q = nullptr, *k = nullptr, *v = nullptr;
  void *out = nullptr, *lse = nullptr, *dout = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  void *qkv_offsets = nullptr, *out_offsets = nullptr, *lse_offsets = nullptr;
  void *key_offsets = nullptr, *lengths = nullptr;
};

struct CudnnLibrary {
  int version = 0;   // the library's, 91400; 0: not found
  int at_build = 0;  // version of the headers of this build; 0: built without
  std::string why;   // the reason why it was not found
};
// Loads the library; needs no GPU.
CudnnLibrary FindCudnn();

// A handle of the library for one rank; for one thread at a time.
class SdpaLibrary {
 public:
  // Null if the build or the machine lacks cuDNN 9; `why` names which.
  static std::unique_ptr<SdpaLibrary> Open(std::string* why);
  virtual ~SdpaLibrary() = default;

  struct Built {
    std::unique_ptr<SdpaPlan> plan;  // null: none fits
    // Workspace of the library's favourite plan, and the least of any plan; 0 if there is no plan.
    uint64_t favourite_bytes = 0, least_bytes = 0;
    std::string why;  // the reason why there is no plan
  };
  // Builds the library's favourite if it fits into `workspace_bytes`; else, unless
  // `favourite_only`, the best plan that fits.
  virtual Built Build(const SdpaShape& shape, uint64_t workspace_bytes, bool favourite_only) = 0;
  // Throws Error(kRuntime) if the library fails.
  virtual void Run(SdpaPlan& plan, const SdpaPointers& pointers, void* workspace,
                   cudaStream_t stream) = 0;
};

}  // namespace zeroplan
