// Fused attention of one rank on one GPU: cuDNN's plans, each built once. For one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "core/program/attention_path.h"
#include "core/settings/packing.h"
#include "executor/kernels/attention_dims.h"
#include "executor/kernels/cuda/attention/cudnn_sdpa.h"

namespace zeroplan {

// The library calls of a launch: in parts, one after the other, each by `plan`. Null: use plain
// kernels.
struct SdpaParts {
  SdpaPlan* plan = nullptr;
  AttentionPart part;
};

// The same for a launch within documents: one part, with room for `slots` documents, each of at
// most `longest` tokens, in a workspace with that layout.
struct SdpaDocuments {
  SdpaPlan* plan = nullptr;
  int64_t slots = 0, longest = 0;
  DocumentWorkspace at;
};

class AttentionPlans {
 public:
  // `deterministic`: the backward pass gives equal bits for equal inputs. Makes `device` the
  // thread's current one.
  explicit AttentionPlans(int device, bool deterministic = false);

  // The plan to launch with, in the parts of AttentionPathOf; none if that chooses plain kernels.
  // If there is no cuDNN, or it does not support the launch, or only in smaller parts, the launch
  // runs so; the first time logs that with its reason if `log` is set. Throws Error(kRuntime)
  // naming both sizes if the workspace is too small for a launch that is not deterministic.
  SdpaParts Find(const AttentionDims& dims, Dtype dtype, bool backward, uint64_t workspace_bytes,
                 bool log);

  // The same for a launch whose batch gives documents' starts, within the limits of LimitDocuments.
  // Throws Error(kRuntime) if the library refuses a launch that AttentionPathOf lists as supported.
  SdpaDocuments FindDocuments(const AttentionDims& dims, Dtype dtype, bool backward,
                              uint64_t workspace_bytes, bool log);
  // Sets the limits of documents, because kernels are slower the more documents there might be in a
  // batch, and the longer they might be. Default: each token one, and one as long as its row.
  void LimitDocuments(const DocumentLimits& limits) { limits_ = limits; }

  // REQUIRES: Find or FindDocuments returned a plan.
  SdpaLibrary& library() { return *library_; }
  bool deterministic() const { return deterministic_; }

 private:
  struct Owned {
    std::unique_ptr<SdpaPlan> plan;
    AttentionPart part;
  };

  Owned Build(const SdpaShape& shape, uint64_t workspace_bytes, bool log);
  // In parts smaller than `planned`, whose favourite plan needs `favourite_bytes`.
  Owned BuildSmaller(const SdpaShape& shape, uint64_t workspace_bytes, const AttentionPart& planned,
                     uint64_t favourite_bytes);
  std::unique_ptr<SdpaPlan> BuildDocuments(const SdpaShape& shape, uint64_t workspace_bytes,
                                           uint64_t library_begin, bool log);
  // The reason why `launch` runs on plain kernels, as far as known before building a plan; "":
  // none.
  std::string WhyPlain(const AttentionLaunch& launch, const AttentionPath& path) const;
  void Log(bool wanted, const std::string& text);

  bool deterministic_;
  DocumentLimits limits_;
  int compute_capability_ = 0;
  std::string no_library_;  // the reason why there is no library
  std::unique_ptr<SdpaLibrary> library_;
  bool logged_ = false;
  // Plans by shape and workspace. Destroyed before the library.
  std::map<std::pair<SdpaShape, uint64_t>, Owned> plans_;
  std::map<std::pair<SdpaShape, uint64_t>, std::unique_ptr<SdpaPlan>> document_plans_;
};

}  // namespace zeroplan
