// Fused attention of one rank on one GPU: cuDNN's plans, each built once. For one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "executor/kernels/cuda/attention/cudnn_sdpa.h"

namespace zeroplan {

class AttentionPlans {
 public:
  // `deterministic`: the backward pass gives equal bits for equal inputs. cuDNN then needs
  // workspace in proportion to B*H*T*T; where the launch has less, plain kernels take over. Makes
  // `device` the thread's current one.
  explicit AttentionPlans(int device, bool deterministic = false);

  // The plan to launch with, or null where plain kernels must do: no cuDNN, fp32, or a shape that
  // it does not take. The first time, that is logged with its reason if `log` is set. Throws
  // Error(kRuntime) naming both sizes if only the workspace is too small.
  SdpaPlan* Find(SdpaShape shape, uint64_t workspace_bytes, bool log);

  // REQUIRES: Find returned a plan.
  SdpaLibrary& library() { return *library_; }
  bool deterministic() const { return deterministic_; }

 private:
  std::unique_ptr<SdpaPlan> Build(const SdpaShape& shape, uint64_t workspace_bytes, bool log);

  bool deterministic_;
  std::string no_library_;  // why there is none
  std::unique_ptr<SdpaLibrary> library_;
  bool logged_ = false;
  // By shape and workspace; null: plain kernels. Destroyed before the library.
  std::map<std::pair<SdpaShape, uint64_t>, std::unique_ptr<SdpaPlan>> plans_;
};

}  // namespace zeroplan
