// Fused attention of one rank on one GPU: cuDNN's plans, each built once. For one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "core/program/attention_path.h"
#include "executor/kernels/cuda/attention/cudnn_sdpa.h"

namespace zeroplan {

// How a launch is put to the library: in parts, one after the other, each by `plan`. Null: plain
// kernels must do.
struct SdpaParts {
  SdpaPlan* plan = nullptr;
  AttentionPart part;
};

class AttentionPlans {
 public:
  // `deterministic`: the backward pass gives equal bits for equal inputs. Makes `device` the
  // thread's current one.
  explicit AttentionPlans(int device, bool deterministic = false);

  // The plan to launch with, in the parts that AttentionPathOf says; none where that says plain
  // kernels. Where there is no cuDNN, it takes no such launch, or takes it in smaller parts only,
  // the launch runs so; the first time, that is logged with its reason if `log` is set. Throws
  // Error(kRuntime) naming both sizes if the workspace is too small for a launch that is not
  // deterministic.
  SdpaParts Find(const AttentionDims& dims, Dtype dtype, bool backward, uint64_t workspace_bytes,
                 bool log);

  // REQUIRES: Find returned a plan.
  SdpaLibrary& library() { return *library_; }
  bool deterministic() const { return deterministic_; }

 private:
  struct Owned {
    std::unique_ptr<SdpaPlan> plan;
    AttentionPart part;
  };

  Owned Build(const SdpaShape& shape, uint64_t workspace_bytes, bool log);
  // In parts smaller than `planned`, of which the library's favourite needs `favourite_bytes`.
  Owned BuildSmaller(const SdpaShape& shape, uint64_t workspace_bytes, const AttentionPart& planned,
                     uint64_t favourite_bytes);
  void Log(bool wanted, const std::string& text);

  bool deterministic_;
  int compute_capability_ = 0;
  std::string no_library_;  // why there is none
  std::unique_ptr<SdpaLibrary> library_;
  bool logged_ = false;
  // By shape and workspace. Destroyed before the library.
  std::map<std::pair<SdpaShape, uint64_t>, Owned> plans_;
};

}  // namespace zeroplan
