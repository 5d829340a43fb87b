// The kernels that a GPU runs for a launch of kAttentionForward or kAttentionBackward: cuDNN's
// fused kernels, for the whole launch or in parts; else our own fused kernels, in the manner of
// FlashAttention 2 (Dao 2023); else our plain kernels, many times slower. The executor chooses by
// this, the cost model times it, and plans report it.
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
  Dtype dtype = Dtype::kBF16;  // dtype of all tensors but lse
  bool backward = false;
  int compute_capability = 0;  // the GPU's, as 90 for 9.0
  // The backward pass must give the same bits in every run, within this workspace.
  bool deterministic = false;
  uint64_t workspace_bytes = 0;
  // Attention stays within documents (starts_BT of kernel_rows.inc). Then cuDNN runs both passes of
  // a program or neither, because it orders lse differently there: `backward` and `workspace_bytes`
  // do not matter, and `deterministic` is the program's.
  bool documents = false;
  // Program::own_documents: a workspace that does not hold cuDNN's kernels.
  bool own_documents = false;
};

// kLibrary: cuDNN's fused kernels. kOwn: our fused kernels. kPlain: our kernels without tensor
// cores. Own and plain kernels have the same order of lse, [B,H,T]; so has cuDNN without documents.
enum class AttentionKernels : uint8_t { kLibrary, kOwn, kPlain };

// The reason why cuDNN's kernels do not support a launch.
enum class LibraryGap : uint8_t {
  kNone,              // they support it
  kOff,               // AttentionLibraryOff
  kGpu,               // below compute capability 8.0
  kDtype,             // neither bf16 nor fp16
  kHeadSteps,         // D is no multiple of 8 (16 with documents)
  kHeadSize,          // D is past MostLibraryHead
  kLength,            // one token
  kWorkspace,         // deterministic, and the workspace does not hold one head of keys
  kDocumentsGpu,      // documents, and below compute capability 9.0
  kDocumentsOrdered,  // documents, and deterministic
  kDocumentsOwn,      // documents, and the program has no workspace for cuDNN's kernels
};

// The reason why own fused kernels do not support a launch. They support any length, documents and
// deterministic launches.
enum class OwnGap : uint8_t {
  kNone,       // they support it
  kGpu,        // below compute capability 8.0
  kDtype,      // neither bf16 nor fp16
  kHeadSteps,  // D is no multiple of 8
  kHeadSize,   // D is past kMostOwnHead
  kWorkspace,  // backward, and the workspace is smaller than OwnAttentionWorkspaceOf
};

// The size of one call: sequences and heads of keys, with the query heads that share those keys.
struct AttentionPart {
  int64_t sequences = 0, key_heads = 0;
  bool operator==(const AttentionPart&) const = default;
};

// Equal parts of a launch, the largest first: whole sequences, then heads of one.
std::vector<AttentionPart> AttentionParts(const KernelDims& dims);
// The dims of one call.
KernelDims PartDims(const KernelDims& dims, const AttentionPart& part);

struct AttentionPath {
  AttentionKernels kernels = AttentionKernels::kLibrary;
  LibraryGap library_gap = LibraryGap::kNone;  // kNone with kLibrary only
  OwnGap own_gap = OwnGap::kNone;              // why kPlain is not kOwn
  AttentionPart part;  // kLibrary: size of each call; the whole launch unless it is deterministic
  int64_t calls = 0;   // kLibrary: calls, one after the other

  bool fused() const { return kernels != AttentionKernels::kPlain; }
};

// Chooses cuDNN's kernels where they support the launch, else own ones, else plain ones.
// Sources: the support surface of NVIDIA's cudnn-frontend 1.32 (scaled dot product attention) for
// cuDNN 9.10 and newer, and FusedAttentionBackwardBytes. Tried on Hopper GPUs only.
AttentionPath AttentionPathOf(const AttentionLaunch& launch);

// True: the environment's ZEROPLAN_ATTENTION is "own", so that nothing runs, or is planned to run,
// on cuDNN's kernels: to try own kernels on GPUs where cuDNN has the launch. Read once.
bool AttentionLibraryOff();

// Returns what own fused kernels lack for a launch, whether or not cuDNN supports it. A machine
// without cuDNN runs those launches on own kernels that AttentionPathOf gives to cuDNN. With
// documents the workspace is ignored.
OwnGap OwnGapOf(const AttentionLaunch& launch);

// Own kernels pad heads to this many channels: 64, 96, 128 or 256. REQUIRES: D <= kMostOwnHead.
int64_t OwnHead(int64_t head_size);
inline constexpr int64_t kMostOwnHead = 256;
inline constexpr int64_t kOwnQueryTile = 64;  // T is rounded up to so many rows of dQ
inline constexpr int64_t kOwnTurnRows = 32;   // the fewest rows of dQ that are added in turns

// The layout of the workspace of own kernels' backward pass: offsets in bytes from its begin, each
// a multiple of kWorkspaceAlignment. A head of T tokens has ceil(T / kOwnQueryTile) tiles of
// queries. The forward pass needs no workspace.
struct OwnAttentionWorkspace {
  uint64_t dq = 0;     // fp32 [B, H, tiles, kOwnQueryTile * OwnHead(D)]
  uint64_t delta = 0;  // fp32 [B,H,T], row sums of dout*out
  uint64_t turns = 0;  // int32 [B*H*ceil(T / kOwnTurnRows) + 1], for deterministic launches
  uint64_t bytes = 0;  // total size
};

// REQUIRES: D <= kMostOwnHead.
OwnAttentionWorkspace OwnAttentionWorkspaceOf(const KernelDims& dims);

// Whether own kernels are faster than cuDNN's within documents of which a token sees so many keys
// in the mean. 0: unknown, so no. Measured on an H200, both passes together
// (benchmarks/attention.py): with heads of 64 channels they take 0.46 of cuDNN's time at 48 keys,
// 0.74 to 0.96 at 138, 1.03 at 480; of 128 channels 0.53 to 0.63 at 43 keys, 0.95 to 1.24 at 138 to
// 157.
bool OwnFasterWithin(int64_t head_size, double visible_keys);

// The layout of the workspace of cuDNN's kernels with documents, in bytes; each part at a multiple
// of 256. cuDNN gets documents as the sequences of a ragged batch with `slots` sequences; those
// beyond the number of documents have length 0.
struct DocumentWorkspace {
  // Offsets of arrays, in bytes from the workspace's begin. Each array is [slots + 1] int64: each
  // document's first element in rows of qkv, of out, of lse_MH and of `keys`; the last entry is
  // their end.
  uint64_t qkv_offsets = 0, out_offsets = 0, lse_offsets = 0, key_offsets = 0;
  uint64_t lengths = 0;  // [slots] int32
  // Backward, if heads of keys are shared: keys, values and their gradients in 16 bits, [M][G*D]
  // each, copied from qkv and to dqkv. cuDNN spaces its sums of every query head as far apart as
  // rows of keys, so that rows within qkv would need several times the memory.
  uint64_t keys = 0, values = 0, dk = 0, dv = 0;
  uint64_t library = 0;  // offset of cuDNN's own workspace, the rest
  uint64_t bytes = 0;    // total size
};

// cuDNN's own workspace was measured to the byte at 30 launches on an H200 with cuDNN 9.14. It
// holds dQ in fp32 with the row pitch of qkv, row sums of dout*out in fp32, dK and dV of every
// query head in fp32 if heads are shared, and a few hundred bytes a slot.
DocumentWorkspace DocumentWorkspaceOf(const KernelDims& dims, int64_t slots, bool backward);
// Bytes that a program with documents reserves for a launch: what own kernels need and, if
// `library`, what cuDNN's need for documents of one token each. `library`: whether the program may
// run on cuDNN's kernels, so that it is not deterministic and its GPU has HasLibraryDocuments.
uint64_t AttentionDocumentsBytes(const KernelDims& dims, bool backward, bool library);
// Whether cuDNN has kernels for documents on such GPUs: from compute capability 9.0 on.
bool HasLibraryDocuments(int compute_capability);

// The largest head size that cuDNN supports: 256 on Hopper and in the forward pass, else 128. (From
// 9.23 on it supports 256 backward on B200 too; zeroplan does not use that.)
int64_t MostLibraryHead(int compute_capability, bool backward);
// The largest head size of our plain kernels, their only limit: kMostPlainHead, but 64 on GPUs
// whose blocks have no more than 99 KiB of shared memory (8.6, 8.9, 12.0; CUDA programming guide,
// technical specifications), because tiles of larger heads need up to 150 KiB in the backward pass.
int64_t MostPlainHead(int compute_capability);
inline constexpr int64_t kMostPlainHead = 256;
// Whether both passes have fused or plain kernels for such heads. If not, a program has to keep the
// scores in memory (LowerOptions::flash_attention).
bool HasAttentionKernels(int64_t head_size, Dtype dtype, int compute_capability);

// Workspace of cuDNN's backward pass. Measured to the byte for its favourite plan on Hopper at 31
// shapes with cuDNN 9.14, 9 of them deterministic. It holds row sums of dout*out in fp32 and a
// header; dQ in fp32, or, if deterministic, the gradients of the scores in 16 bits, T rounded up to
// 64 rows and 128 columns; if heads of keys are shared, dK and dV of every query head in 16 bits,
// which a second kernel adds up; if T is no multiple of 128, two lengths of 4 bytes a sequence, for
// versions up to 9.15.
uint64_t FusedAttentionBackwardBytes(const KernelDims& dims, bool deterministic);

// Bytes that a program without documents reserves for a launch of the backward pass:
// FusedAttentionBackwardBytes of the whole launch, and at least what own kernels need. If
// deterministic: at least those of one head of keys too, unless that exceeds kMostOrderedBytes.
uint64_t AttentionWorkspaceBytes(const KernelDims& dims, bool deterministic);
inline constexpr uint64_t kMostOrderedBytes = uint64_t{4} << 30;

// "cuDNN has none for fp32". REQUIRES: `gap` is not kNone.
std::string LibraryGapText(const AttentionLaunch& launch, LibraryGap gap);
// "fused kernels take bf16 and fp16, not fp32". REQUIRES: `gap` is not kNone.
std::string OwnGapText(const AttentionLaunch& launch, OwnGap gap);

}  // namespace zeroplan
