// The kernel table and the formulas its rows name. FLOPs are those of the mathematics, not of an
// implementation; matmuls and attention decide a step's time, the elementwise counts only keep such
// kernels from looking free.
#include "core/program/kernel.h"

#include <fmt/format.h>

#include <iterator>
#include <numeric>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/model/lora.h"
#include "core/program/attention_path.h"
#include "core/program/kernel_workspace.h"

namespace zeroplan {

namespace {

using enum ArgMode;

// ---- FLOPs -------------------------------------------------------------------------------------

double Product(const KernelDims& d, int count) {
  double product = 1;
  for (int i = 0; i < count; ++i) product *= static_cast<double>(d[static_cast<size_t>(i)]);
  return product;
}

// One addition of token and position embedding an element.
double EmbedFlops(const KernelDims& d) { return Product(d, 3); }
// An element: 1 for the mean, 3 for the variance, 4 to shift, scale, weigh and add the bias.
double LayerNormForwardFlops(const KernelDims& d) { return 8 * Product(d, 2); }
// An element: 2 to normalise x again, 3 for dw and db, 4 for the two row sums, 5 for dx.
double LayerNormBackwardFlops(const KernelDims& d) { return 14 * Product(d, 2); }
double MatmulFlops(const KernelDims& d) { return 2 * Product(d, 3); }
// Q*K^T and P*V are 2*B*T*T*H*D each; the causal mask leaves half. Heads that share keys and values
// multiply with them as any other.
double AttentionForwardFlops(const KernelDims& d) {
  return 2 * Product(d, 3) * static_cast<double>(d[1]) * static_cast<double>(d[4]);
}
// Five products of the forward's size where that has two: the scores again (only lse was saved),
// dV, dP, dQ and dK. The convention of the FlashAttention-2 paper (Dao 2023, section 4.1): 2.5
// times.
double AttentionBackwardFlops(const KernelDims& d) { return 2.5 * AttentionForwardFlops(d); }
// Two products of the forward's size in place of each of its own: dV and dP, dQ and dK. The
// probabilities were kept, so none of them is made again.
double UnfusedAttentionBackwardFlops(const KernelDims& d) { return 2 * AttentionForwardFlops(d); }
// x*(1+tanh(s*(x+k*x^3)))/2, tanh as one.
double GeluForwardFlops(const KernelDims& d) { return 9 * Product(d, 1); }
double GeluBackwardFlops(const KernelDims& d) { return 18 * Product(d, 1); }
double MatmulGeluForwardFlops(const KernelDims& d) {
  return MatmulFlops(d) + GeluForwardFlops({d[0] * d[2]});
}
double MatmulGeluBackwardFlops(const KernelDims& d) {
  return MatmulFlops(d) + GeluBackwardFlops({d[0] * d[1]});
}
// A logit: maximum, difference, exponential, sum; then quotient, difference, scaling.
double CrossEntropyFlops(const KernelDims& d) { return 7 * Product(d, 2); }
// An element: 2 for the mean square, 2 to scale and weigh.
double RmsNormForwardFlops(const KernelDims& d) { return 4 * Product(d, 2); }
// An element: 1 to normalise x again, 1 for d = dy*w, 2 for the row sum of d*n, 2 for dw, 3 for dx.
double RmsNormBackwardFlops(const KernelDims& d) { return 9 * Product(d, 2); }
// An angle: cosine and sine as one each, one product for the angle, one each for the factor.
double RotaryTableFlops(const KernelDims& d) { return 2.5 * Product(d, 2); }
// Elements of query and key heads, of dims M,T,H,G,D.
double QueryKeyElements(const KernelDims& d) {
  return static_cast<double>(d[0]) * static_cast<double>(d[2] + d[3]) * static_cast<double>(d[4]);
}
// Two products and a sum.
double RotaryFlops(const KernelDims& d) { return 3 * QueryKeyElements(d); }
// RMS norm's 4 and 9, and the rotation.
double QkNormRotaryForwardFlops(const KernelDims& d) { return 7 * QueryKeyElements(d); }
double QkNormRotaryBackwardFlops(const KernelDims& d) { return 12 * QueryKeyElements(d); }
// gate*up/(1+exp(-gate)), the exponential as one.
double SwiGluForwardFlops(const KernelDims& d) { return 5 * Product(d, 2); }
// The sigmoid 4, gate*sigmoid 1, its slope 4, dgate 2, dup 1.
double SwiGluBackwardFlops(const KernelDims& d) { return 12 * Product(d, 2); }
double TwoProductsFlops(const KernelDims& d) { return 2 * MatmulFlops(d); }
// Columns of each adapted linear of a product, 0 behind the last.
struct AdaptedWidths {
  int64_t widths[kMostThinParts] = {};

  explicit AdaptedWidths(const KernelDims& d) {
    AdaptedColumns{{d[3], d[4]}, d[5]}.ForEach(
        d[2], [this](const AdaptedColumns::Part& part) { widths[part.place] = part.columns(); });
  }
};
// One sum for each key and value element that a part has beside the first.
double UnpackHeadsFlops(const KernelDims& d) {
  const auto [B, T, H, G, D, S] = d;
  const int64_t more = G > 0 && S > G ? S / G - 1 : 0;
  return static_cast<double>(B * T) * static_cast<double>(2 * G * D * more);
}
double AdaptedWidth(const KernelDims& d) {
  const AdaptedWidths adapted(d);
  return static_cast<double>(
      std::accumulate(std::begin(adapted.widths), std::end(adapted.widths), int64_t{0}));
}
double LoraUpFlops(const KernelDims& d) { return 2 * Product(d, 2) * AdaptedWidth(d); }
double LoraUpBackwardFlops(const KernelDims& d) { return 2 * LoraUpFlops(d); }
double OneOfEachElement(const KernelDims& d) { return Product(d, 2); }
double OnePerElement(const KernelDims& d) { return Product(d, 1); }
double TwoPerElement(const KernelDims& d) { return 2 * Product(d, 1); }
// Adds each row of dx to a row of dwte and a row of dwpe.
double EmbedBackwardFlops(const KernelDims& d) { return 2 * Product(d, 3); }
// Gradient factor 1, m 3, v 4, bias corrections 2, root and epsilon 2, quotient 1, decay and
// step 4.
double AdamWFlops(const KernelDims& d) { return 17 * Product(d, 1); }
// A counter-based random number and half a Box-Muller transform, roughly.
double ParamInitFlops(const KernelDims& d) { return 40 * Product(d, 1); }

// A logit: exponential, sum, quotient, and a comparison for each of the k; in the gradient as many.
double RouteFlops(const KernelDims& d) { return 8 * Product(d, 2); }
double SumRowsFlops(const KernelDims& d) { return Product(d, 3); }
// SwiGLU's, and the product with the gate; backward also a product and a sum for the gate's
// gradient.
double GatedSwiGluForwardFlops(const KernelDims& d) { return 6 * Product(d, 2); }
double GatedSwiGluBackwardFlops(const KernelDims& d) { return 16 * Product(d, 2); }
// Per layer and expert: two sums, a product.
double BalanceLossFlops(const KernelDims& d) {
  return 3 * static_cast<double>(d[1]) * static_cast<double>(d[2]);
}

// ---- workspace ---------------------------------------------------------------------------------

// 32 MiB: what the cuBLAS documentation recommends for Hopper and data-centre Blackwell
// ("cublasSetWorkspace": 4 MiB on older GPUs). With less, cuBLASLt drops split-K algorithms.
uint64_t MatmulWorkspace(const KernelDims&, Backend backend) {
  return backend == Backend::kCuda ? uint64_t{32} << 20 : 0;
}

// The next two: with documents, and backward of deterministic programs, LaunchWorkspaceBytes says
// another.
// What cuDNN 9's Hopper kernels ask for, measured at 9.14 and 9.19. Without it the library falls
// back on kernels of an older design that take half as long again.
uint64_t AttentionForwardWorkspace(const KernelDims&, Backend backend) {
  return backend == Backend::kCuda ? 256 : 0;
}

uint64_t AttentionBackwardWorkspace(const KernelDims& d, Backend backend) {
  return backend == Backend::kCuda ? AttentionWorkspaceBytes(d, false) : 0;
}

// Our own kernels: kernel_workspace.h.
uint64_t OwnScratch(Backend backend, int64_t values, size_t value_bytes) {
  if (backend == Backend::kCpu) return 0;
  return AlignUp(static_cast<uint64_t>(values) * value_bytes, kWorkspaceAlignment);
}

// Every thread block sums dw and db over its rows in fp32, and a second launch adds the blocks up,
// in a fixed order.
uint64_t LayerNormBackwardWorkspace(const KernelDims& d, Backend backend) {
  return OwnScratch(backend, 2 * d[1] * NormBackwardBlocks(d[0]), sizeof(float));
}
uint64_t RmsNormBackwardWorkspace(const KernelDims& d, Backend backend) {
  return OwnScratch(backend, d[1] * NormBackwardBlocks(d[0]), sizeof(float));
}
uint64_t QkNormRotaryBackwardWorkspace(const KernelDims& d, Backend backend) {
  if (d[5] != 0) {
    return OwnScratch(backend, (d[2] + d[3]) * d[4] * NormBackwardBlocks(d[0]), sizeof(float));
  }
  return OwnScratch(backend, 2 * d[4] * QkNormBackwardBlocks(d[0]), sizeof(float));
}
uint64_t NormWorkspace(const KernelDims& d, Backend backend) {
  return OwnScratch(backend, NormBlocks(d[0]), sizeof(double));
}
// Rows of each expert in each block, which become the block's first place of each expert.
uint64_t OrderRowsWorkspace(const KernelDims& d, Backend backend) {
  return OwnScratch(backend, OrderBlocks(d[0] * d[1]) * d[2], sizeof(int32_t));
}
// The number of the next tile (executor/kernels/cuda/experts/grouped_matmul.h).
uint64_t GroupedWorkspace(const KernelDims&, Backend backend) {
  return OwnScratch(backend, kGroupedScratchBytes, 1);
}
uint64_t RouterStatsWorkspace(const KernelDims& d, Backend backend) {
  return OwnScratch(backend, RouterStatsBlocks(d[0]) * (d[1] + 1), sizeof(float));
}
uint64_t EmbedBackwardWorkspace(const KernelDims& d, Backend backend) {
  if (backend == Backend::kCpu) return 0;
  return static_cast<uint64_t>(EmbedScratchOf(d[0] * d[1], d[2]).bytes);
}

// Partial sums of our own kernels, or the library's workspace, whichever runs.
uint64_t ThinWorkspace(const KernelDims& d, Backend backend, int64_t own) {
  return std::max(MatmulWorkspace(d, backend), OwnScratch(backend, own, 1));
}
uint64_t LoraDownWorkspace(const KernelDims& d, Backend backend) {
  return ThinWorkspace(d, backend, ThinSumsBytes(d[0], d[2], {d[1], 0, 0}, true, false));
}
uint64_t LoraDownBackwardWorkspace(const KernelDims& d, Backend backend) {
  return ThinWorkspace(d, backend, ThinSumsBytes(d[0], d[2], {d[1], 0, 0}, false, true));
}
uint64_t LoraUpBackwardWorkspace(const KernelDims& d, Backend backend) {
  return ThinWorkspace(d, backend, ThinSumsBytes(d[0], d[1], AdaptedWidths(d).widths, true, true));
}

// ---- bytes -------------------------------------------------------------------------------------

double Bytes(const LaunchShape& launch, size_t index) {
  return index < launch.args.size() ? static_cast<double>(launch.args[index].bytes) : 0;
}

// The table is not read through: a row of wte for each row of x.
double EmbedForwardBytes(const LaunchShape& launch) {
  return Bytes(launch, 0) + Bytes(launch, 2) + 2 * Bytes(launch, 3) + Bytes(launch, 4);
}

// How many positions have such a row is up to the text: each row once is counted.
double EmbedRowsBytes(const LaunchShape& launch) { return Bytes(launch, 0) + 2 * Bytes(launch, 1); }
// An element of the wide side lies alone in a sector of 32 bytes; both sides are read and written.
double SwapColumnsBytes(const LaunchShape& launch) {
  constexpr double kSector = 32;
  return Bytes(launch, 0) + 2 * (Bytes(launch, 1) + kSector * Product(launch.dims, 2));
}

// The named rows of dwte alone are read and written.
double EmbedBackwardBytes(const LaunchShape& launch) {
  const double rows =
      Product(launch.dims, 3) * static_cast<double>(DtypeBytes(launch.args[2].dtype));
  const bool adds = (launch.flags & kAccumulate) != 0;
  return Bytes(launch, 0) + Bytes(launch, 1) + 2 * rows + (adds ? 2 : 1) * Bytes(launch, 3) +
         Bytes(launch, 5);
}

// The row that is named, not all of x.
// The row of each table that is read, and the one that is written.
double EmbedTokenBytes(const LaunchShape& launch) {
  return Bytes(launch, 4) * (launch.args[2].bytes > 0 ? 3 : 2);
}
double RotaryRowFlops(const KernelDims& dims) {
  const auto [D, scaling, original_positions] = FirstDims<3>(dims);
  return RotaryTableFlops({1, D, scaling, original_positions});
}
// What is kept is read and written.
double KeepKeysValuesBytes(const LaunchShape& launch) { return 2 * Bytes(launch, 1); }
// FLOPs over a whole cache: two products of T rows, and the softmax's exponentials.
double AttendTokenFlops(const KernelDims& dims) {
  const auto [T, H, G, D] = FirstDims<4>(dims);
  return static_cast<double>(H) * static_cast<double>(T) * (4 * static_cast<double>(D) + 4);
}
// What AttendParts blocks leave of each head, in fp32: a sum of D values, a maximum and a sum.
uint64_t AttendTokenWorkspace(const KernelDims& dims, Backend backend) {
  const auto [T, H, G, D] = FirstDims<4>(dims);
  return backend == Backend::kCuda ? static_cast<uint64_t>(H * AttendParts(T, G) * (D + 2)) * 4 : 0;
}
// A whole cache is read; a row of it is written.
double AttendTokenBytes(const LaunchShape& launch) {
  return Bytes(launch, 0) + Bytes(launch, 2) + Bytes(launch, 3);
}
double SelectRowBytes(const LaunchShape& launch) { return 2 * Bytes(launch, 2); }

// The logits once in, once out: a row stays on the chip from its maximum and sum to its gradient,
// or comes a second time from the cache. Forward only: once in.
double CrossEntropyBytes(const LaunchShape& launch) {
  const double passes = (launch.flags & kForwardOnly) != 0 ? 1 : 2;
  return passes * Bytes(launch, 0) + Bytes(launch, 1) + Bytes(launch, 3);
}

// The workspace is written, then read.
double LayerNormBackwardBytes(const LaunchShape& launch) {
  return ArgumentBytes(launch) + 2 * Bytes(launch, 7);
}

double RmsNormBackwardBytes(const LaunchShape& launch) {
  return ArgumentBytes(launch) + 2 * Bytes(launch, 6);
}

// The part of a row of query, key and value heads that query and key heads are.
double QueryKeyShare(const KernelDims& d) {
  return static_cast<double>(d[2] + d[3]) / static_cast<double>(d[2] + 2 * d[3]);
}

// In place, and the value heads stay as they are.
double RotaryBytes(const LaunchShape& launch) {
  return 2 * QueryKeyShare(launch.dims) * Bytes(launch, 0) + Bytes(launch, 1) + Bytes(launch, 2);
}

// As above, with the forward's input beside it; the workspace is written, then read.
double QkNormRotaryBackwardBytes(const LaunchShape& launch) {
  const double heads = QueryKeyShare(launch.dims) * (2 * Bytes(launch, 0) + Bytes(launch, 1));
  const bool adds = (launch.flags & kAccumulate) != 0;
  return heads + Bytes(launch, 2) + Bytes(launch, 3) + Bytes(launch, 4) +
         (adds ? 2 : 1) * Bytes(launch, 5) + 2 * Bytes(launch, 6) + Bytes(launch, 7);
}

// A bias gradient is one more read of dy.
double MatmulBackwardWeightBytes(const LaunchShape& launch) {
  return ArgumentBytes(launch) + (Bytes(launch, 3) > 0 ? Bytes(launch, 1) : 0);
}

// Bytes of the columns that adapters add to, of argument `index`, which has all N.
double AdaptedBytes(const LaunchShape& launch, size_t index) {
  return Bytes(launch, index) * AdaptedWidth(launch.dims) / static_cast<double>(launch.dims[2]);
}
double LoraUpBytes(const LaunchShape& launch) {
  const bool adds = (launch.flags & kAccumulate) != 0;
  return Bytes(launch, 0) + Bytes(launch, 1) + Bytes(launch, 2) +
         (adds ? 2 : 1) * AdaptedBytes(launch, 3);
}
// dy once for both.
double LoraUpBackwardBytes(const LaunchShape& launch) {
  const bool adds = (launch.flags & kAccumulate) != 0;
  return AdaptedBytes(launch, 0) + Bytes(launch, 1) + Bytes(launch, 2) + Bytes(launch, 3) +
         (adds ? 2 : 1) * Bytes(launch, 4);
}

// ---- recompute ---------------------------------------------------------------------------------

// GELU's n, of a product of M x N.
KernelDims ProductElements(const KernelDims& d) { return {d[0] * d[2]}; }

// ---- the table ---------------------------------------------------------------------------------

// The last place is SetExtraKernel's.
constinit std::array<KernelRow, kKernelSlots> g_table = {{
#define ZEROPLAN_KERNEL(id_, ...) {.id = KernelId::k##id_, __VA_ARGS__},
#include "core/program/kernel_rows.inc"
}};

const KernelRow& RowOf(KernelId id) { return g_table[static_cast<size_t>(id)]; }

}  // namespace

double NoFlops(const KernelDims&) { return 0; }
uint64_t NoWorkspace(const KernelDims&, Backend) { return 0; }

double ArgumentBytes(const LaunchShape& launch) {
  const KernelRow& row = RowOf(launch.id);
  double bytes = 0;
  for (size_t i = 0; i < launch.args.size(); ++i) {
    if (row.args[i] == kScratch) continue;
    const ArgMode mode = AccessMode(launch.id, static_cast<int>(i), launch.flags);
    bytes += Bytes(launch, i) * ((Reads(mode) ? 1 : 0) + (Writes(mode) ? 1 : 0));
  }
  return bytes;
}

const KernelRow& KernelInfo(KernelId id) { return RowOf(id); }

bool KernelExists(KernelId id) {
  return static_cast<size_t>(id) < kKernelSlots && !RowOf(id).name.empty();
}

void SetExtraKernel(const KernelRow& row) {
  KernelRow& extra = g_table.back();
  extra = row;
  extra.id = kExtraKernel;
}

std::string FormatDims(KernelId id, const KernelDims& dims, const KernelScalars& scalars) {
  const KernelRow& row = RowOf(id);
  std::string text;
  const auto append = [&](std::string_view name, auto value) {
    fmt::format_to(std::back_inserter(text), "{}{}={}", text.empty() ? "" : " ", name, value);
  };
  for (size_t i = 0; i < static_cast<size_t>(row.dims.size()); ++i) append(row.dims[i], dims[i]);
  for (size_t i = 0; i < static_cast<size_t>(row.scalars.size()); ++i) {
    if (scalars[i] != row.scalars[i].usual) append(row.scalars[i].name, scalars[i]);
  }
  return text;
}

KernelScalars UsualScalars(KernelId id) {
  KernelScalars scalars{};
  for (size_t i = 0; const KernelScalar& scalar : RowOf(id).scalars) scalars[i++] = scalar.usual;
  return scalars;
}

double UnfusedAttentionGemmFlops(KernelId id, const KernelDims& dims) {
  const KernelRow& row = RowOf(id);
  ZEROPLAN_CHECK(row.cost == CostKind::kUnfusedAttentionForward ||
                     row.cost == CostKind::kUnfusedAttentionBackward,
                 "{} is not unfused attention", row.name);
  return 2 * row.flops(dims);
}

ArgMode AccessMode(KernelId id, int index, uint8_t flags) {
  const ArgMode mode = RowOf(id).args[static_cast<size_t>(index)];
  switch (mode) {
    case ArgMode::kIn:
    case ArgMode::kOut:
    case ArgMode::kInOut:
      return mode;
    case ArgMode::kOutOrAdd:
      return (flags & kAccumulate) != 0 ? kInOut : kOut;
    case ArgMode::kOutOrAddDx:
      return (flags & kAddToOutput) != 0 ? kInOut : kOut;
    case ArgMode::kScratch:
      return kOut;
  }
  return mode;
}

uint64_t LaunchWorkspaceBytes(KernelId kernel, const KernelDims& dims, Backend backend,
                              bool documents, bool deterministic, bool own_documents) {
  const uint64_t of_row = KernelInfo(kernel).workspace_bytes(dims, backend);
  const bool backward = kernel == KernelId::kAttentionBackward;
  if (of_row == 0 || (!backward && kernel != KernelId::kAttentionForward)) return of_row;
  if (documents) {
    return AttentionDocumentsBytes(dims, backward, !own_documents && !deterministic);
  }
  return backward ? AttentionWorkspaceBytes(dims, deterministic) : of_row;
}

}  // namespace zeroplan
