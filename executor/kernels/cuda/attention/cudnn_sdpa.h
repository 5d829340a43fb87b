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
  Dtype dtype = Dtype::kBF16;  // of all tensors but lse
  bool backward = false;
  bool deterministic = false;  // backward: equal inputs give equal bits; needs more workspace

  auto operator<=>(const SdpaShape&) const = default;
};

// One built plan; its launches need exactly `workspace_bytes`.
class SdpaPlan {
 public:
  virtual ~SdpaPlan() = default;
  uint64_t workspace_bytes = 0;
};

// Forward: qkv_BTN, out_BTHD, lse_BHT (fp32, natural logarithm of the sums of exp of the scaled
// scores). Backward: those, dout_BTHD and dqkv_BTN.
struct SdpaPointers {
  void* qkv = nullptr;
  void* out = nullptr;
  void* lse = nullptr;
  void* dout = nullptr;
  void* dqkv = nullptr;
};

// A handle of the library for one rank; for one thread at a time.
class SdpaLibrary {
 public:
  // Null where the build or the machine has no cuDNN 9; `why` says which.
  static std::unique_ptr<SdpaLibrary> Open(std::string* why);
  virtual ~SdpaLibrary() = default;

  struct Built {
    std::unique_ptr<SdpaPlan> plan;  // null: none fits
    // Without a plan: what the least hungry one would need; 0 where the library has none at all.
    uint64_t least_workspace_bytes = 0;
    std::string why;  // why there is none
  };
  // The library's favourite among the plans that fit into `workspace_bytes`.
  virtual Built Build(const SdpaShape& shape, uint64_t workspace_bytes) = 0;
  // Throws Error(kRuntime) if the library fails.
  virtual void Run(SdpaPlan& plan, const SdpaPointers& pointers, void* workspace,
                   cudaStream_t stream) = 0;
};

}  // namespace zeroplan
