// Attention by batched matrix products, one batch over the heads of each sequence, q, k and v where
// they lie in qkv; see executor/kernels/unfused_attention.cc for the formulas.
//
// Legend: B micro-batch, T sequence, C hidden, H heads, D = C/H.
#include <cmath>

#include "executor/kernels/cuda/attention/causal_softmax.h"
#include "executor/kernels/cuda/attention/ungrouped.h"
#include "executor/kernels/cuda/cuda_kernels.h"
#include "executor/kernels/cuda/gemm/matmul_product.h"
#include "executor/kernels/cuda/library_check.h"

namespace zeroplan::cuda {
namespace {

struct Shape : UngroupedDims {
  explicit Shape(const KernelCall& call) : UngroupedDims(UngroupedDimsOf(call)) {}
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(C / H)); }
};

KernelArg From(const KernelArg& arg, int64_t element) {
  return {ElementAt(arg, element), arg.bytes, arg.dtype};
}

// The products of sequence b. `use` runs or tunes one.
class Sequence {
 public:
  using Use = void (*)(const KernelCall&, const Product&);

  Sequence(const KernelCall& call, int64_t b, const KernelArg& workspace, Use use)
      : call_(call), shape_(call), b_(b), workspace_(workspace), use_(use) {}

  void Multiply(AttentionProduct product, const KernelArg& first, const KernelArg& second,
                const KernelArg& to) const {
    use_(call_,
         MakeProduct("unfused attention", AttentionLayout(product, shape_.T, shape_.C, shape_.H),
                     first, second, to, workspace_));
  }
  // part 0: queries (or their gradients), 1: keys, 2: values.
  KernelArg Part(const KernelArg& qkv_BT3C, int part) const {
    return From(qkv_BT3C, b_ * shape_.T * 3 * shape_.C + part * shape_.C);
  }
  KernelArg Rows(const KernelArg& out_BTC) const { return From(out_BTC, b_ * shape_.T * shape_.C); }
  KernelArg Squares(const KernelArg& probs_BHTT) const {
    return From(probs_BHTT, b_ * shape_.H * shape_.T * shape_.T);
  }

 private:
  const KernelCall& call_;
  Shape shape_;
  int64_t b_;
  const KernelArg& workspace_;
  Use use_;
};

void TuneOne(const KernelCall& call, const Product& product) { Tune(call, product); }

void Scores(const KernelCall& call, int64_t b, Sequence::Use use) {
  const Sequence s(call, b, Arg(call, 3), use);
  const KernelArg &qkv = Arg(call, 0), &probs = Arg(call, 2);
  s.Multiply(AttentionProduct::kScores, s.Part(qkv, 0), s.Part(qkv, 1), s.Squares(probs));
}

void Outputs(const KernelCall& call, int64_t b, Sequence::Use use) {
  const Sequence s(call, b, Arg(call, 3), use);
  const KernelArg &qkv = Arg(call, 0), &out = Arg(call, 1), &probs = Arg(call, 2);
  s.Multiply(AttentionProduct::kOut, s.Squares(probs), s.Part(qkv, 2), s.Rows(out));
}

void ProbGradients(const KernelCall& call, int64_t b, Sequence::Use use) {
  const Sequence s(call, b, Arg(call, 5), use);
  const KernelArg &dout = Arg(call, 0), &qkv = Arg(call, 1), &probs = Arg(call, 2);
  const KernelArg &dqkv = Arg(call, 3), &dprobs = Arg(call, 4);
  s.Multiply(AttentionProduct::kDValue, s.Squares(probs), s.Rows(dout), s.Part(dqkv, 2));
  s.Multiply(AttentionProduct::kDProbs, s.Rows(dout), s.Part(qkv, 2), s.Squares(dprobs));
}

void ScoreGradients(const KernelCall& call, int64_t b, Sequence::Use use) {
  const Sequence s(call, b, Arg(call, 5), use);
  const KernelArg &qkv = Arg(call, 1), &dqkv = Arg(call, 3), &ds = Arg(call, 4);
  s.Multiply(AttentionProduct::kDQuery, s.Squares(ds), s.Part(qkv, 1), s.Part(dqkv, 0));
  s.Multiply(AttentionProduct::kDKey, s.Squares(ds), s.Part(qkv, 0), s.Part(dqkv, 1));
}

}  // namespace

void UnfusedAttentionForward(const KernelCall& call) {
  const Shape s(call);
  for (int64_t b = 0; b < s.B; ++b) Scores(call, b, Run);
  const KernelArg& probs = Arg(call, 2);
  LaunchCausalSoftmax({probs.data, probs.dtype}, s.B * s.H * s.T, s.T, s.scale(), StreamOf(call));
  CheckKernelLaunch("a softmax");
  for (int64_t b = 0; b < s.B; ++b) Outputs(call, b, Run);
}

void UnfusedAttentionBackward(const KernelCall& call) {
  const Shape s(call);
  for (int64_t b = 0; b < s.B; ++b) ProbGradients(call, b, Run);
  const KernelArg &probs = Arg(call, 2), &dprobs = Arg(call, 4);
  if (probs.dtype != dprobs.dtype) [[unlikely]] {
    ThrowRuntime("unfused attention: probs have dtype {}, their gradients {}; give them one",
                 DtypeName(probs.dtype), DtypeName(dprobs.dtype));
  }
  LaunchCausalSoftmaxBackward({probs.data, probs.dtype}, {dprobs.data, dprobs.dtype},
                              s.B * s.H * s.T, s.T, s.scale(), StreamOf(call));
  CheckKernelLaunch("a softmax' gradient");
  for (int64_t b = 0; b < s.B; ++b) ScoreGradients(call, b, Run);
}

// All sequences' products are alike: the first one's stand for them.
void PrepareUnfusedAttentionForward(const KernelCall& call) {
  Scores(call, 0, TuneOne);
  Outputs(call, 0, TuneOne);
  Plans(call).Save();
}

void PrepareUnfusedAttentionBackward(const KernelCall& call) {
  ProbGradients(call, 0, TuneOne);
  ScoreGradients(call, 0, TuneOne);
  Plans(call).Save();
}

}  // namespace zeroplan::cuda
