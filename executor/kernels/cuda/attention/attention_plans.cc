#include "executor/kernels/cuda/attention/attention_plans.h"

#include <fmt/format.h>

#include <vector>

#include "core/base/log.h"
#include "executor/kernels/cuda/library_check.h"

namespace zeroplan {
namespace {

std::string Text(const SdpaShape& s) {
  return fmt::format(
      "attention {} of batch {}, sequence {}, {} heads of {} channels, {} of keys and values",
      s.backward ? "backward" : "forward", s.dims.B, s.dims.T, s.dims.H, s.dims.D, s.dims.G);
}

struct Part {
  int64_t sequences, key_heads;
};

// Equal parts of a launch, the largest first: whole sequences, then heads of one.
std::vector<Part> PartsOf(const AttentionDims& dims) {
  std::vector<Part> parts;
  for (int64_t sequences = dims.B; sequences > 0; --sequences) {
    if (dims.B % sequences == 0) parts.push_back({sequences, dims.G});
  }
  for (int64_t heads = dims.G - 1; heads > 0; --heads) {
    if (dims.G % heads == 0) parts.push_back({1, heads});
  }
  return parts;
}

// The same strides, fewer sequences or heads.
SdpaShape ShapeOf(const SdpaShape& whole, const Part& part) {
  SdpaShape shape = whole;
  shape.dims.B = part.sequences;
  shape.dims.G = part.key_heads;
  shape.dims.H = part.key_heads * whole.dims.Sharing();
  return shape;
}

}  // namespace

AttentionPlans::AttentionPlans(int device, bool deterministic) : deterministic_(deterministic) {
  CheckRuntimeCall(cudaSetDevice(device), "choosing a GPU");
  library_ = SdpaLibrary::Open(&no_library_);
}

SdpaParts AttentionPlans::Find(const AttentionDims& dims, Dtype dtype, bool backward,
                               uint64_t workspace_bytes, bool log) {
  const SdpaShape shape{.dims = dims,
                        .qkv_row = dims.QkvRow(),
                        .out_row = dims.OutRow(),
                        .dtype = dtype,
                        .backward = backward,
                        .deterministic = backward && deterministic_};
  const auto key = std::make_pair(shape, workspace_bytes);
  auto at = plans_.find(key);
  if (at == plans_.end()) {
    at = plans_.emplace(key, Build(shape, workspace_bytes, log)).first;
  }
  const Owned& owned = at->second;
  return {owned.plan.get(), owned.sequences, owned.key_heads};
}

// Parts for the library's favourite, which needs `whole.favourite_bytes` for all at once. What a
// part needs is about its share; building a plan to know takes seconds, so it is not done for every
// size.
AttentionPlans::Owned AttentionPlans::BuildParts(const SdpaShape& shape, uint64_t workspace_bytes,
                                                 const SdpaLibrary::Built& whole) {
  const auto all = static_cast<double>(shape.dims.B * shape.dims.G);
  const auto room = static_cast<double>(workspace_bytes);
  double needed_by_one = static_cast<double>(whole.favourite_bytes) / all;
  for (const Part& part : PartsOf(shape.dims)) {
    const auto heads = static_cast<double>(part.sequences * part.key_heads);
    const bool last = heads == 1;
    if (heads == all || (heads * needed_by_one > room && !last)) continue;
    SdpaLibrary::Built built = library_->Build(ShapeOf(shape, part), workspace_bytes, true);
    if (built.plan != nullptr) return {std::move(built.plan), part.sequences, part.key_heads};
    needed_by_one = static_cast<double>(built.favourite_bytes) / heads;
    if (built.favourite_bytes == 0) break;  // the library takes no such part
  }
  return {};
}

AttentionPlans::Owned AttentionPlans::Build(const SdpaShape& s, uint64_t workspace_bytes,
                                            bool log) {
  std::string why;
  if (s.dtype != Dtype::kBF16 && s.dtype != Dtype::kF16) {
    why = fmt::format("cuDNN has none for {}", DtypeName(s.dtype));
  } else if (library_ == nullptr) {
    why = "no cuDNN: " + no_library_;
  } else {
    SdpaLibrary::Built built = library_->Build(s, workspace_bytes, true);
    if (built.plan == nullptr && built.favourite_bytes > 0) {
      Owned parts = BuildParts(s, workspace_bytes, built);
      if (parts.plan != nullptr) return parts;
      built = library_->Build(s, workspace_bytes, false);
    }
    if (built.plan != nullptr) return {std::move(built.plan), s.dims.B, s.dims.G};
    why = "cuDNN: " + built.why;
    if (const uint64_t least = built.least_bytes; least > 0) {
      why = fmt::format("cuDNN needs {} bytes of workspace, the launch has {}", least,
                        workspace_bytes);
      // Determinism costs workspace that no program sets aside, and odd lengths may in versions of
      // the library not met yet. Otherwise the program and the library disagree.
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
  return {};
}

}  // namespace zeroplan
