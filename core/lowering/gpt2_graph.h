// The kernels of GPT-2's forward and backward pass over whole parameters, in the order one stream
// runs them. Legend: B micro-batch, T sequence, C hidden, F ffn, H heads, M = B*T rows, Vp padded
// vocabulary.
#pragma once

#include <cstddef>
#include <vector>

#include "core/lowering/emitter.h"
#include "core/program/program.h"

namespace zeroplan {

// Buffers of one forward pass; [layer] where a vector.
struct ForwardBuffers {
  std::vector<BufferId> residual_MC;  // layers + 1: each layer's input, the last one's output
  std::vector<BufferId> ln1_MC, ln1_stats_M2, qkv_M3C, attention_MC;
  std::vector<BufferId> lse_BHT, probs_BHTT;  // the one with flash attention, the other without
  std::vector<BufferId> middle_MC, ln2_MC, ln2_stats_M2, fc_MF, gelu_MF;
  BufferId final_MC = kNoBuffer, final_stats_M2 = kNoBuffer;
};

class Gpt2Graph {
 public:
  // Emits into `section` of `program` for `batch` sequences. REQUIRES: the units' param_full
  // buffers, state and tokens exist; for backward the grad_full buffers too.
  Gpt2Graph(Program& program, Section section, int64_t batch, bool flash_attention);

  // Embedding and all layers (not the final norm).
  void Forward();
  // Final norm, then logits and loss by chunks of rows; with `train` also the gradients of logits,
  // head weight and final norm's output. Adds the mean loss to StepState.
  void Loss(bool train, uint64_t logits_chunk_bytes);
  void Backward();
  // Logits of the row StepState::position to `logits_host`.
  void RowLogits(BufferId logits_host);

 private:
  Ref Param(TensorRole role, int layer) const;
  Ref Grad(TensorRole role, int layer) const;
  Ref SlotRef(TensorRole role, int layer, const std::vector<BufferId>& by_unit) const;
  BufferId Activation(const char* label, int layer, int64_t elements, Dtype dtype);
  BufferId ActivationGrad(const char* label, int layer, int64_t elements);
  BufferId ForwardNorm(const char* label, int layer, TensorRole w, TensorRole b, BufferId x,
                       BufferId* stats);
  void LayerForward(int layer);
  void AttentionForward(int layer);
  void LayerBackward(int layer, BufferId dresidual_MC);
  void AttentionBackward(int layer, Ref dattention, Ref dqkv);
  // Gradients of weight and bias of y = a*w + bias, then (where `dx`) of a.
  void MatmulBackward(TensorRole w, TensorRole b, int layer, Ref a, Ref dy, Ref dx, int64_t k,
                      int64_t n);
  Ref All(BufferId id) const { return Whole(program_, id); }

  Program& program_;
  Emitter emit_;
  const int64_t batch_, seq_, rows_, hidden_, ffn_, heads_, layers_, padded_vocab_;
  const Dtype dtype_;
  const bool flash_attention_;
  const bool fused_gelu_;       // the backend's products apply GELU to their sums
  std::vector<int> tensor_of_;  // [layer + 1][role]
  std::vector<BufferId> params_, grads_;
  ForwardBuffers f_;
  BufferId dfinal_MC_ = kNoBuffer;
};

}  // namespace zeroplan
