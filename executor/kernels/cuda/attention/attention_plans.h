// Fused attention of one rank on one GPU: cuDNN's plans, each built once. For one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "executor/kernels/cuda/attention/cudnn_sdpa.h"

namespace zeroplan {

// How a launch is put to the library: in parts of so many sequences and heads of keys (with the
// query heads that share them), one after the other, each by `plan`. Null: plain kernels must do.
struct SdpaParts {
  SdpaPlan* plan = nullptr;
  int64_t sequences = 0, key_heads = 0;
};

class AttentionPlans {
 public:
  // `deterministic`: the backward pass gives equal bits for equal inputs. cuDNN then needs
  // workspace in proportion to H*T*T of a part. Makes `device` the thread's current one.
  explicit AttentionPlans(int device, bool deterministic = false);

  // The plan to launch with, none where plain kernels must do: no cuDNN, fp32, or a shape that it
  // does not take. The first time, that is logged with its reason if `log` is set. Where the
  // library's favourite needs more workspace than the launch has (determinism), the launch is cut
  // into parts that fit. Throws Error(kRuntime) naming both sizes if only the workspace is too
  // small.
  SdpaParts Find(const AttentionDims& dims, Dtype dtype, bool backward, uint64_t workspace_bytes,
                 bool log);

  // REQUIRES: Find returned a plan.
  SdpaLibrary& library() { return *library_; }
  bool deterministic() const { return deterministic_; }

 private:
  struct Owned {
    std::unique_ptr<SdpaPlan> plan;
    int64_t sequences = 0, key_heads = 0;
  };

  Owned Build(const SdpaShape& shape, uint64_t workspace_bytes, bool log);
  Owned BuildParts(const SdpaShape& shape, uint64_t workspace_bytes,
                   const SdpaLibrary::Built& whole);

  bool deterministic_;
  std::string no_library_;  // why there is none
  std::unique_ptr<SdpaLibrary> library_;
  bool logged_ = false;
  // By shape and workspace. Destroyed before the library.
  std::map<std::pair<SdpaShape, uint64_t>, Owned> plans_;
};

}  // namespace zeroplan
