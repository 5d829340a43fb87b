// TorchStep: the tensors of a forward and a backward pass.
#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "planner/runtimes/planned_parts.h"
#include "planner/runtimes/torch_code.h"
#include "planner/runtimes/torch_model.h"
#include "planner/runtimes/torch_offload.h"
#include "planner/runtimes/torch_sequence.h"
#include "planner/runtimes/torch_timer.h"

namespace zeroplan {
TorchParts::TorchParts(const TorchModel& model, const TorchRun& run)
    : style(model.code.planned != nullptr
                ? PlannedStyle(run.code, run.fp32_params, *model.code.planned, model.has_adapters())
            : model.has_adapters() ? FrozenStyle(run.code, run.adapters, run.autocast)
                                   : StyleCodeOf(run.code, run.fp32_params, run.autocast)),
      layer(run.compiled && style.fuses ? CompiledCode(run.fp32_params) : style),
      norm(model.code.mean_norms ? layer.layer_norm : layer.rms_norm),
      activation(run.tiled_mlp                ? StyleCodeOf(CodeStyle::kHf, false).gated
                 : !model.code.gated          ? layer.gelu
                 : run.fused() && style.fuses ? kCompiledGated
                                              : layer.gated),
      kernels(TorchAttentionKernelsOf(run.attention, run.compute_capability,
                                      model.spec.KvHeads() != model.spec.heads)),
      attention(kernels == TorchAttentionKernels::kEager && model.code.planned != nullptr &&
                        model.code.planned->bounded_scores
                    ? PlannedPartsOf(run.fp32_params).eager_bounded
                    : layer.attention(kernels)),
      chunks(style.chunks),
      loss(chunks == LossChunks::kByHidden ? style.loss
           : run.compiled_loss             ? kCompiledLoss
           : model.code.planned != nullptr && model.code.planned->bounded_logits
               ? PlannedPartsOf(run.fp32_params).bounded_loss
               : style.loss),
      norm_bytes(norm.result_bytes()),
      activation_bytes(activation.result_bytes()) {}

TorchStep::TorchStep(const TorchModel& model, const TorchRun& run, TorchMemory* memory,
                     TorchRuntime* hooks, TorchTimer* timer)
    : model_(model),
      run_(run),
      parts_(model, run),
      memory_(memory),
      hooks_(hooks),
      timer_(timer),
      tokens_(run.tokens()),
      hidden_(model.spec.hidden),
      ffn_(model.spec.ffn),
      vocab_(model.spec.padded_vocab),
      kv_columns_(model.spec.KvHeads() * model.spec.HeadSize()),
      q_columns_(model.spec.heads * model.spec.HeadSize()) {
  if (run.sequence_ranks > 1 && run.ring) {
    ring_ = std::make_shared<RingAttention>(model.spec, run, memory, timer);
  } else if (run.sequence_ranks > 1) {
    exchange_ = std::make_shared<HeadExchange>(model.spec, run, memory, timer);
  }
  if (run.offloading == nullptr || run.evaluates) return;
  const auto bytes = static_cast<uint64_t>(parts_.style.stream_bytes * tokens_ * hidden_);
  offload_ = std::make_shared<ActivationOffload>(*run.offloading, bytes, memory, timer);
}

Tensor TorchStep::New(int64_t bytes, TorchClass kind) {
  return memory_->New(kind, static_cast<uint64_t>(bytes));
}

int TorchStep::Module(int layer, int offset) const {
  return model_.first_layer_module + layer * model_.layer_modules + offset;
}

TorchElements TorchStep::Elements(int64_t e) const {
  TorchElements elements =
      ElementsOf(run_.micro_batch, run_.local_seq(), model_.spec.heads, q_columns_, kv_columns_, e);
  if (model_.code.planned != nullptr) AddExpertElements(model_.spec, run_.tokens(), &elements);
  return elements;
}

void TorchStep::Play(std::string_view words, const TorchElements& elements, TorchSlots* slots,
                     int module, TorchClass kind) {
  while (!words.empty()) {
    const CodeWord word = NextWord(&words);
    if (word.kind == CodeWord::kKeeps) continue;
    if (word.kind == CodeWord::kParamGradients) {
      if (module >= 0) ParamGradients(module);
      continue;
    }
    Tensor& slot = (*slots)[word.slot];
    if (word.kind == CodeWord::kFrees) {
      if (word.element == 0 || elements[word.element] > 0) slot.Reset();
    } else if (word.kind == CodeWord::kRenames) {
      slot = std::move((*slots)[word.from]);
    } else if (const int64_t count = elements[word.element]; count > 0) {
      slot = New(word.bytes * count, kind);
    }
  }
}

// With KeepsSmaller. Its weight has inputs x `columns` elements, its input inputs x tokens.
bool TorchStep::KeepsWeight(int64_t columns) const {
  return run_.KeepsSmaller(model_.code.all_biased) && columns < tokens_;
}

Tensor TorchStep::Linear(int module, TorchOp op, int64_t columns, Saved* saved, bool of_norm) {
  if (!forward_workspace_) forward_workspace_ = New(kGemmWorkspaceBytes, TorchClass::kBuffers);
  if (IsAdapted(module) || IsQuantized(module)) return AdaptedLinear(module, op, columns, saved);
  hooks_->BeforeForward(module);
  if (run_.module_graphs) timer_->EnterModuleGraph();
  timer_->Forward(op);
  const Tensor casts = New(Float8CastBytes(module, /*backward=*/false));
  if (of_norm && parts_.norm_bytes > 2) saved->casts.push_back(Rows(hidden_));
  Tensor out = Rows(columns);
  if (KeepsWeight(columns)) {
    const int weight = model_.modules[static_cast<size_t>(module)].params.front();
    saved->weights.push_back(
        New(static_cast<int64_t>(2 * model_.params[static_cast<size_t>(weight)].elements)));
  }
  hooks_->AfterForward(module);
  return out;
}

TorchStep::Saved TorchStep::KeptByCheckpoint(Saved saved) const {
  Saved kept;
  if (!run_.saves_products) return kept;
  for (const char slot : {'o', 'b'}) kept.attention[slot] = std::move(saved.attention[slot]);
  kept.saved_q = std::move(saved.saved_q);
  kept.saved_v = std::move(saved.saved_v);
  kept.saved_up = std::move(saved.saved_up);
  kept.saved_down = std::move(saved.saved_down);
  return kept;
}

Tensor TorchStep::LinearOr(Tensor* kept, int module, TorchOp op, int64_t columns, Saved* saved,
                           bool of_norm) {
  return *kept ? std::move(*kept) : Linear(module, op, columns, saved, of_norm);
}

void TorchStep::ParamGradients(int module) {
  const std::vector<int>& params = model_.modules[static_cast<size_t>(module)].params;
  std::vector<Tensor> grads;
  grads.reserve(params.size());
  for (const int param : params) {
    const TorchParam& of = model_.params[static_cast<size_t>(param)];
    grads.push_back(of.trained ? New(static_cast<int64_t>(2 * of.elements), TorchClass::kGrads)
                               : Tensor());
  }
  for (size_t i = 0; i < params.size(); ++i) {
    if (!grads[i]) continue;
    if (sums_ != nullptr) {
      AddToSums(params[i], std::move(grads[i]));
    } else {
      hooks_->Gradient(params[i], std::move(grads[i]));
    }
  }
}

void TorchStep::ParamGradient(int param) {
  if (!model_.trains(param)) return;
  Tensor grad = New(static_cast<int64_t>(2 * model_.params[static_cast<size_t>(param)].elements),
                    TorchClass::kGrads);
  hooks_->Gradient(param, std::move(grad));
}

Tensor TorchStep::LinearBackward(int module, TorchOp op, int64_t inputs, Saved* of_norm,
                                 Saved* saved) {
  if (!backward_workspace_) backward_workspace_ = New(kGemmWorkspaceBytes, TorchClass::kBuffers);
  if (IsAdapted(module) || IsQuantized(module)) {
    return AdaptedLinearBackward(module, op, inputs, saved != nullptr ? saved : of_norm);
  }
  hooks_->BeforeBackward(module);
  if (run_.module_graphs) timer_->EnterModuleGraph();
  timer_->Backward(op);
  const Tensor casts = New(Float8CastBytes(module, /*backward=*/true));
  Tensor grad = Rows(inputs);
  if (of_norm != nullptr && !of_norm->casts.empty()) {
    of_norm->casts.pop_back();
    Tensor cast = New(4 * tokens_ * inputs);
    grad = std::move(cast);
  }
  ParamGradients(module);
  hooks_->AfterBackward(module);
  return grad;
}

Tensor TorchStep::Norm(int module, TorchOp op, TorchSlots* slots, bool keep, const CodePart* part) {
  hooks_->BeforeForward(module);
  timer_->Forward(op);
  Play((part != nullptr ? *part : parts_.norm).forward, tokens_ * hidden_, slots);
  Tensor out = std::move((*slots)['o']);
  if (!keep) slots->Reset();
  hooks_->AfterForward(module);
  return out;
}

Tensor TorchStep::NormBackward(int module, TorchOp op, TorchSlots* slots, Tensor grad,
                               const CodePart* part) {
  hooks_->BeforeBackward(module);
  timer_->Backward(op);
  (*slots)['g'] = std::move(grad);
  Play((part != nullptr ? *part : parts_.norm).backward, tokens_ * hidden_, slots, module);
  hooks_->AfterBackward(module);
  return std::move((*slots)['d']);
}

void TorchStep::HeadNorm(int module, int64_t columns, TorchSlots* slots, bool keep, Tensor* rows) {
  const CodePart& norm = parts_.layer.head_norm;
  hooks_->BeforeForward(module);
  (*slots)['i'] = std::move(*rows);
  Play(norm.forward, tokens_ * columns, slots);
  *rows = std::move((*slots)['o']);
  if (!norm.Keeps('i')) (*slots)['i'].Reset();
  if (!keep) slots->Reset();
  hooks_->AfterForward(module);
}

void TorchStep::HeadNormBackward(int module, int64_t columns, TorchSlots* slots, Tensor* grad) {
  hooks_->BeforeBackward(module);
  (*slots)['g'] = std::move(*grad);
  Play(parts_.layer.head_norm.backward, tokens_ * columns, slots, module);
  *grad = std::move((*slots)[(*slots)['d'] ? 'd' : 'g']);
  slots->Reset();
  hooks_->AfterBackward(module);
}

// Norm and attention of a layer, up to what attention makes.
void TorchStep::AttentionHalf(int layer, Saved* saved, bool keep) {
  // What a selective checkpoint keeps to take again.
  const bool saves = run_.saves_products && !keep;
  const auto drop_or_save = [keep, saves](Tensor* tensor, Tensor* to) {
    if (saves) {
      *to = std::move(*tensor);
    } else if (!keep) {
      tensor->Reset();
    }
  };
  TorchSlots& attention = saved->attention;
  int next = 1;
  if (model_.code.one_qkv) {
    const int64_t columns = q_columns_ + 2 * kv_columns_;
    attention['i'] = Linear(Module(layer, next++), TorchOp::kQkv, columns, saved, true);
    if (DropsInput(keep, {columns}, Module(layer, 1))) saved->normed1.Reset();
    if (model_.code.planned != nullptr) {
      // What was turned is new; values stay where the product has them.
      TorchSlots& rotary = saved->rotary;
      timer_->Forward(TorchOp::kRotary);
      rotary['i'] = std::move(attention['i']);
      Play(Planned().rotary.forward, tokens_ * columns, &rotary);
      attention['i'] = std::move(rotary['o']);
      attention['j'] = std::move(rotary['O']);
      if (!keep) {
        attention['l'] = std::move(rotary['i']);
        rotary.Reset();
      }
    }
  } else {
    Tensor q =
        LinearOr(&saved->saved_q, Module(layer, next++), TorchOp::kQkv, q_columns_, saved, true);
    Tensor k = Linear(Module(layer, next++), TorchOp::kKey, kv_columns_, saved, true);
    attention['l'] =
        LinearOr(&saved->saved_v, Module(layer, next++), TorchOp::kKey, kv_columns_, saved, true);
    if (DropsInput(keep, {q_columns_, kv_columns_, kv_columns_}, Module(layer, 1))) {
      saved->normed1.Reset();
    }
    TorchSlots& rotary = saved->rotary;
    timer_->Forward(TorchOp::kRotary);
    if (model_.spec.qk_norm) {
      HeadNorm(Module(layer, next++), q_columns_, &saved->norm_q, keep || saves, &q);
      HeadNorm(Module(layer, next++), kv_columns_, &saved->norm_k, keep, &k);
      if (saves) saved->saved_q = std::move(saved->norm_q['i']);
    }
    rotary['i'] = std::move(q);
    rotary['j'] = std::move(k);
    Play(parts_.layer.rotary.forward, tokens_ * q_columns_, &rotary);
    // Queries and keys are kept as rotated; what they were made of goes.
    attention['i'] = std::move(rotary['o']);
    attention['j'] = std::move(rotary['O']);
    if (saves && !model_.spec.qk_norm) saved->saved_q = std::move(rotary['i']);
    rotary['i'].Reset();
    rotary['j'].Reset();
    if (!keep) rotary.Reset();
  }
  if (ring_) {
    ring_->Forward(&attention);
  } else if (!attention['o']) {  // else a selective checkpoint has it
    std::vector<Tensor> held;
    if (exchange_) exchange_->Forward(&attention, &held);
    timer_->Forward(TorchOp::kAttention);
    Play(AttentionPart(layer).forward, AttentionElements(model_.spec, run_), &attention, -1,
         TorchClass::kActivations);
    if (exchange_) {
      saved->attended = exchange_->ForwardContext();
      if (!keep) attention.Reset();
    }
  }
  const bool one = model_.code.one_qkv && model_.code.planned == nullptr;
  drop_or_save(&attention[one ? 'i' : 'l'], &saved->saved_v);
  if (keep) return;
  Tensor out = std::move(attention['o']), sums = std::move(attention['b']);
  attention.Reset();
  attention['o'] = std::move(out);
  attention['b'] = std::move(sums);
}

// Whether the input of linear modules with so many outputs each goes: where none of them keeps it.
bool TorchStep::DropsInput(bool keep, std::initializer_list<int64_t> outputs, int first) const {
  bool wanted = first < 0;
  for (int i = 0; !wanted && i < static_cast<int>(outputs.size()); ++i) {
    wanted = KeepsInput(first + i);
  }
  if (!wanted) return true;
  return !keep || parts_.norm_bytes > 2 ||
         std::all_of(outputs.begin(), outputs.end(),
                     [this](int64_t columns) { return KeepsWeight(columns); });
}

// `keep` false: within torch.utils.checkpoint's forward, where a tensor goes with its last use.
Tensor TorchStep::Block(int layer, Saved* saved, bool keep) {
  if (model_.code.planned != nullptr) return PlannedBlock(layer, saved, keep);
  const bool again = keep && run_.recompute;
  keeps_ = keep;
  if (run_.recompute) timer_->EnterCheckpoint();
  const auto drop = [keep](Tensor* tensor) {
    if (!keep) tensor->Reset();
  };
  // What a selective checkpoint keeps to take again.
  const bool saves = run_.saves_products && !keep;
  const StyleCode& code = parts_.layer;
  const bool keeps_norm_input = parts_.norm.Keeps('i');
  const int64_t rows = tokens_ * hidden_;
  if (!run_.module_graphs) timer_->EnterGraph();
  saved->normed1 = Norm(Module(layer, 0), TorchOp::kNorm1, &saved->norm1, keep);
  AttentionHalf(layer, saved, keep);
  TorchSlots& attention = saved->attention;
  Tensor projected = Linear(Module(layer, model_.out_module()), TorchOp::kOutProj, hidden_, saved);
  if (!saves) drop(&attention['o']);
  drop(&saved->attended);
  timer_->Forward(TorchOp::kAdd1);
  TorchSlots add;
  Play(code.add.forward, rows, &add);
  saved->middle = std::move(add['o']);
  projected.Reset();
  if (!run_.recompute && !keeps_norm_input) residuals_.back().Reset();
  saved->normed2 = Norm(Module(layer, model_.norm2_module()), TorchOp::kNorm2, &saved->norm2, keep);
  if (run_.tiled_mlp) {
    Tensor made = TiledMlp(layer, saved);
    drop(&saved->normed2);
    timer_->Skip(again);
    timer_->Forward(TorchOp::kAdd2);
    timer_->Skip(false);
    Play(code.add.forward, rows, &add);
    if (!keeps_norm_input) saved->middle.Reset();
    return std::move(add['o']);
  }
  TorchSlots& activation = saved->activation;
  const int up = Module(layer, model_.up_module());
  const bool gated = model_.code.gated;
  const char up_slot = gated ? 'j' : 'i';
  activation[up_slot] = LinearOr(&saved->saved_up, up, TorchOp::kUp, ffn_, saved, true);
  if (gated) activation['i'] = Linear(up + 1, TorchOp::kGate, ffn_, saved, true);
  const bool dropped = gated ? DropsInput(keep, {ffn_, ffn_}, up) : DropsInput(keep, {ffn_}, up);
  if (dropped) saved->normed2.Reset();
  Play(parts_.activation.forward, tokens_ * ffn_, &activation);
  timer_->Forward(TorchOp::kActivation);
  if (saves) saved->saved_up = std::move(activation[up_slot]);
  if (!keep) {
    Tensor activated = std::move(activation['o']);
    activation.Reset();
    activation['o'] = std::move(activated);
  }
  // A checkpoint's second forward pass ends with the last tensor that backward wants
  // (torch/utils/checkpoint.py, set_checkpoint_early_stop; compiled, nothing asks for more).
  timer_->Skip(again);
  if (parts_.activation_bytes > 2) {
    Tensor cast = Rows(ffn_);
    activation['o'] = std::move(cast);
  }
  Tensor projected_back =
      Linear(Module(layer, model_.down_module()), TorchOp::kDown, hidden_, saved);
  timer_->Forward(TorchOp::kAdd2);
  timer_->Skip(false);
  if (saves && !run_.compiled) saved->saved_down = std::move(projected_back);
  const bool wanted = KeepsInput(Module(layer, model_.down_module()));
  if (!keep || !wanted || KeepsWeight(hidden_)) activation['o'].Reset();
  if (!keep) {
    saved->weights.clear();
    saved->casts.clear();
  }
  Play(code.add.forward, rows, &add);
  if (!keeps_norm_input) saved->middle.Reset();
  return std::move(add['o']);
}

void TorchStep::Forward() {
  token_ids_ = New(8 * 2 * tokens_);
  residuals_.clear();
  saved_.clear();
  const int64_t stream = parts_.style.stream_bytes;
  hooks_->BeforeForward(0);
  timer_->Forward(TorchOp::kEmbedding);
  Tensor embedded = New(stream * tokens_ * hidden_);
  hooks_->AfterForward(0);
  if (model_.code.learned_positions) {
    hooks_->BeforeForward(1);
    Tensor positions = New(stream * run_.seq_len * hidden_);
    hooks_->AfterForward(1);
    Tensor sum = New(stream * tokens_ * hidden_);
    embedded = std::move(sum);
  }
  if (model_.code.planned != nullptr) {
    if (model_.code.planned->scaled_embedding) embedded = New(stream * tokens_ * hidden_);
    Vision();
  }
  residuals_.push_back(std::move(embedded));
  for (int layer = 0; layer < model_.spec.layers; ++layer) {
    Saved saved;
    hooks_->BeforeLayer();
    if (offload_) offload_->BeginLayer();
    residuals_.push_back(Block(layer, &saved, !run_.recompute && !run_.evaluates));
    if (run_.evaluates) {
      residuals_[residuals_.size() - 2].Reset();
      continue;
    }
    if (offload_) offload_->Keep(std::move(residuals_[static_cast<size_t>(layer)]));
    saved_.push_back(run_.recompute ? KeptByCheckpoint(std::move(saved)) : std::move(saved));
  }
  final_norm_ = Norm(model_.final_norm(), TorchOp::kFinalNorm, &final_slots_, true);
  if (!parts_.norm.Keeps('i')) residuals_.back().Reset();
  HeadAndLoss();
}

Tensor TorchStep::AttentionBackward(int layer, Saved* saved, Tensor grad) {
  TorchSlots& attention = saved->attention;
  if (ring_) {
    attention['g'] = std::move(grad);
    ring_->Backward(&attention);
  } else {
    timer_->Backward(TorchOp::kAttention);
    attention['g'] = exchange_ ? exchange_->BackwardContext(std::move(grad)) : std::move(grad);
    Play(AttentionPart(layer).backward, AttentionElements(model_.spec, run_), &attention, -1,
         TorchClass::kActivations);
  }
  Tensor d_q = std::move(attention['d']), d_k = std::move(attention['D']),
         d_v = std::move(attention['M']);
  attention.Reset();
  if (exchange_) exchange_->Backward(&d_q, &d_k, &d_v);
  if (model_.code.one_qkv) {
    // The gradient of views of one product.
    TorchSlots split;
    split['g'] = std::move(d_q);
    split['G'] = std::move(d_k);
    split['H'] = std::move(d_v);
    if (model_.code.planned != nullptr) {
      timer_->Backward(TorchOp::kRotary);
      saved->rotary.Reset();
      Play(Planned().rotary.backward, tokens_ * (q_columns_ + 2 * kv_columns_), &split);
    } else {
      Play(parts_.layer.split.backward, tokens_ * q_columns_, &split);
    }
    Tensor d_norm = LinearBackward(Module(layer, 1), TorchOp::kQkv, hidden_, saved);
    return d_norm;
  }
  timer_->Backward(TorchOp::kRotary);
  TorchSlots& rotary = saved->rotary;
  rotary['g'] = std::move(d_q);
  rotary['G'] = std::move(d_k);
  Play(parts_.layer.rotary.backward, tokens_ * q_columns_, &rotary);
  d_q = std::move(rotary['d']);
  d_k = std::move(rotary['D']);
  if (model_.spec.qk_norm) {
    const int norm = Module(layer, model_.qk_norm_module());
    HeadNormBackward(norm, q_columns_, &saved->norm_q, &d_q);
    HeadNormBackward(norm + 1, kv_columns_, &saved->norm_k, &d_k);
  }
  Tensor d_norm = LinearBackward(Module(layer, 3), TorchOp::kKey, hidden_, saved);
  d_v.Reset();
  for (const int module : {2, 1}) {
    const TorchOp op = module == 2 ? TorchOp::kKey : TorchOp::kQkv;
    Tensor more = LinearBackward(Module(layer, module), op, hidden_, saved);  // added in place
    d_k.Reset();
  }
  return d_norm;
}

// `grad`: of what the MLP made.
Tensor TorchStep::MlpBackward(int layer, Saved* saved, TorchSlots* grad) {
  const bool gated = model_.code.gated;
  const int down = model_.down_module();
  Tensor d_activated = LinearBackward(Module(layer, down), TorchOp::kDown, ffn_, nullptr, saved);
  if (parts_.activation_bytes > 2) {
    Tensor wide = New(4 * tokens_ * ffn_);
    d_activated = std::move(wide);
  }
  grad->Reset();
  timer_->Backward(TorchOp::kActivation);
  TorchSlots& activation = saved->activation;
  activation['o'].Reset();
  activation['g'] = std::move(d_activated);
  Play(parts_.activation.backward, tokens_ * ffn_, &activation);
  const TorchOp last = gated ? TorchOp::kGate : TorchOp::kUp;
  Tensor d_norm = LinearBackward(Module(layer, down - 1), last, hidden_, saved);
  if (gated) {
    activation['d'].Reset();
    Tensor more = LinearBackward(Module(layer, model_.up_module()), TorchOp::kUp, hidden_, saved);
  }
  activation.Reset();
  return d_norm;
}

void TorchStep::BlockBackward(int layer, Saved saved) {
  if (model_.code.planned != nullptr) return PlannedBlockBackward(layer, std::move(saved));
  const int64_t rows = tokens_ * hidden_;
  const std::string_view add_backward = parts_.layer.add.backward;
  if (!run_.module_graphs) timer_->EnterGraph();
  TorchSlots add;
  Play(add_backward, rows, &add);
  Tensor d_norm = run_.tiled_mlp ? TiledMlpBackward(layer) : MlpBackward(layer, &saved, &add);
  add.Reset();
  saved.normed2.Reset();
  {
    Tensor d_middle = NormBackward(Module(layer, model_.norm2_module()), TorchOp::kNorm2,
                                   &saved.norm2, std::move(d_norm));
    timer_->Backward(TorchOp::kAdd2);  // to `grad`, in place
  }
  saved.norm2['g'].Reset();
  saved.middle.Reset();
  Play(add_backward, rows, &add);
  Tensor d_attention = LinearBackward(Module(layer, model_.out_module()), TorchOp::kOutProj,
                                      q_columns_, nullptr, &saved);
  add.Reset();
  saved.attended.Reset();
  d_norm = AttentionBackward(layer, &saved, std::move(d_attention));
  saved.normed1.Reset();
  Tensor d_input = NormBackward(Module(layer, 0), TorchOp::kNorm1, &saved.norm1, std::move(d_norm));
  timer_->Backward(TorchOp::kAdd1);
}

void TorchStep::Backward() {
  {
    Tensor d_norm = HeadAndLossBackward();
    final_norm_.Reset();
    Tensor grad =
        NormBackward(model_.final_norm(), TorchOp::kFinalNorm, &final_slots_, std::move(d_norm));
    if (!grad) grad = std::move(final_slots_['g']);
    final_slots_.Reset();
    residuals_.pop_back();
    for (int layer = static_cast<int>(model_.spec.layers) - 1; layer >= 0; --layer) {
      Saved saved = std::move(saved_.back());
      saved_.pop_back();
      hooks_->BeforeLayerBackward();
      if (offload_) residuals_.back() = offload_->Bring();
      if (run_.recompute) {
        // A tiled MLP asks for its own input.
        // Experts that are modules are called by a block without parameters of its own.
        const bool none = run_.tiled_mlp || model_.experts == ExpertModules::kModules;
        hooks_->BeforeRecompute(none ? -1 : Module(layer, model_.layer_modules - 1));
        Tensor out = Block(layer, &saved, /*keep=*/true);
      }
      BlockBackward(layer, std::move(saved));
      residuals_.pop_back();
    }
    if (model_.code.learned_positions) {
      hooks_->BeforeBackward(1);
      ParamGradients(1);
      hooks_->AfterBackward(1);
    }
    if (model_.code.planned != nullptr) VisionBackward();
    hooks_->BeforeBackward(0);
    timer_->Backward(TorchOp::kEmbedding);
    // A tied embedding's two gradients are added in place.
    const int embedding = model_.embedding();
    Tensor grad_of_embedding;
    if (model_.trains(embedding)) {
      const uint64_t elements = model_.params[static_cast<size_t>(embedding)].elements;
      grad_of_embedding = New(static_cast<int64_t>(2 * elements), TorchClass::kGrads);
    }
    head_grad_.Reset();
    if (grad_of_embedding) hooks_->Gradient(embedding, std::move(grad_of_embedding));
    hooks_->AfterBackward(0);
  }
  token_ids_.Reset();
}

}  // namespace zeroplan
