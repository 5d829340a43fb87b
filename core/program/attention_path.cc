#include "core/program/attention_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/strings.h"
#include "core/base/units.h"

namespace zeroplan {
namespace {

constexpr int kLeastCapability = 80;
constexpr int kDocumentsCapability = 90;
constexpr int64_t kHeadSteps = 8, kDocumentsHeadSteps = 16;

int64_t HeadSteps(const AttentionLaunch& launch) {
  return launch.documents ? kDocumentsHeadSteps : kHeadSteps;
}

bool IsHalf(Dtype dtype) { return dtype == Dtype::kBF16 || dtype == Dtype::kF16; }

// Does not check the workspace: LibraryPart does.
LibraryGap StaticGap(const AttentionLaunch& launch) {
  const auto [B, T, H, G, D] = FirstDims<5>(launch.dims);
  if (AttentionLibraryOff()) return LibraryGap::kOff;
  if (launch.compute_capability < kLeastCapability) return LibraryGap::kGpu;
  if (!IsHalf(launch.dtype)) return LibraryGap::kDtype;
  if (D % HeadSteps(launch) != 0) return LibraryGap::kHeadSteps;
  const bool backward = launch.backward || launch.documents;
  if (D > MostLibraryHead(launch.compute_capability, backward)) return LibraryGap::kHeadSize;
  if (T == 1) return LibraryGap::kLength;
  if (!launch.documents) return LibraryGap::kNone;
  if (!HasLibraryDocuments(launch.compute_capability)) return LibraryGap::kDocumentsGpu;
  if (launch.deterministic) return LibraryGap::kDocumentsOrdered;
  if (launch.own_documents) return LibraryGap::kDocumentsOwn;
  return LibraryGap::kNone;
}

// The size of cuDNN's calls; nothing if the workspace holds not even one head of keys.
std::optional<AttentionPart> LibraryPart(const AttentionLaunch& launch) {
  if (!launch.backward || !launch.deterministic) {
    return AttentionPart{launch.dims[0], launch.dims[3]};
  }
  for (const AttentionPart& part : AttentionParts(launch.dims)) {
    if (FusedAttentionBackwardBytes(PartDims(launch.dims, part), true) <= launch.workspace_bytes) {
      return part;
    }
  }
  return std::nullopt;
}

// Bytes of own kernels' backward pass; 0 if they take no such heads.
uint64_t OwnBackwardBytes(const KernelDims& dims) {
  const int64_t D = dims[4];
  const bool takes = D % kHeadSteps == 0 && D <= kMostOwnHead;
  return takes ? OwnAttentionWorkspaceOf(dims).bytes : 0;
}

}  // namespace

std::vector<AttentionPart> AttentionParts(const KernelDims& dims) {
  const int64_t B = dims[0], G = dims[3];
  std::vector<AttentionPart> parts;
  for (int64_t sequences = B; sequences > 0; --sequences) {
    if (B % sequences == 0) parts.push_back({sequences, G});
  }
  for (int64_t heads = G - 1; heads > 0; --heads) {
    if (G % heads == 0) parts.push_back({1, heads});
  }
  return parts;
}

KernelDims PartDims(const KernelDims& dims, const AttentionPart& part) {
  const auto [B, T, H, G, D] = FirstDims<5>(dims);
  return {part.sequences, T, part.key_heads * (H / G), part.key_heads, D};
}

AttentionPath AttentionPathOf(const AttentionLaunch& launch) {
  LibraryGap gap = StaticGap(launch);
  if (gap == LibraryGap::kNone) {
    const std::optional<AttentionPart> part = LibraryPart(launch);
    if (part) {
      const int64_t B = launch.dims[0], G = launch.dims[3];
      return {.part = *part, .calls = B / part->sequences * (G / part->key_heads)};
    }
    gap = LibraryGap::kWorkspace;
  }
  const OwnGap own = OwnGapOf(launch);
  return {.kernels = own == OwnGap::kNone ? AttentionKernels::kOwn : AttentionKernels::kPlain,
          .library_gap = gap,
          .own_gap = own};
}

bool AttentionLibraryOff() {
  static const bool off = [] {
    const char* const value = std::getenv("ZEROPLAN_ATTENTION");
    if (value == nullptr || *value == '\0') return false;
    if (std::string_view(value) == "own") return true;
    ThrowUsage("ZEROPLAN_ATTENTION: '{}' is not allowed; use own, or leave it out",
               PrintableText(value, 40));
  }();
  return off;
}

OwnGap OwnGapOf(const AttentionLaunch& launch) {
  const int64_t D = launch.dims[4];
  if (launch.compute_capability < kLeastCapability) return OwnGap::kGpu;
  if (!IsHalf(launch.dtype)) return OwnGap::kDtype;
  if (D % kHeadSteps != 0) return OwnGap::kHeadSteps;
  if (D > kMostOwnHead) return OwnGap::kHeadSize;
  const bool needs_workspace = launch.backward && !launch.documents;
  if (needs_workspace && launch.workspace_bytes < OwnBackwardBytes(launch.dims)) {
    return OwnGap::kWorkspace;
  }
  return OwnGap::kNone;
}

int64_t OwnHead(int64_t head_size) {
  ZEROPLAN_CHECK(head_size <= kMostOwnHead, "own kernels take no heads of {}", head_size);
  for (const int64_t padded : {64, 96, 128}) {
    if (head_size <= padded) return padded;
  }
  return kMostOwnHead;
}

OwnAttentionWorkspace OwnAttentionWorkspaceOf(const KernelDims& dims) {
  const auto [B, T, H, G, D] = FirstDims<5>(dims);
  const auto heads = static_cast<uint64_t>(B * H), tokens = static_cast<uint64_t>(T);
  const uint64_t tiles = heads * CeilDiv(tokens, static_cast<uint64_t>(kOwnQueryTile));
  OwnAttentionWorkspace at;
  at.delta = AlignUp(tiles * static_cast<uint64_t>(kOwnQueryTile * OwnHead(D)) * sizeof(float),
                     kWorkspaceAlignment);
  at.turns = at.delta + AlignUp(heads * tokens * sizeof(float), kWorkspaceAlignment);
  const uint64_t turns = heads * CeilDiv(tokens, static_cast<uint64_t>(kOwnTurnRows)) + 1;
  at.bytes = at.turns + AlignUp(turns * sizeof(int32_t), kWorkspaceAlignment);
  return at;
}

bool OwnFasterWithin(int64_t head_size, double visible_keys) {
  const double most = head_size <= 64 ? 150 : head_size <= 128 ? 60 : 0;
  return visible_keys > 0 && visible_keys <= most;
}

int64_t MostLibraryHead(int compute_capability, bool backward) {
  return !backward || compute_capability / 10 == 9 ? 256 : 128;
}

int64_t MostPlainHead(int compute_capability) {
  const int major = compute_capability / 10;
  const bool little = (major == 8 && compute_capability > 80) || major == 12;
  return little ? 64 : kMostPlainHead;
}

bool HasAttentionKernels(int64_t head_size, Dtype dtype, int compute_capability) {
  if (head_size <= MostPlainHead(compute_capability)) return true;
  const AttentionLaunch backward{.dims = {1, 2, 1, 1, head_size},
                                 .dtype = dtype,
                                 .backward = true,
                                 .compute_capability = compute_capability,
                                 .workspace_bytes = UINT64_MAX};
  return AttentionPathOf(backward).fused();  // the forward pass has no more limits
}

uint64_t FusedAttentionBackwardBytes(const KernelDims& dims, bool deterministic) {
  const auto batch = static_cast<uint64_t>(dims[0]), tokens = static_cast<uint64_t>(dims[1]);
  const auto heads = static_cast<uint64_t>(dims[2]), head_size = static_cast<uint64_t>(dims[4]);
  const uint64_t rows = batch * heads * tokens;
  const uint64_t of_queries = deterministic
                                  ? 2 * batch * heads * AlignUp(tokens, 64) * AlignUp(tokens, 128)
                                  : 4 * rows * head_size;
  const uint64_t shared = dims[3] < dims[2] ? 4 * rows * head_size : 0;
  const uint64_t lengths = dims[1] % 128 != 0 ? 8 * batch : 0;
  return of_queries + 4 * rows + 256 + shared + lengths;
}

DocumentWorkspace DocumentWorkspaceOf(const KernelDims& dims, int64_t slots, bool backward) {
  const auto [B, T, H, G, D] = FirstDims<5>(dims);
  const auto rows = static_cast<uint64_t>(B * T), out_row = static_cast<uint64_t>(H * D);
  const auto qkv_row = static_cast<uint64_t>((H + 2 * G) * D);
  const auto n = static_cast<uint64_t>(slots);
  const bool shared = G < H;
  DocumentWorkspace at;
  uint64_t end = 0;
  const auto place = [&](uint64_t bytes) {
    return std::exchange(end, end + AlignUp(bytes, kWorkspaceAlignment));
  };
  const uint64_t offsets = (n + 1) * sizeof(int64_t);
  at.qkv_offsets = place(offsets);
  at.out_offsets = place(offsets);
  at.lse_offsets = place(offsets);
  at.key_offsets = place(offsets);
  at.lengths = place(n * sizeof(int32_t));
  uint64_t library = 2 * AlignUp(128 * (n + 1), kWorkspaceAlignment) + 256;
  if (backward) {
    if (shared) {
      const uint64_t keys = 2 * rows * static_cast<uint64_t>(G * D);
      at.keys = place(keys);
      at.values = place(keys);
      at.dk = place(keys);
      at.dv = place(keys);
    }
    library = 4 * ((rows - 1) * qkv_row + out_row) + 4 * rows * static_cast<uint64_t>(H) +
              (shared ? 8 * rows * out_row : 0) + 448 * AlignUp(n + 1, 2) + 256;
  }
  at.library = end;
  at.bytes = end + library;
  return at;
}

bool HasLibraryDocuments(int compute_capability) {
  return compute_capability >= kDocumentsCapability && !AttentionLibraryOff();
}

uint64_t AttentionDocumentsBytes(const KernelDims& dims, bool backward, bool library) {
  const uint64_t own = backward ? OwnBackwardBytes(dims) : 0;
  if (!library) return own;
  return std::max(own, DocumentWorkspaceOf(dims, dims[0] * dims[1], backward).bytes);
}

uint64_t AttentionWorkspaceBytes(const KernelDims& dims, bool deterministic) {
  const uint64_t usual = std::max(FusedAttentionBackwardBytes(dims, false), OwnBackwardBytes(dims));
  if (!deterministic) return usual;
  const uint64_t least = FusedAttentionBackwardBytes(PartDims(dims, {1, 1}), true);
  return least <= kMostOrderedBytes ? std::max(usual, least) : usual;
}

std::string LibraryGapText(const AttentionLaunch& launch, LibraryGap gap) {
  const int64_t T = launch.dims[1], D = launch.dims[4];
  const int capability = launch.compute_capability;
  // No default: a new reason has to say what it is.
  switch (gap) {
    case LibraryGap::kNone:
      break;
    case LibraryGap::kOff:
      return "ZEROPLAN_ATTENTION is own";
    case LibraryGap::kGpu:
      return fmt::format("cuDNN needs compute capability {}.{}, the GPU has {}.{}",
                         kLeastCapability / 10, kLeastCapability % 10, capability / 10,
                         capability % 10);
    case LibraryGap::kDtype:
      return fmt::format("cuDNN has none for {}", DtypeName(launch.dtype));
    case LibraryGap::kHeadSteps:
      return fmt::format("cuDNN takes heads in multiples of {} channels{}, these have {}",
                         HeadSteps(launch), launch.documents ? " with packed documents" : "", D);
    case LibraryGap::kHeadSize:
      return fmt::format("cuDNN takes heads of at most {} channels here, these have {}",
                         MostLibraryHead(capability, launch.backward || launch.documents), D);
    case LibraryGap::kLength:
      return "cuDNN takes no sequence of one token";
    case LibraryGap::kWorkspace:
      return fmt::format(
          "cuDNN's deterministic kernel writes the gradients of the scores, and those of one head "
          "at {} tokens are more than the workspace",
          T);
    case LibraryGap::kDocumentsGpu:
      return fmt::format(
          "cuDNN takes packed documents from compute capability {}.{} on, the GPU has {}.{}",
          kDocumentsCapability / 10, kDocumentsCapability % 10, capability / 10, capability % 10);
    case LibraryGap::kDocumentsOrdered:
      return "cuDNN's deterministic kernel takes many gigabytes for packed documents";
    case LibraryGap::kDocumentsOwn:
      return "the program has no workspace for cuDNN's kernels within documents";
  }
  ZEROPLAN_CHECK(false, "cuDNN's kernels lack nothing here");
  return "";
}

std::string OwnGapText(const AttentionLaunch& launch, OwnGap gap) {
  const int capability = launch.compute_capability;
  // No default: a new reason has to say what it is.
  switch (gap) {
    case OwnGap::kNone:
      break;
    case OwnGap::kGpu:
      return fmt::format("fused kernels need compute capability {}.{}, the GPU has {}.{}",
                         kLeastCapability / 10, kLeastCapability % 10, capability / 10,
                         capability % 10);
    case OwnGap::kDtype:
      return fmt::format("fused kernels take bf16 and fp16, not {}", DtypeName(launch.dtype));
    case OwnGap::kHeadSteps:
      return fmt::format("fused kernels take heads in multiples of {} channels, these have {}",
                         kHeadSteps, launch.dims[4]);
    case OwnGap::kHeadSize:
      return fmt::format("fused kernels take heads of at most {} channels, these have {}",
                         kMostOwnHead, launch.dims[4]);
    case OwnGap::kWorkspace:
      return fmt::format("fused kernels need {} bytes of workspace, the launch has {}",
                         OwnBackwardBytes(launch.dims), launch.workspace_bytes);
  }
  ZEROPLAN_CHECK(false, "own kernels lack nothing here");
  return "";
}

}  // namespace zeroplan
