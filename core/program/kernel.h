// The kernels that a step program may launch. Each is one row of core/program/kernel_rows.inc: its
// arguments and dims, its formula, and the facts that lowering, cost model, texts and backends
// need. KernelId and the tables and declarations of the backends are generated from the same list.
// docs/adding-a-kernel.md explains how to add one.
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
  kTransposed = 2,   // w of the matmul is stored as [N,K]
  kForwardOnly = 4,  // cross-entropy: loss only
  kAddToOutput = 8,  // backward of a norm: dx += instead of dx =
  // kStepScalars: computes all scalars that updates in the backward pass need, before the norm is
  // known; and the norm alone, after them.
  kBeforeNorm = 64,
  kAfterNorm = 128,
  kHalfAway = 32,  // kConvert to bf16: halves are rounded away from zero, not to even
  // kAdamW, kParamInit: `begin` is an offset into the rank's own part (else into the unit)
  kOnRank = 16,
};

// kOutOrAdd: kInOut with kAccumulate, else kOut. kOutOrAddDx: the same by kAddToOutput. kScratch:
// contents are undefined before and after.
enum class ArgMode : uint8_t { kIn, kOut, kInOut, kOutOrAdd, kOutOrAddDx, kScratch };

inline constexpr size_t kMaxKernelArgs = 9;
inline constexpr size_t kMaxKernelDims = 6;
inline constexpr size_t kMaxKernelScalars = 5;

// A row names the dims that it uses, from the front; the others are 0.
using KernelDims = std::array<int64_t, kMaxKernelDims>;
// Constants of a launch: facts of the model in a kernel's formula, such as an epsilon. Values that
// change from step to step are in StepState instead.
using KernelScalars = std::array<float, kMaxKernelScalars>;

// The first n dims as an array to destructure: const auto [M, K, N] = FirstDims<3>(dims).
template <size_t n>
std::array<int64_t, n> FirstDims(const KernelDims& dims) {
  std::array<int64_t, n> first;
  std::copy_n(dims.begin(), n, first.begin());
  return first;
}

// The backend that a program is lowered for: sets the library's workspace sizes and the
// materialised tensors.
enum class Backend : uint8_t { kCpu, kCuda };

// The cost function of cost_models for a launch.
enum class CostKind : uint8_t {
  kMemory,  // by the bytes that it moves
  kAdam,    // the same on a GPU; a host has a measured rate
  // Matmuls with dims M,K,N, whose result is M x N, M x K, K x N.
  kForwardProduct,
  kDataProduct,
  kWeightProduct,
  // Attention with dims B,T,H,G,D.
  kAttentionForward,
  kAttentionBackward,
  kUnfusedAttentionForward,
  kUnfusedAttentionBackward,
  // Matmuls of experts with dims R,K,N,E: results R x N, R x K, E x N x K.
  kGroupedForward,
  kGroupedData,
  kGroupedWeight,
};

// Size of an argument; 0 bytes: absent.
struct ArgShape {
  uint64_t bytes = 0;
  Dtype dtype = Dtype::kU8;
};

// The parts of a launch that determine the bytes it moves. Arguments in the row's order.
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

// The kernel that recomputes a row's outputs for selective recompute: the row's own, or a cheaper
// one that makes some outputs from the others.
struct CheapKernel {
  KernelId kernel = KernelId::kCount;
  // its arguments, as indices of the row's; empty: no such kernel
  ShortList<uint8_t, kMaxKernelArgs> args;
  KernelDims (*dims)(const KernelDims&) = nullptr;  // its dims from the row's; nullptr: the same
};

// The argument that receives the largest magnitude (amax) of argument `of`, which the kernel
// writes: F32, the maximum with its old value. It follows the workspace and may be absent; -1: the
// kernel has none.
struct Magnitude {
  int8_t of = -1, argument = -1;
};

// Kernels that the CUDA function launches in addition to its main one, and that no figure of a
// profile includes: `count` of them if argument `arg` is present.
struct SideKernels {
  int count = 0;
  size_t arg = 0;
};

struct KernelScalar {
  std::string_view name;
  float usual = 0;  // texts leave out this value
};

// Alignment of buffers in a workspace: cudaMalloc's, which libraries and vector loads rely on.
constexpr uint64_t kWorkspaceAlignment = 256;

// Defaults of a row. ArgumentBytes: the bytes of all arguments but the workspace, counted twice for
// those read and written.
double NoFlops(const KernelDims& dims);
double ArgumentBytes(const LaunchShape& launch);
uint64_t NoWorkspace(const KernelDims& dims, Backend backend);

struct KernelRow {
  KernelId id = KernelId::kCount;
  std::string_view name;  // "matmul_forward"
  // The workspace (kScratch) comes last if there is one, before `starts` and `magnitude` only.
  ShortList<ArgMode, kMaxKernelArgs> args;
  int starts = -1;  // index of the last argument, the documents' starts; -1: it has none
  ShortList<std::string_view, kMaxKernelDims> dims;    // names of the dims
  ShortList<KernelScalar, kMaxKernelScalars> scalars;  // meaning of LaunchKernel::scalars
  // Floating-point operations of the mathematics (multiply-add = 2); causal attention counts half.
  double (*flops)(const KernelDims&) = NoFlops;
  // Bytes read and written.
  double (*bytes)(const LaunchShape&) = ArgumentBytes;
  // Bytes of scratch that the library needs on this backend; 0: the argument is left out.
  uint64_t (*workspace_bytes)(const KernelDims&, Backend) = NoWorkspace;
  // Launches on the compute stream run one after another, so all rows with this flag can share one
  // block.
  bool shares_workspace = false;
  CostKind cost = CostKind::kMemory;
  SideKernels side;
  CheapKernel recompute;
  Magnitude magnitude;
};

const KernelRow& KernelInfo(KernelId id);
// False for kCount, unless SetExtraKernel was called, and for larger ids.
bool KernelExists(KernelId id);

// "M=16 K=52 N=20", then the scalars that differ from the usual: "eps=1e-06".
std::string FormatDims(KernelId id, const KernelDims& dims, const KernelScalars& scalars);
// The scalars of a launch outside a model: a benchmark's, a test's.
KernelScalars UsualScalars(KernelId id);

// Floating-point operations of the batched matmuls of unfused attention: twice the row's `flops`,
// because a T x T matmul ignores the mask. Between the matmuls a softmax passes over all B*H*T*T
// elements: it reads and writes them once in the forward pass; in the backward pass it reads probs
// and dprobs and writes dprobs. A cost model computes its time from both. REQUIRES: `id` is one of
// the two unfused kernels.
double UnfusedAttentionGemmFlops(KernelId id, const KernelDims& dims);

// The access mode of argument `index` of a launch, given the flags (kOutOrAdd resolved to kOut or
// kInOut, kScratch to kOut).
ArgMode AccessMode(KernelId id, int index, uint8_t flags);
inline bool Reads(ArgMode mode) { return mode == ArgMode::kIn || mode == ArgMode::kInOut; }
inline bool Writes(ArgMode mode) { return mode != ArgMode::kIn; }

// A slot behind the rows of the list, empty except in tests, which put the row of a made-up kernel
// there. Its functions go to the same slot of a KernelTable. Must not be set while other threads
// read rows.
inline constexpr KernelId kExtraKernel = KernelId::kCount;
inline constexpr size_t kKernelSlots = static_cast<size_t>(kKernelCount) + 1;
void SetExtraKernel(const KernelRow& row);  // an empty row clears the slot

// Bytes of scratch memory that a program reserves for one launch; 0: none. For most kernels the
// row's `workspace_bytes`. Attention's bytes also depend on `documents`, whether the launch gets
// the documents' starts, on whether the program is `deterministic`, and with documents on
// LowerOptions::own_documents.
uint64_t LaunchWorkspaceBytes(KernelId kernel, const KernelDims& dims, Backend backend,
                              bool documents, bool deterministic, bool own_documents = false);

}  // namespace zeroplan
