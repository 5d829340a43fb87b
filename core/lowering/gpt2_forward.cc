// Forward pass and loss of GPT-2. Legend in gpt2_graph.h.
#include <algorithm>
#include <cstddef>

#include "core/lowering/gpt2_graph.h"
#include "core/program/step_state.h"

namespace zeroplan {
namespace {

// Rows of a chunk of logits: as few chunks as `most_rows` allows, of equal size but for the last,
// and that in whole tiles of the head's products where it fits.
int64_t LogitsChunkRows(int64_t rows, int64_t most_rows) {
  constexpr int64_t kTileRows = 128;
  const int64_t chunks = (rows + most_rows - 1) / most_rows;
  const int64_t equal = (rows + chunks - 1) / chunks;
  const int64_t tiled = (equal + kTileRows - 1) / kTileRows * kTileRows;
  return tiled <= most_rows ? tiled : equal;
}

}  // namespace

Gpt2Graph::Gpt2Graph(Program& program, Section section, int64_t batch, bool flash_attention)
    : program_(program),
      emit_(program, program.section(section)),
      batch_(batch),
      seq_(program.setup.batch.seq_len),
      rows_(batch * seq_),
      hidden_(program.model.hidden),
      ffn_(program.model.ffn),
      heads_(program.model.heads),
      layers_(program.model.layers),
      padded_vocab_(program.model.padded_vocab),
      dtype_(program.setup.precision.dtype),
      flash_attention_(flash_attention),
      fused_gelu_(program.backend == Backend::kCuda && DtypeBytes(dtype_) == 2),
      params_(UnitBuffers(program, Role::kParamFull)),
      grads_(UnitBuffers(program, Role::kGradFull)) {
  tensor_of_.assign(static_cast<size_t>(layers_ + 2) * kTensorRoles, -1);
  const auto& tensors = *program.layout.tensors;
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensor_of_[static_cast<size_t>(tensors[i].layer + 1) * kTensorRoles +
               static_cast<size_t>(tensors[i].role)] = static_cast<int>(i);
  }
  const auto n = static_cast<size_t>(layers_);
  f_.residual_MC.assign(n + 1, kNoBuffer);
  for (auto* list :
       {&f_.ln1_MC, &f_.ln1_stats_M2, &f_.qkv_M3C, &f_.attention_MC, &f_.lse_BHT, &f_.probs_BHTT,
        &f_.middle_MC, &f_.ln2_MC, &f_.ln2_stats_M2, &f_.fc_MF, &f_.gelu_MF}) {
    list->assign(n, kNoBuffer);
  }
}

Ref Gpt2Graph::SlotRef(TensorRole role, int layer, const std::vector<BufferId>& by_unit) const {
  const int tensor =
      tensor_of_[static_cast<size_t>(layer + 1) * kTensorRoles + static_cast<size_t>(role)];
  const ParamLayout::Place place = program_.layout.place[static_cast<size_t>(tensor)];
  const TensorSlot& slot =
      program_.layout.units[static_cast<size_t>(place.unit)].slots[static_cast<size_t>(place.slot)];
  const BufferId buffer = by_unit[static_cast<size_t>(place.unit)];
  const uint64_t size = DtypeBytes(program_.buffers[buffer].dtype);
  return {buffer, slot.offset * size, slot.elements * size, 0};
}
Ref Gpt2Graph::Param(TensorRole role, int layer) const { return SlotRef(role, layer, params_); }
Ref Gpt2Graph::Grad(TensorRole role, int layer) const { return SlotRef(role, layer, grads_); }

BufferId Gpt2Graph::Activation(const char* label, int layer, int64_t elements, Dtype dtype) {
  const BufferId id = AddBuffer(program_, label, Role::kActivation, dtype,
                                static_cast<uint64_t>(elements) * DtypeBytes(dtype));
  program_.buffers[id].layer = layer;
  program_.buffers[id].memory_class = MemoryClass::kActivations;
  return id;
}

BufferId Gpt2Graph::ForwardNorm(const char* label, int layer, TensorRole w, TensorRole b,
                                BufferId x, BufferId* stats) {
  const BufferId y = Activation(label, layer, rows_ * hidden_, dtype_);
  *stats = Activation("ln_stats", layer, rows_ * 2, Dtype::kF32);
  emit_.Launch(KernelId::kLayerNormForward, {rows_, hidden_}, kNoFlags,
               {All(x), Param(w, layer), Param(b, layer), All(y), All(*stats)}, Stream::kCompute,
               {program_.model.layer_norm_eps});
  return y;
}

void Gpt2Graph::Forward() {
  emit_.Tag(Phase::kForward, kEmbeddingLayer);
  f_.residual_MC[0] = Activation("residual", 0, rows_ * hidden_, dtype_);
  const BufferId tokens = program_.tokens_buffer;
  const uint64_t inputs_bytes = static_cast<uint64_t>(rows_) * DtypeBytes(Dtype::kI32);
  emit_.Launch(KernelId::kEmbedForward, {batch_, seq_, hidden_, program_.model.vocab}, kNoFlags,
               {Ref{tokens, 0, inputs_bytes, 0}, Param(TensorRole::kWte, kEmbeddingLayer),
                Param(TensorRole::kWpe, kEmbeddingLayer), All(f_.residual_MC[0])});
  for (int layer = 0; layer < layers_; ++layer) LayerForward(layer);
}

void Gpt2Graph::LayerForward(int layer) {
  emit_.Tag(Phase::kForward, layer);
  const auto l = static_cast<size_t>(layer);
  const Ref none;
  f_.ln1_MC[l] = ForwardNorm("ln1", layer, TensorRole::kLn1W, TensorRole::kLn1B, f_.residual_MC[l],
                             &f_.ln1_stats_M2[l]);
  f_.qkv_M3C[l] = Activation("qkv", layer, rows_ * 3 * hidden_, dtype_);
  emit_.Launch(KernelId::kMatmulForward, {rows_, hidden_, 3 * hidden_}, kNoFlags,
               {All(f_.ln1_MC[l]), Param(TensorRole::kQkvW, layer), Param(TensorRole::kQkvB, layer),
                none, All(f_.qkv_M3C[l])});
  AttentionForward(layer);
  // The residual additions ride on the projections: y = a*w + bias + residual.
  f_.middle_MC[l] = Activation("middle", layer, rows_ * hidden_, dtype_);
  emit_.Launch(KernelId::kMatmulForward, {rows_, hidden_, hidden_}, kNoFlags,
               {All(f_.attention_MC[l]), Param(TensorRole::kProjW, layer),
                Param(TensorRole::kProjB, layer), All(f_.residual_MC[l]), All(f_.middle_MC[l])});
  f_.ln2_MC[l] = ForwardNorm("ln2", layer, TensorRole::kLn2W, TensorRole::kLn2B, f_.middle_MC[l],
                             &f_.ln2_stats_M2[l]);
  f_.fc_MF[l] = Activation("fc", layer, rows_ * ffn_, dtype_);
  f_.gelu_MF[l] = Activation("gelu", layer, rows_ * ffn_, dtype_);
  const Ref ln2 = All(f_.ln2_MC[l]), fc = All(f_.fc_MF[l]), gelu = All(f_.gelu_MF[l]);
  const Ref fc_w = Param(TensorRole::kFcW, layer), fc_b = Param(TensorRole::kFcB, layer);
  const KernelDims fc_dims = {rows_, hidden_, ffn_};
  if (fused_gelu_) {
    emit_.Launch(KernelId::kMatmulGeluForward, fc_dims, kNoFlags, {ln2, fc_w, fc_b, fc, gelu});
  } else {
    emit_.Launch(KernelId::kMatmulForward, fc_dims, kNoFlags, {ln2, fc_w, fc_b, none, fc});
    emit_.Launch(KernelId::kGeluForward, {rows_ * ffn_}, kNoFlags, {fc, gelu});
  }
  f_.residual_MC[l + 1] = Activation("residual", layer + 1, rows_ * hidden_, dtype_);
  emit_.Launch(
      KernelId::kMatmulForward, {rows_, ffn_, hidden_}, kNoFlags,
      {All(f_.gelu_MF[l]), Param(TensorRole::kFcProjW, layer), Param(TensorRole::kFcProjB, layer),
       All(f_.middle_MC[l]), All(f_.residual_MC[l + 1])});
}

void Gpt2Graph::AttentionForward(int layer) {
  const auto l = static_cast<size_t>(layer);
  f_.attention_MC[l] = Activation("attention", layer, rows_ * hidden_, dtype_);
  const KernelDims dims = {batch_, seq_, hidden_, heads_};
  if (flash_attention_) {
    f_.lse_BHT[l] = Activation("lse", layer, rows_ * heads_, Dtype::kF32);
    emit_.Launch(KernelId::kAttentionForward, dims, kNoFlags,
                 {All(f_.qkv_M3C[l]), All(f_.attention_MC[l]), All(f_.lse_BHT[l])});
  } else {
    f_.probs_BHTT[l] = Activation("probs", layer, rows_ * heads_ * seq_, dtype_);
    emit_.Launch(KernelId::kUnfusedAttentionForward, dims, kNoFlags,
                 {All(f_.qkv_M3C[l]), All(f_.attention_MC[l]), All(f_.probs_BHTT[l])});
  }
}

void Gpt2Graph::Loss(bool train, uint64_t logits_chunk_bytes) {
  const int last = static_cast<int>(layers_);
  emit_.Tag(Phase::kForward, last);
  f_.final_MC = ForwardNorm("ln_f", last, TensorRole::kLnfW, TensorRole::kLnfB,
                            f_.residual_MC.back(), &f_.final_stats_M2);
  const uint64_t size = DtypeBytes(dtype_);
  const auto row_bytes = static_cast<uint64_t>(padded_vocab_) * size;
  const auto most_rows =
      std::clamp<int64_t>(static_cast<int64_t>(logits_chunk_bytes / row_bytes), 1, rows_);
  const int64_t chunk = LogitsChunkRows(rows_, most_rows);
  const BufferId logits = AddBuffer(program_, "logits", Role::kLogits, dtype_,
                                    static_cast<uint64_t>(chunk) * row_bytes);
  const BufferId loss =
      AddBuffer(program_, "loss", Role::kLoss, Dtype::kF32, static_cast<uint64_t>(rows_) * 4);
  for (BufferId id : {logits, loss}) {
    program_.buffers[id].memory_class = MemoryClass::kActivations;
  }
  if (train) dfinal_MC_ = ActivationGrad("d_ln_f", last, rows_ * hidden_);
  const uint64_t c_bytes = static_cast<uint64_t>(hidden_) * size;
  for (int64_t begin = 0; begin < rows_; begin += chunk) {
    const int64_t rows = std::min(chunk, rows_ - begin);
    const auto ubegin = static_cast<uint64_t>(begin), urows = static_cast<uint64_t>(rows);
    const Ref x_RC{f_.final_MC, ubegin * c_bytes, urows * c_bytes, 0};
    const Ref logits_RVp{logits, 0, urows * row_bytes, 0};
    const Ref targets_R{program_.tokens_buffer, static_cast<uint64_t>(rows_ + begin) * 4, urows * 4,
                        0};
    const Ref loss_R{loss, ubegin * 4, urows * 4, 0};
    const Ref wte = Param(TensorRole::kWte, kEmbeddingLayer);
    emit_.Tag(Phase::kForward, last);
    emit_.Launch(KernelId::kMatmulForward, {rows, hidden_, padded_vocab_}, kTransposed,
                 {x_RC, wte, Ref{}, Ref{}, logits_RVp});
    emit_.Launch(KernelId::kCrossEntropy, {rows, program_.model.vocab, padded_vocab_},
                 train ? kNoFlags : kForwardOnly,
                 {logits_RVp, targets_R, All(program_.state_buffer), loss_R});
    if (!train) continue;
    emit_.Tag(Phase::kBackward, last);
    const uint8_t add = begin > 0 ? kAccumulate : kNoFlags;
    emit_.Launch(KernelId::kMatmulBackwardWeight, {rows, hidden_, padded_vocab_},
                 static_cast<uint8_t>(kTransposed | add),
                 {x_RC, logits_RVp, Grad(TensorRole::kWte, kEmbeddingLayer), Ref{}});
    emit_.Launch(KernelId::kMatmulBackwardData, {rows, hidden_, padded_vocab_}, kTransposed,
                 {logits_RVp, wte, Ref{dfinal_MC_, ubegin * c_bytes, urows * c_bytes, 0}});
  }
  const Ref state = All(program_.state_buffer);
  const bool sums = train && program_.setup.batch.grad_accum > 1;
  emit_.Tag(Phase::kForward, last, sums ? kWritesGrads : kEvery);
  emit_.Launch(KernelId::kLossReduce, {rows_}, kNoFlags, {All(loss), state});
  if (sums) {
    emit_.When(kAddsGrads).Launch(KernelId::kLossReduce, {rows_}, kAccumulate, {All(loss), state});
  }
}

void Gpt2Graph::RowLogits(BufferId logits_host) {
  const int last = static_cast<int>(layers_);
  emit_.Tag(Phase::kForward, last);
  const BufferId row_C = Activation("row", last, hidden_, dtype_);
  emit_.Launch(KernelId::kSelectRow, {hidden_}, kNoFlags,
               {All(f_.residual_MC.back()), All(program_.state_buffer), All(row_C)});
  const BufferId norm_C = Activation("ln_f", last, hidden_, dtype_);
  const BufferId stats = Activation("ln_stats", last, 2, Dtype::kF32);
  emit_.Launch(KernelId::kLayerNormForward, {1, hidden_}, kNoFlags,
               {All(row_C), Param(TensorRole::kLnfW, last), Param(TensorRole::kLnfB, last),
                All(norm_C), All(stats)},
               Stream::kCompute, {program_.model.layer_norm_eps});
  const BufferId logits = Activation("logits", last, padded_vocab_, dtype_);
  emit_.Launch(KernelId::kMatmulForward, {1, hidden_, padded_vocab_}, kTransposed,
               {All(norm_C), Param(TensorRole::kWte, kEmbeddingLayer), Ref{}, Ref{}, All(logits)});
  emit_.CopyTo(All(logits), All(logits_host));
}

}  // namespace zeroplan
