// Backward pass of GPT-2. Legend in gpt2_graph.h. One buffer holds the gradient of the residual
// stream all the way; weight gradients come before data gradients so that what they alone need is
// freed first.
#include "core/lowering/gpt2_graph.h"

namespace zeroplan {

BufferId Gpt2Graph::ActivationGrad(const char* label, int layer, int64_t elements) {
  const BufferId id = Activation(label, layer, elements, dtype_);
  program_.buffers[id].role = Role::kActivationGrad;
  return id;
}

void Gpt2Graph::MatmulBackward(TensorRole w, TensorRole b, int layer, Ref a, Ref dy, Ref dx,
                               int64_t k, int64_t n) {
  emit_.Launch(KernelId::kMatmulBackwardWeight, {rows_, k, n}, kNoFlags,
               {a, dy, Grad(w, layer), Grad(b, layer)});
  emit_.Launch(KernelId::kMatmulBackwardData, {rows_, k, n}, kNoFlags, {dy, Param(w, layer), dx});
}

void Gpt2Graph::Backward() {
  const int last = static_cast<int>(layers_);
  emit_.Tag(Phase::kBackward, last);
  const BufferId dresidual = ActivationGrad("d_residual", -2, rows_ * hidden_);
  emit_.Launch(KernelId::kLayerNormBackward, {rows_, hidden_}, kNoFlags,
               {All(dfinal_MC_), All(f_.residual_MC.back()), Param(TensorRole::kLnfW, last),
                All(f_.final_stats_M2), All(dresidual), Grad(TensorRole::kLnfW, last),
                Grad(TensorRole::kLnfB, last)});
  for (int layer = last - 1; layer >= 0; --layer) LayerBackward(layer, dresidual);
  emit_.Tag(Phase::kBackward, kEmbeddingLayer);
  const Ref inputs_BT{program_.tokens_buffer, 0, static_cast<uint64_t>(rows_) * 4, 0};
  emit_.Launch(KernelId::kEmbedBackward, {batch_, seq_, hidden_, program_.model.vocab}, kNoFlags,
               {inputs_BT, All(dresidual), Grad(TensorRole::kWte, kEmbeddingLayer),
                Grad(TensorRole::kWpe, kEmbeddingLayer)});
}

void Gpt2Graph::AttentionBackward(int layer, Ref dattention, Ref dqkv) {
  const auto l = static_cast<size_t>(layer);
  const KernelDims dims = {batch_, seq_, hidden_, heads_};
  if (flash_attention_) {
    emit_.Launch(
        KernelId::kAttentionBackward, dims, kNoFlags,
        {dattention, All(f_.qkv_M3C[l]), All(f_.attention_MC[l]), All(f_.lse_BHT[l]), dqkv});
  } else {
    const BufferId dprobs = ActivationGrad("d_probs", layer, rows_ * heads_ * seq_);
    emit_.Launch(KernelId::kUnfusedAttentionBackward, dims, kNoFlags,
                 {dattention, All(f_.qkv_M3C[l]), All(f_.probs_BHTT[l]), dqkv, All(dprobs)});
  }
}

void Gpt2Graph::LayerBackward(int layer, BufferId dresidual_MC) {
  emit_.Tag(Phase::kBackward, layer);
  const auto l = static_cast<size_t>(layer);
  const Ref dresidual = All(dresidual_MC);

  const BufferId dfc = ActivationGrad("d_fc", layer, rows_ * ffn_);
  if (fused_gelu_) {
    const KernelDims dims = {rows_, ffn_, hidden_};
    emit_.Launch(KernelId::kMatmulBackwardWeight, dims, kNoFlags,
                 {All(f_.gelu_MF[l]), dresidual, Grad(TensorRole::kFcProjW, layer),
                  Grad(TensorRole::kFcProjB, layer)});
    emit_.Launch(KernelId::kMatmulGeluBackward, dims, kNoFlags,
                 {dresidual, Param(TensorRole::kFcProjW, layer), All(f_.fc_MF[l]), All(dfc)});
  } else {
    MatmulBackward(TensorRole::kFcProjW, TensorRole::kFcProjB, layer, All(f_.gelu_MF[l]), dresidual,
                   All(dfc), ffn_, hidden_);
    emit_.Launch(KernelId::kGeluBackward, {rows_ * ffn_}, kNoFlags, {All(f_.fc_MF[l]), All(dfc)});
  }
  const BufferId dln2 = ActivationGrad("d_ln2", layer, rows_ * hidden_);
  MatmulBackward(TensorRole::kFcW, TensorRole::kFcB, layer, All(f_.ln2_MC[l]), All(dfc), All(dln2),
                 hidden_, ffn_);
  emit_.Launch(
      KernelId::kLayerNormBackward, {rows_, hidden_}, kAddToOutput,
      {All(dln2), All(f_.middle_MC[l]), Param(TensorRole::kLn2W, layer), All(f_.ln2_stats_M2[l]),
       dresidual, Grad(TensorRole::kLn2W, layer), Grad(TensorRole::kLn2B, layer)});

  const BufferId dattention = ActivationGrad("d_attention", layer, rows_ * hidden_);
  MatmulBackward(TensorRole::kProjW, TensorRole::kProjB, layer, All(f_.attention_MC[l]), dresidual,
                 All(dattention), hidden_, hidden_);
  const BufferId dqkv = ActivationGrad("d_qkv", layer, rows_ * 3 * hidden_);
  AttentionBackward(layer, All(dattention), All(dqkv));
  const BufferId dln1 = ActivationGrad("d_ln1", layer, rows_ * hidden_);
  MatmulBackward(TensorRole::kQkvW, TensorRole::kQkvB, layer, All(f_.ln1_MC[l]), All(dqkv),
                 All(dln1), hidden_, 3 * hidden_);
  emit_.Launch(
      KernelId::kLayerNormBackward, {rows_, hidden_}, kAddToOutput,
      {All(dln1), All(f_.residual_MC[l]), Param(TensorRole::kLn1W, layer), All(f_.ln1_stats_M2[l]),
       dresidual, Grad(TensorRole::kLn1W, layer), Grad(TensorRole::kLn1B, layer)});
}

}  // namespace zeroplan
