#include "executor/kernels/cuda/attention/attention_plans.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/log.h"
#include "executor/kernels/cuda/library_check.h"

namespace zeroplan {
namespace {

std::string Text(const SdpaShape& s) {
  return fmt::format(
      "attention {} of batch {}, sequence {}, {} heads of {} channels, {} of keys and values",
      s.backward ? "backward" : "forward", s.dims.B, s.dims.T, s.dims.H, s.dims.D, s.dims.G);
}

KernelDims KernelDimsOf(const AttentionDims& d) { return {d.B, d.T, d.H, d.G, d.D}; }

// The same strides, fewer sequences or heads.
SdpaShape ShapeOf(const SdpaShape& whole, const AttentionPart& part) {
  const auto [B, T, H, G, D] = FirstDims<5>(PartDims(KernelDimsOf(whole.dims), part));
  SdpaShape shape = whole;
  shape.dims = {B, T, H, G, D};
  return shape;
}

}  // namespace

AttentionPlans::AttentionPlans(int device, bool deterministic, bool library)
    : deterministic_(deterministic) {
  CheckRuntimeCall(cudaSetDevice(device), "choosing a GPU");
  compute_capability_ = ComputeCapabilityOf(device);
  CheckRuntimeCall(
      cudaDeviceGetAttribute(&shared_bytes_, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
      "asking for shared memory");
  if (library && !AttentionLibraryOff()) {
    library_ = SdpaLibrary::Open(&no_library_);
  } else {
    no_library_ = "it is switched off";
  }
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
  return {owned.kernels, owned.plan.get(), owned.part};
}

SdpaDocuments AttentionPlans::FindDocuments(const AttentionDims& dims, Dtype dtype, bool backward,
                                            uint64_t workspace_bytes, bool log) {
  SdpaDocuments found;
  const int64_t tokens = dims.B * dims.T;
  found.slots = limits_.most_in_row == 0 ? tokens : std::min(tokens, dims.B * limits_.most_in_row);
  // By whole tiles of the kernels, so that few sizes are met.
  constexpr int64_t kTile = 128;
  const int64_t longest = limits_.longest == 0 ? dims.T : limits_.longest;
  found.longest = std::min(dims.T, (longest + kTile - 1) / kTile * kTile);
  found.at = DocumentWorkspaceOf(KernelDimsOf(dims), found.slots, backward);
  const SdpaShape shape{.dims = dims,
                        .qkv_row = dims.QkvRow(),
                        .out_row = dims.OutRow(),
                        .dtype = dtype,
                        .backward = backward,
                        .documents = found.slots,
                        .longest = found.longest};
  const auto key = std::make_pair(shape, workspace_bytes);
  auto at = document_plans_.find(key);
  if (at == document_plans_.end()) {
    at = document_plans_.emplace(key, BuildDocuments(shape, workspace_bytes, found.at.library, log))
             .first;
  }
  found.kernels = at->second.kernels;
  found.plan = at->second.plan.get();
  return found;
}

AttentionPlans::Owned AttentionPlans::BuildDocuments(const SdpaShape& s, uint64_t workspace_bytes,
                                                     uint64_t library_begin, bool log) {
  const AttentionLaunch launch{.dims = KernelDimsOf(s.dims),
                               .dtype = s.dtype,
                               .backward = s.backward,
                               .compute_capability = compute_capability_,
                               .deterministic = deterministic_,
                               .workspace_bytes = workspace_bytes,
                               .documents = true,
                               .own_documents = own_documents_};
  const std::string why = WhyNotLibrary(launch, AttentionPathOf(launch));
  if (!why.empty()) return {WithoutLibrary(s, launch, why, log), nullptr, {}};
  const uint64_t room = workspace_bytes < library_begin ? 0 : workspace_bytes - library_begin;
  SdpaLibrary::Built built = library_->Build(s, room, false);
  if (built.plan == nullptr) {
    // The other pass may have a plan, and would leave or expect lse in another order.
    ThrowRuntime(
        "{} within documents: cuDNN: {}; use ⟦packing⟧ off or stream", Text(s),
        built.least_bytes > 0
            ? fmt::format("needs {} bytes of workspace, the launch has {}", built.least_bytes, room)
            : built.why);
  }
  return {AttentionKernels::kLibrary, std::move(built.plan), {s.dims.B, s.dims.G}};
}

// What a part needs is about its share; building a plan to know takes seconds, so it is not done
// for every size.
AttentionPlans::Owned AttentionPlans::BuildSmaller(const SdpaShape& shape, uint64_t workspace_bytes,
                                                   const AttentionPart& planned,
                                                   uint64_t favourite_bytes) {
  const auto room = static_cast<double>(workspace_bytes);
  const auto heads_of = [](const AttentionPart& part) {
    return static_cast<double>(part.sequences * part.key_heads);
  };
  double needed_by_one = static_cast<double>(favourite_bytes) / heads_of(planned);
  for (const AttentionPart& part : AttentionParts(KernelDimsOf(shape.dims))) {
    const double heads = heads_of(part);
    const bool last = heads == 1;
    if (heads >= heads_of(planned) || (heads * needed_by_one > room && !last)) continue;
    SdpaLibrary::Built built = library_->Build(ShapeOf(shape, part), workspace_bytes, true);
    if (built.plan != nullptr) {
      return {AttentionKernels::kLibrary, std::move(built.plan), part};
    }
    needed_by_one = static_cast<double>(built.favourite_bytes) / heads;
    if (built.favourite_bytes == 0) break;  // the library takes no such part
  }
  return {};
}

std::string AttentionPlans::WhyNotLibrary(const AttentionLaunch& launch,
                                          const AttentionPath& path) const {
  if (path.library_gap != LibraryGap::kNone) return LibraryGapText(launch, path.library_gap);
  return library_ == nullptr ? "no cuDNN: " + no_library_ : "";
}

AttentionKernels AttentionPlans::WithoutLibrary(const SdpaShape& s, const AttentionLaunch& launch,
                                                const std::string& why_not_library, bool log) {
  const OwnGap gap = OwnGapOf(launch);
  if (gap == OwnGap::kNone) return AttentionKernels::kOwn;
  Log(log, fmt::format("{}{} runs on plain kernels, many times slower ({}; {})", Text(s),
                       launch.documents ? " within documents" : "", why_not_library,
                       OwnGapText(launch, gap)));
  return AttentionKernels::kPlain;
}

void AttentionPlans::Log(bool wanted, const std::string& text) {
  if (!wanted || logged_) return;
  LogWarning("{}", text);
  logged_ = true;
}

AttentionPlans::Owned AttentionPlans::Build(const SdpaShape& s, uint64_t workspace_bytes,
                                            bool log) {
  const AttentionLaunch launch{.dims = KernelDimsOf(s.dims),
                               .dtype = s.dtype,
                               .backward = s.backward,
                               .compute_capability = compute_capability_,
                               .deterministic = s.deterministic,
                               .workspace_bytes = workspace_bytes};
  const AttentionPath path = AttentionPathOf(launch);
  std::string why = WhyNotLibrary(launch, path);
  if (why.empty()) {
    SdpaLibrary::Built built = library_->Build(ShapeOf(s, path.part), workspace_bytes, true);
    if (built.plan != nullptr) {
      return {AttentionKernels::kLibrary, std::move(built.plan), path.part};
    }
    if (built.favourite_bytes > 0) {
      Owned smaller = BuildSmaller(s, workspace_bytes, path.part, built.favourite_bytes);
      if (smaller.plan != nullptr) {
        Log(log, fmt::format("{} runs in parts of {} sequences and {} heads of keys, not of {} and "
                             "{} as planned: cuDNN needs {} bytes for these, the launch has {}",
                             Text(s), smaller.part.sequences, smaller.part.key_heads,
                             path.part.sequences, path.part.key_heads, built.favourite_bytes,
                             workspace_bytes));
        return smaller;
      }
    }
    if (built.favourite_bytes > 0 || path.calls > 1) {
      built = library_->Build(s, workspace_bytes, false);
    }
    if (built.plan != nullptr) {
      return {AttentionKernels::kLibrary, std::move(built.plan), {s.dims.B, s.dims.G}};
    }
    why = "cuDNN: " + built.why;
    if (const uint64_t least = built.least_bytes; least > 0) {
      why = fmt::format("cuDNN needs {} bytes of workspace, the launch has {}", least,
                        workspace_bytes);
      // Determinism may cost more than was planned, and odd lengths too, in versions of the library
      // not met yet. Otherwise the program and the library disagree.
      if (!s.deterministic && s.dims.T % 128 == 0 && OwnGapOf(launch) != OwnGap::kNone) {
        ThrowRuntime(
            "{}: {}; install a cuDNN version that needs less (9.5 or newer), or train with unfused "
            "attention",
            Text(s), why);
      }
    }
  }
  return {WithoutLibrary(s, launch, why, log), nullptr, {}};
}

}  // namespace zeroplan
