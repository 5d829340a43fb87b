#include "executor/kernels/cuda/attention/attention_plans.h"

#include <fmt/format.h>

#include "core/base/log.h"
#include "executor/kernels/cuda/library_check.h"

namespace zeroplan {
namespace {

std::string Text(const SdpaShape& s) {
  return fmt::format(
      "attention {} of batch {}, sequence {}, {} heads of {} channels, {} of keys and values",
      s.backward ? "backward" : "forward", s.dims.B, s.dims.T, s.dims.H, s.dims.D, s.dims.G);
}

}  // namespace

AttentionPlans::AttentionPlans(int device, bool deterministic) : deterministic_(deterministic) {
  CheckRuntimeCall(cudaSetDevice(device), "choosing a GPU");
  library_ = SdpaLibrary::Open(&no_library_);
}

SdpaPlan* AttentionPlans::Find(SdpaShape shape, uint64_t workspace_bytes, bool log) {
  shape.deterministic = shape.backward && deterministic_;
  const auto key = std::make_pair(shape, workspace_bytes);
  auto at = plans_.find(key);
  if (at == plans_.end()) {
    at = plans_.emplace(key, Build(shape, workspace_bytes, log)).first;
  }
  return at->second.get();
}

std::unique_ptr<SdpaPlan> AttentionPlans::Build(const SdpaShape& s, uint64_t workspace_bytes,
                                                bool log) {
  std::string why;
  if (s.dtype != Dtype::kBF16 && s.dtype != Dtype::kF16) {
    why = fmt::format("cuDNN has none for {}", DtypeName(s.dtype));
  } else if (library_ == nullptr) {
    why = "no cuDNN: " + no_library_;
  } else {
    SdpaLibrary::Built built = library_->Build(s, workspace_bytes);
    if (built.plan != nullptr) return std::move(built.plan);
    why = "cuDNN: " + built.why;
    if (const uint64_t least = built.least_workspace_bytes; least > 0) {
      why = fmt::format("cuDNN needs {} bytes of workspace, the launch has {}", least,
                        workspace_bytes);
      // Determinism, and sequences that are no multiple of 128 (cuDNN pads them), cost workspace
      // that no program sets aside. Otherwise the program and the library disagree.
      if (!s.deterministic && s.dims.T % 128 == 0) {
        ThrowRuntime(
            "{}: {}; install a cuDNN version that needs less (9.5 or newer), or train with unfused "
            "attention",
            Text(s), why);
      }
    }
  }
  if (log && !logged_) {
    LogWarning("{} runs on plain kernels, many times slower ({})", Text(s), why);
    logged_ = true;
  }
  return nullptr;
}

}  // namespace zeroplan
