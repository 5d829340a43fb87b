// The kernels a step program may launch. Each is one row of core/program/kernel_rows.inc, which
// says what its arguments and dims are, what it computes, and what lowering, cost model, texts and
// backends need. KernelId and the tables and declarations of the backends are made from the same
// list. docs/adding-a-kernel.md adds one.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "core/base/dtype.h"

namespace zeroplan {

// kEmbedForward, kLayerNormForward, ...: a k before each row's name, in the order of the rows.
enum class KernelId : uint8_t {
#define ZEROPLAN_KERNEL(id, ...) k##id,
#include "core/program/kernel_rows.inc"
  kCount
};
inline constexpr int kKernelCount = static_cast<int>(KernelId::kCount);

// Bits of LaunchKernel::flags.
enum KernelFlag : uint8_t {
  kNoFlags = 0,
  kAccumulate = 1,   // (+)= adds to what is there; else writes
  kTransposed = 2,   // w of the matmul lies as [N,K]
  kForwardOnly = 4,  // cross-entropy: loss only
  kAddToOutput = 8,  // backward of a norm: dx += instead of dx =
  // kStepScalars: all that updates in the backward pass need, with the norm not known yet; and the
  // norm alone, after them.
  kBeforeNorm = 64,
  kAfterNorm = 128,
  kHalfAway = 32,  // kConvert to bf16: halves are rounded away from zero, not to even
  kOnRank = 16,  // kAdamW, kParamInit: `begin` is within what this rank owns (else within the unit)
};

// kOutOrAdd: kInOut with kAccumulate, else kOut. kOutOrAddDx: the same by kAddToOutput. kScratch:
// of no use before and after.
enum class ArgMode : uint8_t { kIn, kOut, kInOut, kOutOrAdd, kOutOrAddDx, kScratch };

inline constexpr size_t kMaxKernelArgs = 9;
inline constexpr size_t kMaxKernelDims = 6;
inline constexpr size_t kMaxKernelScalars = 5;

// Rows name those they use, from the front; the others are 0.
using KernelDims = std::array<int64_t, kMaxKernelDims>;
// Constants of a launch: facts of the model that a kernel's formula has, such as an epsilon. What
// changes from step to step is in StepState instead.
using KernelScalars = std::array<float, kMaxKernelScalars>;

// The first n, to be taken apart: const auto [M, K, N] = FirstDims<3>(dims).
template <size_t n>
std::array<int64_t, n> FirstDims(const KernelDims& dims) {
  std::array<int64_t, n> first;
  std::copy_n(dims.begin(), n, first.begin());
  return first;
}

// Which library's workspace sizes and which materialised tensors a program is lowered for.
enum class Backend : uint8_t { kCpu, kCuda };

// Which cost function of cost_models a launch goes to.
enum class CostKind : uint8_t {
  kMemory,  // by the bytes it moves
  kAdam,    // the same on a GPU; the host has a rate for it
  // Products with dims M,K,N, whose result is M x N, M x K, K x N.
  kForwardProduct,
  kDataProduct,
  kWeightProduct,
  // Attention with dims B,T,H,G,D.
  kAttentionForward,
  kAttentionBackward,
  kUnfusedAttentionForward,
  kUnfusedAttentionBackward,
};

// Size of an argument; 0 bytes: absent.
struct ArgShape {
  uint64_t bytes = 0;
  Dtype dtype = Dtype::kU8;
};

// A launch as far as it decides what is moved. Arguments in the row's order.
struct LaunchShape {
  KernelId id;
  uint8_t flags;
  const KernelDims& dims;
  std::span<const ArgShape> args;
};

// A list of at most kMost items.
template <typename T, size_t kMost>
class ShortList {
 public:
  constexpr ShortList() = default;
  constexpr ShortList(std::initializer_list<T> items) : size_(static_cast<int>(items.size())) {
    std::copy(items.begin(), items.end(), items_.begin());
  }
  constexpr int size() const { return size_; }
  constexpr const T& operator[](size_t index) const { return items_[index]; }
  constexpr const T* begin() const { return items_.data(); }
  constexpr const T* end() const { return items_.data() + size_; }

 private:
  std::array<T, kMost> items_{};
  int size_ = 0;
};

// The kernel that makes a row's outputs again for selective recompute: the row's own, or a cheaper
// one that makes some of them from the others.
struct CheapKernel {
  KernelId kernel = KernelId::kCount;
  ShortList<uint8_t, kMaxKernelArgs> args;  // its arguments, as indices of the row's; empty: none
  KernelDims (*dims)(const KernelDims&) = nullptr;  // its dims from the row's; nullptr: the same
};

// The argument that becomes the largest magnitude of another one, which the kernel writes: F32,
// raised from what it is. It comes behind the workspace and may be absent; -1: the kernel takes
// none along.
struct Magnitude {
  int8_t of = -1, argument = -1;
};

// Kernels that the CUDA function launches beside its main one, and that no figure of a profile
// holds: `count` of them where argument `arg` is there.
struct SideKernels {
  int count = 0;
  size_t arg = 0;
};

struct KernelScalar {
  std::string_view name;
  float usual = 0;  // texts leave it out where it is this
};

// Alignment of what lies in a workspace: cudaMalloc's, which libraries and vector loads rely on.
constexpr uint64_t kWorkspaceAlignment = 256;

// What a row has that does not say otherwise. ArgumentBytes: those of all arguments but the
// workspace, twice for what is read and written.
double NoFlops(const KernelDims& dims);
double ArgumentBytes(const LaunchShape& launch);
uint64_t NoWorkspace(const KernelDims& dims, Backend backend);

struct KernelRow {
  KernelId id = KernelId::kCount;
  std::string_view name;  // "matmul_forward"
  // The workspace (kScratch) last where there is one, but for `starts` and `magnitude`.
  ShortList<ArgMode, kMaxKernelArgs> args;
  int starts = -1;  // the argument that says where documents start, the last; -1: it has none
  ShortList<std::string_view, kMaxKernelDims> dims;    // their names
  ShortList<KernelScalar, kMaxKernelScalars> scalars;  // of LaunchKernel::scalars
  // Floating-point operations of the mathematics (multiply-add = 2); causal attention counts half.
  double (*flops)(const KernelDims&) = NoFlops;
  // Bytes read and written.
  double (*bytes)(const LaunchShape&) = ArgumentBytes;
  // Bytes of scratch the library needs on this backend; 0: the argument is left out.
  uint64_t (*workspace_bytes)(const KernelDims&, Backend) = NoWorkspace;
  // Kernels of the compute stream run one after another, so one block may serve all that say so.
  bool shares_workspace = false;
  CostKind cost = CostKind::kMemory;
  SideKernels side;
  CheapKernel recompute;
  Magnitude magnitude;
};

const KernelRow& KernelInfo(KernelId id);
// False for kCount, unless SetExtraKernel was called, and beyond.
bool KernelExists(KernelId id);

// "M=16 K=52 N=20", then the scalars that are not as usual: "eps=1e-06".
std::string FormatDims(KernelId id, const KernelDims& dims, const KernelScalars& scalars);
// The scalars of a launch that belongs to no model: a benchmark's, a test's.
KernelScalars UsualScalars(KernelId id);

// Floating-point operations that the batched matrix products of unfused attention carry out:
// twice the row's `flops`, since a product of T x T knows no mask. Between the products a softmax
// passes over all B*H*T*T elements: read and written once in the forward pass; in the backward
// pass probs and dprobs are read and dprobs is written. A cost model takes its time from these.
// REQUIRES: `id` is one of the two unfused kernels.
double UnfusedAttentionGemmFlops(KernelId id, const KernelDims& dims);

// How argument `index` of a launch is accessed, flags taken into account (kOutOrAdd resolved to
// kOut or kInOut, kScratch to kOut).
ArgMode AccessMode(KernelId id, int index, uint8_t flags);
inline bool Reads(ArgMode mode) { return mode == ArgMode::kIn || mode == ArgMode::kInOut; }
inline bool Writes(ArgMode mode) { return mode != ArgMode::kIn; }

// A place behind the rows of the list, empty but in tests: there they put the row of a kernel that
// the tree does not have. Its functions go to the same place of a KernelTable. Not while other
// threads read rows.
inline constexpr KernelId kExtraKernel = KernelId::kCount;
inline constexpr size_t kKernelSlots = static_cast<size_t>(kKernelCount) + 1;
void SetExtraKernel(const KernelRow& row);  // an empty row clears the place

// Bytes of scratch memory that a program sets aside for one launch; 0: none. Of most kernels what
// their row says. That of attention depends on the launch too: `documents`, whether it is told
// where documents start, and on whether the program is `deterministic`.
uint64_t LaunchWorkspaceBytes(KernelId kernel, const KernelDims& dims, Backend backend,
                              bool documents, bool deterministic);

}  // namespace zeroplan
