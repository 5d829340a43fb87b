// Fused attention of one rank on one GPU: which kernels each launch runs on, and cuDNN's plans,
// each built once. For one thread at a time.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "core/program/attention_path.h"
#include "core/settings/packing.h"
#include "executor/kernels/attention_dims.h"
#include "executor/kernels/cuda/attention/cudnn_sdpa.h"

namespace zeroplan {

// The kernels of a launch. kLibrary: calls in parts, one after the other, each by `plan`, which is
// null otherwise.
struct SdpaParts {
  AttentionKernels kernels = AttentionKernels::kPlain;
  SdpaPlan* plan = nullptr;
  AttentionPart part;
};

// The same for a launch within documents: one part, with room for `slots` documents, each of at
// most `longest` tokens, in a workspace with that layout.
struct SdpaDocuments {
  AttentionKernels kernels = AttentionKernels::kPlain;
  SdpaPlan* plan = nullptr;
  int64_t slots = 0, longest = 0;
  DocumentWorkspace at;
};

class AttentionPlans {
 public:
  // `deterministic`: the backward pass gives equal bits for equal inputs. `library` false: as
  // without cuDNN. Makes `device` the thread's current one.
  explicit AttentionPlans(int device, bool deterministic = false, bool library = true);

  // The kernels of AttentionPathOf, and cuDNN's plan in that path's parts. If there is no cuDNN, or
  // it does not support the launch, own kernels run it, or plain ones if those do not either; if it
  // supports the launch in smaller parts only, it runs in these. The first time logs that with its
  // reason if `log` is set. Throws Error(kRuntime) naming both sizes if the workspace is too small
  // for a launch that is not deterministic.
  SdpaParts Find(const AttentionDims& dims, Dtype dtype, bool backward, uint64_t workspace_bytes,
                 bool log);

  // The same for a launch whose batch gives documents' starts, within the limits of LimitDocuments.
  // Throws Error(kRuntime) if the library refuses a launch that AttentionPathOf lists as supported.
  SdpaDocuments FindDocuments(const AttentionDims& dims, Dtype dtype, bool backward,
                              uint64_t workspace_bytes, bool log);
  // Sets the limits of documents, because kernels are slower the more documents there might be in a
  // batch, and the longer they might be. Default: each token one, and one as long as its row.
  void LimitDocuments(const DocumentLimits& limits) { limits_ = limits; }
  // Documents run on own kernels (Program::own_documents). Call before their first launch.
  void UseOwnDocuments() { own_documents_ = true; }

  // REQUIRES: Find or FindDocuments returned a plan.
  SdpaLibrary& library() { return *library_; }
  bool deterministic() const { return deterministic_; }
  // Shared memory that a block may have on this GPU, in bytes.
  int shared_bytes() const { return shared_bytes_; }
  // Takes less, as on a smaller GPU.
  void LimitSharedBytes(int bytes) { shared_bytes_ = std::min(shared_bytes_, bytes); }

 private:
  struct Owned {
    AttentionKernels kernels = AttentionKernels::kLibrary;
    std::unique_ptr<SdpaPlan> plan;
    AttentionPart part;
  };

  Owned Build(const SdpaShape& shape, uint64_t workspace_bytes, bool log);
  // In parts smaller than `planned`, whose favourite plan needs `favourite_bytes`.
  Owned BuildSmaller(const SdpaShape& shape, uint64_t workspace_bytes, const AttentionPart& planned,
                     uint64_t favourite_bytes);
  Owned BuildDocuments(const SdpaShape& shape, uint64_t workspace_bytes, uint64_t library_begin,
                       bool log);
  // The reason why cuDNN does not run `launch`, as far as known before building a plan; "": none.
  std::string WhyNotLibrary(const AttentionLaunch& launch, const AttentionPath& path) const;
  // Own kernels if they take the launch, else plain ones, logged with `why_not_library`.
  AttentionKernels WithoutLibrary(const SdpaShape& shape, const AttentionLaunch& launch,
                                  const std::string& why_not_library, bool log);
  void Log(bool wanted, const std::string& text);

  bool deterministic_, own_documents_ = false;
  DocumentLimits limits_;
  int compute_capability_ = 0, shared_bytes_ = 0;
  std::string no_library_;  // the reason why there is no library
  std::unique_ptr<SdpaLibrary> library_;
  bool logged_ = false;
  // Plans by shape and workspace. Destroyed before the library.
  std::map<std::pair<SdpaShape, uint64_t>, Owned> plans_;
  std::map<std::pair<SdpaShape, uint64_t>, Owned> document_plans_;
};

}  // namespace zeroplan
