// Products of adapters (core/model/lora.h). Those in 16 bit that read a wide matrix, whose rows are
// whole vectors, run on kernels of our own (thin_product.h), the others as a product of the library
// for each adapted linear. Legend: as in lora_parts.h.
#include <initializer_list>

#include "executor/kernels/cuda/cuda_kernels.h"
#include "executor/kernels/cuda/gemm/matmul_product.h"
#include "executor/kernels/cuda/gemm/thin_product.h"
#include "executor/kernels/cuda/launch_util.h"
#include "executor/kernels/lora_parts.h"

namespace zeroplan::cuda {
namespace {

// ---- our own kernels ---------------------------------------------------------------------------

// The dtype of those arguments that are there, or kU8 where they differ.
Dtype CommonDtype(const KernelCall& call, std::initializer_list<size_t> indices) {
  const Dtype dtype = Arg(call, *indices.begin()).dtype;
  for (const size_t index : indices) {
    if (Present(Arg(call, index)) && Arg(call, index).dtype != dtype) return Dtype::kU8;
  }
  return dtype;
}

// Of a product with A alone: x_MK, rows_MR beside a_RK.
ThinProduct ThinOfDown(const KernelCall& call, const ThinPart& part, Dtype dtype) {
  const auto [M, K, R] = FirstDims<3>(call.dims);
  ThinProduct product{.parts = {part}, .count = 1, .dtype = dtype, .across = true};
  product.parts[0].C = K;
  product.scale = call.scalars[0];
  product.M = M;
  product.r = product.R = R;
  product.x_stride = K;
  return product;
}

ThinProduct ThinDown(const KernelCall& call) {
  return ThinOfDown(call,
                    {.x_MC = Arg(call, 0).data,
                     .columns_Cr = Arg(call, 1).data,
                     .row_sums_Mr = Arg(call, 2).data},
                    CommonDtype(call, {0, 1, 2}));
}

ThinProduct ThinDownWeight(const KernelCall& call) {
  ThinProduct product = ThinOfDown(call,
                                   {.x_MC = Arg(call, 0).data,
                                    .rows_Mr = Arg(call, 1).data,
                                    .column_sums_Cr = Arg(call, 4).data},
                                   CommonDtype(call, {0, 1}));
  product.sums_dtype = Arg(call, 4).dtype;
  product.add = call.has(kAccumulate);
  return product;
}

// Of a product with each linear's B: fn(part, p) sets what is not in it yet.
template <typename Fn>
ThinProduct ThinOfUp(const KernelCall& call, Dtype dtype, Fn&& fn) {
  const LoraShape shape(call.dims);
  ThinProduct product{.dtype = dtype};
  product.M = shape.M;
  product.r = shape.r;
  product.R = shape.R;
  product.x_stride = shape.N;
  shape.ForEach([&](const LoraShape::Part& p) {
    ThinPart& part = product.parts[product.count++];
    part.C = p.columns();
    fn(part, p, p.up_begin * shape.r);
  });
  return product;
}

ThinProduct ThinUpBackward(const KernelCall& call) {
  ThinProduct product = ThinOfUp(call, CommonDtype(call, {0, 1, 2, 3}),
                                 [&](ThinPart& part, const LoraShape::Part& p, int64_t b_begin) {
                                   part.x_MC = From(Arg(call, 0), p.begin).data;
                                   part.rows_Mr = From(Arg(call, 1), p.rank_begin).data;
                                   part.columns_Cr = From(Arg(call, 2), b_begin).data;
                                   part.row_sums_Mr = From(Arg(call, 3), p.rank_begin).data;
                                   part.column_sums_Cr = From(Arg(call, 4), b_begin).data;
                                 });
  product.scale = call.scalars[0];
  product.sums_dtype = Arg(call, 4).dtype;
  product.add = call.has(kAccumulate);
  return product;
}

void RunSums(const KernelCall& call, const ThinProduct& product, size_t scratch) {
  int64_t columns[kMostThinParts] = {};
  for (int i = 0; i < product.count; ++i) columns[i] = product.parts[i].C;
  const int64_t bytes =
      ThinSumsBytes(product.M, product.r, columns, product.parts[0].row_sums_Mr != nullptr,
                    product.parts[0].column_sums_Cr != nullptr);
  LaunchThinSums(product, ScratchOf(call, scratch, static_cast<uint64_t>(bytes)), StreamOf(call));
  CheckLaunched(call);
}

// ---- the library's products --------------------------------------------------------------------

Product Down(const KernelCall& call) {
  const auto [M, K, R] = FirstDims<3>(call.dims);
  return MakeProduct("lora_down", ForwardLayout(M, K, R, true), Arg(call, 0), Arg(call, 1),
                     Arg(call, 2), Arg(call, 3), {.scale = call.scalars[0]});
}

Product DownWeight(const KernelCall& call) {
  const auto [M, K, R] = FirstDims<3>(call.dims);
  const KernelArg& da = Arg(call, 4);
  return MakeProduct("lora_down_backward", BackwardWeightLayout(M, K, R, true), Arg(call, 0),
                     Arg(call, 1), da, Arg(call, 5), {.c = call.has(kAccumulate) ? da : kAbsent});
}

Product DownData(const KernelCall& call) {
  const auto [M, K, R] = FirstDims<3>(call.dims);
  const KernelArg& dx = Arg(call, 3);
  return MakeProduct("lora_down_backward", BackwardDataLayout(M, K, R, true), Arg(call, 1),
                     Arg(call, 2), dx, Arg(call, 5), {.c = call.has(kAddToOutput) ? dx : kAbsent});
}

// Calls fn(product) for each adapted linear's.
template <typename Fn>
void ForEachUp(const KernelCall& call, Fn&& fn) {
  const LoraShape shape(call.dims);
  const KernelArg& residual = Arg(call, 2);
  shape.ForEach([&](const LoraShape::Part& p) {
    const KernelArg xa = From(Arg(call, 0), p.rank_begin), y = From(Arg(call, 3), p.begin),
                    b = From(Arg(call, 1), p.up_begin * shape.r),
                    start = Present(residual) ? From(residual, p.begin) : kAbsent;
    // y^T = b xa^T: by columns b is r x n and must be transposed, xa is xa^T.
    const GemmLayout layout = {.transpose_a = true,
                               .swapped = true,
                               .m = p.columns(),
                               .n = shape.M,
                               .k = shape.r,
                               .lda = shape.r,
                               .ldb = shape.R,
                               .ldd = shape.N};
    fn(MakeProduct("lora_up", layout, xa, b, y, Arg(call, 4),
                   {.c = call.has(kAccumulate) ? y : start}));
  });
}

// The same, of both gradients.
template <typename Fn>
void ForEachUpBackward(const KernelCall& call, Fn&& fn) {
  const LoraShape shape(call.dims);
  shape.ForEach([&](const LoraShape::Part& p) {
    const KernelArg dy = From(Arg(call, 0), p.begin), xa = From(Arg(call, 1), p.rank_begin),
                    b = From(Arg(call, 2), p.up_begin * shape.r),
                    dxa = From(Arg(call, 3), p.rank_begin),
                    db = From(Arg(call, 4), p.up_begin * shape.r);
    // dxa^T = b^T dy^T: by columns b is b^T, dy is dy^T.
    const GemmLayout data = {.swapped = true,
                             .m = shape.r,
                             .n = shape.M,
                             .k = p.columns(),
                             .lda = shape.r,
                             .ldb = shape.N,
                             .ldd = shape.R};
    fn(MakeProduct("lora_up_backward", data, dy, b, dxa, Arg(call, 5), {.scale = call.scalars[0]}));
    // db^T = xa^T dy: by columns xa is xa^T, dy is n x M and must be transposed.
    const GemmLayout weight = {.transpose_b = true,
                               .m = shape.r,
                               .n = p.columns(),
                               .k = shape.M,
                               .lda = shape.R,
                               .ldb = shape.N,
                               .ldd = shape.r};
    fn(MakeProduct("lora_up_backward", weight, xa, dy, db, Arg(call, 5),
                   {.c = call.has(kAccumulate) ? db : kAbsent}));
  });
}

auto Running(const KernelCall& call) {
  return [&call](const Product& product) { Run(call, product); };
}
auto Tuning(const KernelCall& call) {
  return [&call](const Product& product) { Tune(call, product); };
}

}  // namespace

void LoraDown(const KernelCall& call) {
  const ThinProduct thin = ThinDown(call);
  IsThin(thin) ? RunSums(call, thin, 3) : Run(call, Down(call));
}
void PrepareLoraDown(const KernelCall& call) {
  if (IsThin(ThinDown(call))) return;
  Tune(call, Down(call));
  Plans(call).Save();
}

void LoraDownBackward(const KernelCall& call) {
  const ThinProduct thin = ThinDownWeight(call);
  IsThin(thin) ? RunSums(call, thin, 5) : Run(call, DownWeight(call));
  Run(call, DownData(call));
}
void PrepareLoraDownBackward(const KernelCall& call) {
  if (!IsThin(ThinDownWeight(call))) Tune(call, DownWeight(call));
  Tune(call, DownData(call));
  Plans(call).Save();
}

void LoraUp(const KernelCall& call) { ForEachUp(call, Running(call)); }
void PrepareLoraUp(const KernelCall& call) {
  ForEachUp(call, Tuning(call));
  Plans(call).Save();
}

void LoraUpBackward(const KernelCall& call) {
  const ThinProduct thin = ThinUpBackward(call);
  if (!IsThin(thin)) return ForEachUpBackward(call, Running(call));
  RunSums(call, thin, 5);
}
void PrepareLoraUpBackward(const KernelCall& call) {
  if (IsThin(ThinUpBackward(call))) return;
  ForEachUpBackward(call, Tuning(call));
  Plans(call).Save();
}

}  // namespace zeroplan::cuda
