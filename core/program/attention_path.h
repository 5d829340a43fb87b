// What a GPU runs for a launch of kAttentionForward or kAttentionBackward: cuDNN's fused kernels,
// for all of it or in parts, or our own plain ones, many times slower. The executor decides by
// this, the cost model times it, and plans say it.
//
// Legend: B micro-batch, T sequence, H heads of queries, G of keys and values, D head size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/program/kernel.h"

namespace zeroplan {

struct AttentionLaunch {
  KernelDims dims{};           // B, T, H, G, D
  Dtype dtype = Dtype::kBF16;  // of all tensors but lse
  bool backward = false;
  int compute_capability = 0;  // of the GPU, as 90 for 9.0
  // The backward pass gives the same bits at every run, in this workspace.
  bool deterministic = false;
  uint64_t workspace_bytes = 0;
  // Attention stays within documents (starts_BT of kernel_rows.inc). Then one program's forward and
  // backward pass are both fused or both plain, for they keep lse in different orders: the pass
  // does not matter, and `deterministic` is that of the program.
  bool documents = false;
};

// Why cuDNN's kernels cannot have a launch.
enum class PlainReason : uint8_t {
  kNone,              // they can
  kGpu,               // below compute capability 8.0
  kDtype,             // neither bf16 nor fp16
  kHeadSteps,         // D is no multiple of 8, with documents of 16
  kHeadSize,          // D is past MostFusedHead
  kLength,            // one token
  kWorkspace,         // deterministic, and the workspace does not hold one head of keys
  kDocumentsGpu,      // with documents: below compute capability 9.0
  kDocumentsOrdered,  // with documents: deterministic
};

// What one call takes: how many sequences and heads of keys, with the query heads that share these.
struct AttentionPart {
  int64_t sequences = 0, key_heads = 0;
  bool operator==(const AttentionPart&) const = default;
};

// Equal parts of a launch, the largest first: whole sequences, then heads of one.
std::vector<AttentionPart> AttentionParts(const KernelDims& dims);
// The dims of one call.
KernelDims PartDims(const KernelDims& dims, const AttentionPart& part);

struct AttentionPath {
  PlainReason plain = PlainReason::kNone;
  AttentionPart part;  // fused: of each call; all of a launch's, unless it is deterministic
  int64_t calls = 0;   // fused: one after the other

  bool fused() const { return plain == PlainReason::kNone; }
};

// Sources: the support surface of NVIDIA's cudnn-frontend 1.32 (scaled dot product attention) for
// cuDNN 9.10 and newer, and FusedAttentionBackwardBytes. Of GPUs Hopper alone was tried.
AttentionPath AttentionPathOf(const AttentionLaunch& launch);

// Where a fused launch with documents has what in its workspace, in bytes; each part at a multiple
// of 256. cuDNN gets documents as the sequences of a ragged batch: `slots` of them, of which those
// beyond the documents that there are have length 0.
struct DocumentWorkspace {
  // Offsets, in bytes from the workspace's begin. [slots + 1] int64: of each document's first
  // element in rows of qkv, of out and of lse_MH, and of `keys`; the last is their end.
  uint64_t qkv_offsets = 0, out_offsets = 0, lse_offsets = 0, key_offsets = 0;
  uint64_t lengths = 0;  // [slots] int32
  // Backward, where heads of keys are shared: these and their gradients in 16 bits, [M][G*D] each,
  // copied from qkv and to dqkv. cuDNN's sums of every query head are as far apart as rows of keys
  // are, so that among rows of qkv they would take several times the memory.
  uint64_t keys = 0, values = 0, dk = 0, dv = 0;
  uint64_t library = 0;  // offset of cuDNN's own, the rest
  uint64_t bytes = 0;    // all
};

// What cuDNN takes of it was measured at 30 launches on an H200 with cuDNN 9.14, to the byte: dQ in
// fp32 and as far apart as rows of qkv, row sums of dout*out in fp32, where heads are shared dK and
// dV of every query head in fp32, and a few hundred bytes a slot.
DocumentWorkspace DocumentWorkspaceOf(const KernelDims& dims, int64_t slots, bool backward);
// What a program sets aside: enough for documents of one token each.
uint64_t AttentionDocumentsBytes(const KernelDims& dims, bool backward);

// Head size that cuDNN takes at most: 256 on Hopper and in the forward pass, else 128. (From 9.23
// on it takes 256 backward on B200 too, which is not used.)
int64_t MostFusedHead(int compute_capability, bool backward);
// The largest head of our plain kernels, which have no other limit: kMostPlainHead, but on GPUs
// whose blocks have no more than 99 KiB of shared memory (8.6, 8.9, 12.0; CUDA programming guide,
// technical specifications) 64, since tiles of larger heads take up to 150 KiB in the backward
// pass.
int64_t MostPlainHead(int compute_capability);
inline constexpr int64_t kMostPlainHead = 256;
// Whether both passes have kernels of either kind for such heads. Else a program has to keep the
// scores in memory (LowerOptions::flash_attention).
bool HasAttentionKernels(int64_t head_size, Dtype dtype, int compute_capability);

// Workspace that cuDNN's backward pass takes. Measured for its favourite plan on Hopper at 31
// shapes with cuDNN 9.14, 9 of them deterministic, to the byte: row sums of dout*out in fp32 and a
// header; dQ in fp32, or, deterministic, the gradients of the scores in 16 bits, T rounded up to 64
// rows and 128 columns. Where heads of keys are shared, dK and dV of every query head in 16 bits,
// which a second kernel adds up. Where T is no multiple of 128, two lengths of 4 bytes a sequence,
// which versions up to 9.15 are told.
uint64_t FusedAttentionBackwardBytes(const KernelDims& dims, bool deterministic);

// What a program sets aside for a launch of the backward pass: FusedAttentionBackwardBytes of all
// of it; where it is deterministic, at least those of one head of keys, unless that is more than
// kMostOrderedBytes.
uint64_t AttentionWorkspaceBytes(const KernelDims& dims, bool deterministic);
inline constexpr uint64_t kMostOrderedBytes = uint64_t{4} << 30;

// "cuDNN has none for fp32". REQUIRES: not fused.
std::string PlainReasonText(const AttentionLaunch& launch, PlainReason reason);

}  // namespace zeroplan
