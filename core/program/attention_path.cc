#include "core/program/attention_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/base/units.h"

namespace zeroplan {
namespace {

constexpr int kLeastCapability = 80;
constexpr int kDocumentsCapability = 90;
constexpr int64_t kHeadSteps = 8, kDocumentsHeadSteps = 16;

int64_t HeadSteps(const AttentionLaunch& launch) {
  return launch.documents ? kDocumentsHeadSteps : kHeadSteps;
}

PlainReason WhyPlain(const AttentionLaunch& launch) {
  const auto [B, T, H, G, D] = FirstDims<5>(launch.dims);
  if (launch.compute_capability < kLeastCapability) return PlainReason::kGpu;
  if (launch.dtype != Dtype::kBF16 && launch.dtype != Dtype::kF16) return PlainReason::kDtype;
  if (D % HeadSteps(launch) != 0) return PlainReason::kHeadSteps;
  const bool backward = launch.backward || launch.documents;
  if (D > MostFusedHead(launch.compute_capability, backward)) return PlainReason::kHeadSize;
  if (T == 1) return PlainReason::kLength;
  if (!launch.documents) return PlainReason::kNone;
  if (launch.compute_capability < kDocumentsCapability) return PlainReason::kDocumentsGpu;
  if (launch.deterministic) return PlainReason::kDocumentsOrdered;
  return PlainReason::kNone;
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
  const KernelDims& dims = launch.dims;
  const int64_t B = dims[0], G = dims[3];
  if (const PlainReason why = WhyPlain(launch); why != PlainReason::kNone) return {.plain = why};
  if (!launch.backward || !launch.deterministic) return {.part = {B, G}, .calls = 1};
  for (const AttentionPart& part : AttentionParts(dims)) {
    if (FusedAttentionBackwardBytes(PartDims(dims, part), true) > launch.workspace_bytes) {
      continue;
    }
    return {.part = part, .calls = B / part.sequences * (G / part.key_heads)};
  }
  return {.plain = PlainReason::kWorkspace};
}

int64_t MostFusedHead(int compute_capability, bool backward) {
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
                                 .compute_capability = compute_capability};
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

uint64_t AttentionDocumentsBytes(const KernelDims& dims, bool backward) {
  return DocumentWorkspaceOf(dims, dims[0] * dims[1], backward).bytes;
}

uint64_t AttentionWorkspaceBytes(const KernelDims& dims, bool deterministic) {
  const uint64_t usual = FusedAttentionBackwardBytes(dims, false);
  if (!deterministic) return usual;
  const uint64_t least = FusedAttentionBackwardBytes(PartDims(dims, {1, 1}), true);
  return least <= kMostOrderedBytes ? std::max(usual, least) : usual;
}

std::string PlainReasonText(const AttentionLaunch& launch, PlainReason reason) {
  const int64_t T = launch.dims[1], D = launch.dims[4];
  const int capability = launch.compute_capability;
  // No default: a new reason has to say what it is.
  switch (reason) {
    case PlainReason::kNone:
      break;
    case PlainReason::kGpu:
      return fmt::format("cuDNN needs compute capability {}.{}, the GPU has {}.{}",
                         kLeastCapability / 10, kLeastCapability % 10, capability / 10,
                         capability % 10);
    case PlainReason::kDtype:
      return fmt::format("cuDNN has none for {}", DtypeName(launch.dtype));
    case PlainReason::kHeadSteps:
      return fmt::format("cuDNN takes heads in multiples of {} channels{}, these have {}",
                         HeadSteps(launch), launch.documents ? " with packed documents" : "", D);
    case PlainReason::kHeadSize:
      return fmt::format("cuDNN takes heads of at most {} channels here, these have {}",
                         MostFusedHead(capability, launch.backward || launch.documents), D);
    case PlainReason::kLength:
      return "cuDNN takes no sequence of one token";
    case PlainReason::kWorkspace:
      return fmt::format(
          "cuDNN's deterministic kernel writes the gradients of the scores, and those of one head "
          "at {} tokens are more than the workspace",
          T);
    case PlainReason::kDocumentsGpu:
      return fmt::format(
          "cuDNN takes packed documents from compute capability {}.{} on, the GPU has {}.{}",
          kDocumentsCapability / 10, kDocumentsCapability % 10, capability / 10, capability % 10);
    case PlainReason::kDocumentsOrdered:
      return "cuDNN's deterministic kernel takes many gigabytes for packed documents";
  }
  ZEROPLAN_CHECK(false, "no plain kernels here");
  return "";
}

}  // namespace zeroplan
