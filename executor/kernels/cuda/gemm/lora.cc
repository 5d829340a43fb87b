// Products of adapters (core/model/lora.h), a product for each adapted linear. Legend: as in
// lora_parts.h.
#include "executor/kernels/cuda/cuda_kernels.h"
#include "executor/kernels/cuda/gemm/matmul_product.h"
#include "executor/kernels/lora_parts.h"

namespace zeroplan::cuda {
namespace {

Product Down(const KernelCall& call) {
  const auto [M, K, R] = FirstDims<3>(call.dims);
  return MakeProduct("lora_down", ForwardLayout(M, K, R, true), Arg(call, 0), Arg(call, 1),
                     Arg(call, 2), Arg(call, 3), {.scale = call.scalars[0]});
}

// Calls fn(product) for the product of each adapted linear.
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

template <typename Fn>
void ForEachUpData(const KernelCall& call, Fn&& fn) {
  const LoraShape shape(call.dims);
  shape.ForEach([&](const LoraShape::Part& p) {
    const KernelArg dy = From(Arg(call, 0), p.begin), dxa = From(Arg(call, 2), p.rank_begin),
                    b = From(Arg(call, 1), p.up_begin * shape.r);
    // dxa^T = b^T dy^T: by columns b is b^T, dy is dy^T.
    const GemmLayout layout = {.swapped = true,
                               .m = shape.r,
                               .n = shape.M,
                               .k = p.columns(),
                               .lda = shape.r,
                               .ldb = shape.N,
                               .ldd = shape.R};
    fn(MakeProduct("lora_up_backward_data", layout, dy, b, dxa, Arg(call, 3),
                   {.scale = call.scalars[0]}));
  });
}

template <typename Fn>
void ForEachUpWeight(const KernelCall& call, Fn&& fn) {
  const LoraShape shape(call.dims);
  shape.ForEach([&](const LoraShape::Part& p) {
    const KernelArg xa = From(Arg(call, 0), p.rank_begin), dy = From(Arg(call, 1), p.begin),
                    db = From(Arg(call, 2), p.up_begin * shape.r);
    // db^T = xa^T dy: by columns xa is xa^T, dy is n x M and must be transposed.
    const GemmLayout layout = {.transpose_b = true,
                               .m = shape.r,
                               .n = p.columns(),
                               .k = shape.M,
                               .lda = shape.R,
                               .ldb = shape.N,
                               .ldd = shape.r};
    fn(MakeProduct("lora_up_backward_weight", layout, xa, dy, db, Arg(call, 3),
                   {.c = call.has(kAccumulate) ? db : kAbsent}));
  });
}

}  // namespace

void LoraDown(const KernelCall& call) { Run(call, Down(call)); }
void PrepareLoraDown(const KernelCall& call) {
  Tune(call, Down(call));
  Plans(call).Save();
}

void LoraUp(const KernelCall& call) {
  ForEachUp(call, [&](const Product& product) { Run(call, product); });
}
void PrepareLoraUp(const KernelCall& call) {
  ForEachUp(call, [&](const Product& product) { Tune(call, product); });
  Plans(call).Save();
}

void LoraUpBackwardData(const KernelCall& call) {
  ForEachUpData(call, [&](const Product& product) { Run(call, product); });
}
void PrepareLoraUpBackwardData(const KernelCall& call) {
  ForEachUpData(call, [&](const Product& product) { Tune(call, product); });
  Plans(call).Save();
}

void LoraUpBackwardWeight(const KernelCall& call) {
  ForEachUpWeight(call, [&](const Product& product) { Run(call, product); });
}
void PrepareLoraUpBackwardWeight(const KernelCall& call) {
  ForEachUpWeight(call, [&](const Product& product) { Tune(call, product); });
  Plans(call).Save();
}

}  // namespace zeroplan::cuda
