// Attention by batched matrix products, q, k and v where they lie in qkv: for each sequence a batch
// over the heads of keys, with one query head of each, as often as query heads share one. See
// executor/kernels/unfused_attention.cc for the formulas.
//
// Legend: B micro-batch, T sequence, H heads of queries, G of keys and values, D head size,
// N = (H+2G)*D.
#include <algorithm>
#include <cmath>

#include "executor/kernels/attention_dims.h"
#include "executor/kernels/cuda/attention/attention_kernels.h"
#include "executor/kernels/cuda/cuda_kernels.h"
#include "executor/kernels/cuda/gemm/matmul_product.h"
#include "executor/kernels/cuda/library_check.h"

namespace zeroplan::cuda {
namespace {

float Scale(const AttentionDims& dims) { return 1.0f / std::sqrt(static_cast<float>(dims.D)); }

KernelArg From(const KernelArg& arg, int64_t element) {
  return {ElementAt(arg, element), arg.bytes, arg.dtype};
}

// Heads of sequence b that share no keys: query heads r, r + H/G, ..., one for each head of keys.
// Their products; `use` runs or tunes one.
class Heads {
 public:
  using Use = void (*)(const KernelCall&, const Product&);

  Heads(const KernelCall& call, int64_t b, int64_t r, const KernelArg& workspace, Use use)
      : call_(call), dims_(AttentionDimsOf(call)), b_(b), r_(r), workspace_(workspace), use_(use) {}

  void Multiply(AttentionProduct product, const KernelArg& first, const KernelArg& second,
                const KernelArg& to) const {
    use_(call_, MakeProduct("unfused attention", AttentionLayout(product, dims_), first, second, to,
                            workspace_));
  }
  // Into the gradient of keys or values: query heads that share them add up there, in its dtype.
  void MultiplyShared(AttentionProduct product, const KernelArg& first, const KernelArg& second,
                      const KernelArg& to) const {
    use_(call_, MakeProduct("unfused attention", AttentionLayout(product, dims_), first, second, to,
                            workspace_, {.c = r_ == 0 ? kAbsent : to}));
  }
  KernelArg Queries(const KernelArg& qkv_BTN) const { return Part(qkv_BTN, dims_.QueryColumn(r_)); }
  KernelArg Keys(const KernelArg& qkv_BTN) const { return Part(qkv_BTN, dims_.KeyColumn(0)); }
  KernelArg Values(const KernelArg& qkv_BTN) const { return Part(qkv_BTN, dims_.ValueColumn(0)); }
  KernelArg Rows(const KernelArg& out_BTHD) const {
    return From(out_BTHD, b_ * dims_.T * dims_.OutRow() + r_ * dims_.D);
  }
  KernelArg Squares(const KernelArg& probs_BHTT) const {
    return From(probs_BHTT, (b_ * dims_.H + r_) * dims_.T * dims_.T);
  }

 private:
  KernelArg Part(const KernelArg& qkv_BTN, int64_t column) const {
    return From(qkv_BTN, b_ * dims_.T * dims_.QkvRow() + column);
  }

  const KernelCall& call_;
  AttentionDims dims_;
  int64_t b_, r_;
  const KernelArg& workspace_;
  Use use_;
};

void TuneOne(const KernelCall& call, const Product& product) { Tune(call, product); }

void Scores(const KernelCall& call, int64_t b, int64_t r, Heads::Use use) {
  const Heads s(call, b, r, Arg(call, 3), use);
  const KernelArg &qkv = Arg(call, 0), &probs = Arg(call, 2);
  s.Multiply(AttentionProduct::kScores, s.Queries(qkv), s.Keys(qkv), s.Squares(probs));
}

void Outputs(const KernelCall& call, int64_t b, int64_t r, Heads::Use use) {
  const Heads s(call, b, r, Arg(call, 3), use);
  const KernelArg &qkv = Arg(call, 0), &out = Arg(call, 1), &probs = Arg(call, 2);
  s.Multiply(AttentionProduct::kOut, s.Squares(probs), s.Values(qkv), s.Rows(out));
}

void ProbGradients(const KernelCall& call, int64_t b, int64_t r, Heads::Use use) {
  const Heads s(call, b, r, Arg(call, 5), use);
  const KernelArg &dout = Arg(call, 0), &qkv = Arg(call, 1), &probs = Arg(call, 2);
  const KernelArg &dqkv = Arg(call, 3), &dprobs = Arg(call, 4);
  s.MultiplyShared(AttentionProduct::kDValue, s.Squares(probs), s.Rows(dout), s.Values(dqkv));
  s.Multiply(AttentionProduct::kDProbs, s.Rows(dout), s.Values(qkv), s.Squares(dprobs));
}

void ScoreGradients(const KernelCall& call, int64_t b, int64_t r, Heads::Use use) {
  const Heads s(call, b, r, Arg(call, 5), use);
  const KernelArg &qkv = Arg(call, 1), &dqkv = Arg(call, 3), &ds = Arg(call, 4);
  s.Multiply(AttentionProduct::kDQuery, s.Squares(ds), s.Keys(qkv), s.Queries(dqkv));
  s.MultiplyShared(AttentionProduct::kDKey, s.Squares(ds), s.Queries(qkv), s.Keys(dqkv));
}

using Step = void (*)(const KernelCall& call, int64_t b, int64_t r, Heads::Use use);

void RunAll(const KernelCall& call, const AttentionDims& dims, Step step) {
  for (int64_t b = 0; b < dims.B; ++b) {
    for (int64_t r = 0; r < dims.Sharing(); ++r) step(call, b, r, Run);
  }
}

// All sequences' products are alike, and those of all heads but the first, which adds to nothing.
void TuneAll(const KernelCall& call, Step step) {
  const int64_t kinds = std::min<int64_t>(AttentionDimsOf(call).Sharing(), 2);
  for (int64_t r = 0; r < kinds; ++r) step(call, 0, r, TuneOne);
}

}  // namespace

void UnfusedAttentionForward(const KernelCall& call) {
  const AttentionDims s = AttentionDimsOf(call);
  RunAll(call, s, Scores);
  const KernelArg& probs = Arg(call, 2);
  LaunchCausalSoftmax({probs.data, probs.dtype}, {Arg(call, 4).as<const int32_t>(), s.H},
                      s.B * s.H * s.T, s.T, Scale(s), StreamOf(call));
  CheckKernelLaunch("a softmax");
  RunAll(call, s, Outputs);
}

void UnfusedAttentionBackward(const KernelCall& call) {
  const AttentionDims s = AttentionDimsOf(call);
  RunAll(call, s, ProbGradients);
  const KernelArg &probs = Arg(call, 2), &dprobs = Arg(call, 4);
  if (probs.dtype != dprobs.dtype) [[unlikely]] {
    ThrowRuntime("unfused attention: probs have dtype {}, their gradients {}; give them one",
                 DtypeName(probs.dtype), DtypeName(dprobs.dtype));
  }
  LaunchCausalSoftmaxBackward({probs.data, probs.dtype}, {dprobs.data, dprobs.dtype},
                              s.B * s.H * s.T, s.T, Scale(s), StreamOf(call));
  CheckKernelLaunch("a softmax' gradient");
  RunAll(call, s, ScoreGradients);
}

void PrepareUnfusedAttentionForward(const KernelCall& call) {
  TuneAll(call, Scores);
  TuneAll(call, Outputs);
  Plans(call).Save();
}

void PrepareUnfusedAttentionBackward(const KernelCall& call) {
  TuneAll(call, ProbGradients);
  TuneAll(call, ScoreGradients);
  Plans(call).Save();
}

}  // namespace zeroplan::cuda
