// TorchStep's and TorchKernels' layers of models that zeroplan does not train: norms behind
// attention and MLP, products that make several things at once, experts, and a tower that sees.
#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "planner/runtimes/planned_parts.h"
#include "planner/runtimes/torch_kernels.h"
#include "planner/runtimes/torch_model.h"
#include "planner/runtimes/torch_timer.h"

namespace zeroplan {
namespace {

// Masks make another kernel of scaled_dot_product_attention; the package flash-attn has windows
// without one, and eager attention adds it to the scores at any rate.
bool TakesMask(const TorchRun& run, TorchAttentionKernels kernels) {
  return run.attention == TorchAttention::kSdpa && kernels != TorchAttentionKernels::kEager;
}

}  // namespace

const CodePart& TorchStep::AttentionPart(int layer) const {
  const PlannedCode* planned = model_.code.planned;
  if (planned == nullptr) return parts_.attention;
  return TakesMask(run_, parts_.kernels) && IsMasked(*planned, layer, run_.seq_len)
             ? Planned().masked
             : parts_.attention;
}

Tensor TorchStep::PlannedBlock(int layer, Saved* saved, bool keep) {
  keeps_ = keep;
  if (run_.recompute) timer_->EnterCheckpoint();
  const CodePart& post_norm = Planned().post_norm;
  const std::string_view add_forward = parts_.layer.add.forward;
  const bool keeps_norm_input = parts_.norm.Keeps('i');
  const int64_t rows = tokens_ * hidden_;
  saved->normed1 = Norm(Module(layer, 0), TorchOp::kNorm1, &saved->norm1, keep);
  AttentionHalf(layer, saved, keep);
  // Queries that were joined lie by head, and so does what attention makes of them: laid by token.
  if (model_.code.one_qkv && parts_.kernels != TorchAttentionKernels::kEager) {
    saved->attended = Rows(q_columns_);
  }
  Tensor projected = Linear(Module(layer, model_.out_module()), TorchOp::kOutProj, hidden_, saved);
  if (!keep) saved->attention['o'].Reset();
  if (!keep || !KeepsInput(Module(layer, model_.out_module()))) saved->attended.Reset();
  timer_->Forward(TorchOp::kAdd1);
  if (model_.post_norms()) {
    saved->post1['i'] = std::move(projected);
    projected = Norm(Module(layer, model_.out_module() + 1), TorchOp::kPostNorm, &saved->post1,
                     keep, &post_norm);
  }
  TorchSlots add;
  Play(add_forward, rows, &add);
  saved->middle = std::move(add['o']);
  projected.Reset();
  if (!run_.recompute && !keeps_norm_input) residuals_.back().Reset();
  saved->normed2 = Norm(Module(layer, model_.norm2_module()), TorchOp::kNorm2, &saved->norm2, keep);
  Tensor made = model_.code.planned->experts > 0 ? Experts(layer, saved, keep)
                                                 : PlannedMlp(layer, saved, keep);
  timer_->Forward(TorchOp::kAdd2);
  if (model_.post_norms()) {
    saved->post2['i'] = std::move(made);
    made = Norm(Module(layer, model_.layer_modules - 1), TorchOp::kPostNorm, &saved->post2, keep,
                &post_norm);
  }
  if (!keep) saved->casts.clear();
  Play(add_forward, rows, &add);
  if (!keeps_norm_input) saved->middle.Reset();
  return std::move(add['o']);
}

Tensor TorchStep::PlannedMlp(int layer, Saved* saved, bool keep) {
  TorchSlots& activation = saved->activation;
  const int up = Module(layer, model_.up_module());
  if (model_.one_gate_up()) {
    activation['i'] = Linear(up, TorchOp::kUp, 2 * ffn_, saved, true);
  } else {
    activation['j'] = Linear(up, TorchOp::kUp, ffn_, saved, true);
    activation['i'] = Linear(up + 1, TorchOp::kGate, ffn_, saved, true);
  }
  if (DropsInput(keep, {ffn_}, up)) saved->normed2.Reset();
  timer_->Forward(TorchOp::kActivation);
  if (model_.one_gate_up()) {
    Play(Planned().gated.forward, 2 * tokens_ * ffn_, &activation);
  } else {
    Play(parts_.activation.forward, tokens_ * ffn_, &activation);
  }
  if (!keep) {
    Tensor activated = std::move(activation['o']);
    activation.Reset();
    activation['o'] = std::move(activated);
  }
  const int down = Module(layer, model_.down_module());
  Tensor made = Linear(down, TorchOp::kDown, hidden_, saved);
  if (!keep || !KeepsInput(down)) activation['o'].Reset();
  return made;
}

const PlannedParts& TorchStep::Planned() const {
  return PlannedPartsOf(run_.fp32_params, model_.has_adapters());
}

// Router and experts, and in addition a gated MLP that every token takes, scaled by a sigmoid.
Tensor TorchStep::Experts(int layer, Saved* saved, bool keep) {
  const PlannedCode& code = *model_.code.planned;
  const int router = Module(layer, model_.up_module()), experts = router + 1;
  if (code.shared_ffn > 0) {
    const int first = Module(layer, model_.shared_module());
    TorchSlots& shared = saved->shared;
    shared['i'] = Linear(first, TorchOp::kGate, code.shared_ffn, saved, true);
    shared['j'] = Linear(first + 1, TorchOp::kGate, code.shared_ffn, saved, true);
    Play(parts_.layer.gated.forward, tokens_ * code.shared_ffn, &shared);
    timer_->Forward(TorchOp::kActivation);
    saved->shared_out = Linear(first + 2, TorchOp::kDown, hidden_, saved);
    if (!KeepsInput(first + 2)) shared['o'].Reset();
    if (code.shared_gate) {
      Tensor logit = Linear(first + 3, TorchOp::kRouter, 1, saved, true);
      saved->shared_scale = Rows(1);
    }
  }
  Tensor made;
  if (model_.separate_experts()) {
    made = SeparateExperts(layer, saved, keep);
  } else {
    hooks_->BeforeForward(router);
    timer_->Forward(TorchOp::kRouter);
    hooks_->AfterForward(router);
    hooks_->BeforeForward(experts);
    timer_->Forward(TorchOp::kExperts);
    TorchSlots& slots = saved->activation;
    slots['i'] = std::move(saved->normed2);
    Play(Planned().ExpertsOf(code).forward, tokens_ * hidden_, &slots);
    hooks_->AfterForward(experts);
    made = std::move(slots['o']);
  }
  if (!keep) saved->activation.Reset();
  if (code.shared_ffn > 0) {
    Tensor scaled;
    if (code.shared_gate) scaled = Rows(hidden_);
    Tensor sum = Rows(hidden_);
    made = std::move(sum);
    if (!keep) {
      saved->shared.Reset();
      saved->shared_out.Reset();
      saved->shared_scale.Reset();
    }
  }
  return made;
}

TorchElements TorchStep::OneExpert() const {
  TorchElements elements = Elements(tokens_ * hidden_);
  AddExpertElements(model_.spec, tokens_, &elements, model_.code.planned->experts);
  return elements;
}

// transformers 4: a loop over the experts. The tokens of each expert are read back from the GPU.
// Its MLP and its activation are modules too, without parameters.
Tensor TorchStep::SeparateExperts(int layer, Saved* saved, bool keep) {
  const PlannedCode& code = *model_.code.planned;
  const PlannedParts& parts = Planned();
  const int router = Module(layer, model_.up_module());
  TorchSlots& block = saved->activation;
  block['i'] = std::move(saved->normed2);
  hooks_->BeforeForward(router);
  timer_->Forward(TorchOp::kRouter);
  Play(parts.router.forward, tokens_ * hidden_, &block);
  hooks_->AfterForward(router);
  const Tensor mask = New(8 * tokens_ * code.experts_per_token * code.experts);  // one_hot
  const TorchElements one = OneExpert();
  saved->experts.resize(keep ? static_cast<size_t>(code.experts) : 0);
  int module = router;
  for (int64_t expert = 0; expert < code.experts; ++expert) {
    timer_->HostWaits(TorchClock::kComputeStream);
    timer_->Host(2 * timer_->constants().read_back);
    hooks_->BeforeLayer();
    for (int part = 0; part < 3; ++part) {
      if (part == 1) hooks_->BeforeLayer();
      hooks_->BeforeForward(++module);
      if (part == 0) timer_->Forward(TorchOp::kOneExpert);
      hooks_->AfterForward(module);
    }
    TorchSlots passing;
    Play(parts.one_expert.forward, one,
         keep ? &saved->experts[static_cast<size_t>(expert)] : &passing, -1,
         TorchClass::kActivations);
  }
  if (!KeepsInput(router)) block['i'].Reset();
  return std::move(block['o']);
}

void TorchStep::PlannedBlockBackward(int layer, Saved saved) {
  const CodePart& post_norm = Planned().post_norm;
  const std::string_view add_backward = parts_.layer.add.backward;
  const int64_t rows = tokens_ * hidden_;
  TorchSlots add;
  Play(add_backward, rows, &add);
  Tensor d_made;
  // What the norm is given is the gradient between layers, or its cast.
  if (model_.post_norms()) {
    d_made = NormBackward(Module(layer, model_.layer_modules - 1), TorchOp::kPostNorm, &saved.post2,
                          std::move(add['D']), &post_norm);
  }
  Tensor d_norm = model_.code.planned->experts > 0 ? ExpertsBackward(layer, &saved)
                                                   : PlannedMlpBackward(layer, &saved);
  d_made.Reset();
  add.Reset();
  {
    Tensor d_middle = NormBackward(Module(layer, model_.norm2_module()), TorchOp::kNorm2,
                                   &saved.norm2, std::move(d_norm));
    timer_->Backward(TorchOp::kAdd2);  // in place
  }
  saved.norm2.Reset();
  saved.middle.Reset();
  Play(add_backward, rows, &add);
  if (model_.post_norms()) {
    d_made = NormBackward(Module(layer, model_.out_module() + 1), TorchOp::kPostNorm, &saved.post1,
                          std::move(add['D']), &post_norm);
  }
  Tensor d_attention = LinearBackward(Module(layer, model_.out_module()), TorchOp::kOutProj,
                                      q_columns_, nullptr, &saved);
  d_made.Reset();
  add.Reset();
  saved.attended.Reset();
  d_norm = AttentionBackward(layer, &saved, std::move(d_attention));
  saved.normed1.Reset();
  Tensor d_input = NormBackward(Module(layer, 0), TorchOp::kNorm1, &saved.norm1, std::move(d_norm));
  timer_->Backward(TorchOp::kAdd1);
}

Tensor TorchStep::PlannedMlpBackward(int layer, Saved* saved) {
  TorchSlots& activation = saved->activation;
  const int up = Module(layer, model_.up_module());
  activation['g'] =
      LinearBackward(Module(layer, model_.down_module()), TorchOp::kDown, ffn_, nullptr, saved);
  activation['o'].Reset();
  timer_->Backward(TorchOp::kActivation);
  Tensor d_norm;
  if (model_.one_gate_up()) {
    Play(Planned().gated.backward, 2 * tokens_ * ffn_, &activation);
    d_norm = LinearBackward(up, TorchOp::kUp, hidden_, saved);
  } else {
    Play(parts_.activation.backward, tokens_ * ffn_, &activation);
    d_norm = LinearBackward(up + 1, TorchOp::kGate, hidden_, saved);
    activation['d'].Reset();
    Tensor more = LinearBackward(up, TorchOp::kUp, hidden_, saved);
  }
  activation.Reset();
  saved->normed2.Reset();
  return d_norm;
}

Tensor TorchStep::ExpertsBackward(int layer, Saved* saved) {
  const PlannedCode& code = *model_.code.planned;
  const int router = Module(layer, model_.up_module()), experts = router + 1;
  const int first = Module(layer, model_.shared_module());
  Tensor d_shared;
  if (code.shared_ffn > 0) {
    TorchSlots& shared = saved->shared;
    Tensor d_out = Rows(hidden_);
    saved->shared_out.Reset();
    saved->shared_scale.Reset();
    timer_->Backward(TorchOp::kActivation);
    if (code.shared_gate) d_shared = LinearBackward(first + 3, TorchOp::kRouter, hidden_, saved);
    shared['g'] = LinearBackward(first + 2, TorchOp::kDown, code.shared_ffn, nullptr, saved);
    d_out.Reset();
    shared['o'].Reset();
    Play(parts_.layer.gated.backward, tokens_ * code.shared_ffn, &shared);
    for (const int module : {first + 1, first}) {
      Tensor more = LinearBackward(module, TorchOp::kGate, hidden_, saved);
    }
    shared.Reset();
  }
  if (model_.separate_experts()) return SeparateExpertsBackward(layer, saved);
  hooks_->BeforeBackward(experts);
  timer_->Backward(TorchOp::kExperts);
  // Gradients of the second matrix, the first, then of the router's.
  std::vector<int> params = model_.modules[static_cast<size_t>(experts)].params;
  const auto is_second = [this](int param) {
    return model_.params[static_cast<size_t>(param)].name.ends_with("down_proj");
  };
  const auto is_bias = [this](int param) {
    return model_.params[static_cast<size_t>(param)].name.ends_with("_bias");
  };
  const auto biases = std::stable_partition(params.begin(), params.end(), std::not_fn(is_bias));
  const std::vector<int> of_biases(biases, params.end());
  params.erase(biases, params.end());
  std::stable_partition(params.begin(), params.end(), is_second);
  const std::vector<int>& of_router = model_.modules[static_cast<size_t>(router)].params;
  params.push_back(of_router.front());
  std::string_view words = Planned().ExpertsOf(code).backward;
  TorchSlots& slots = saved->activation;
  for (const int param : params) {
    // Frozen ones have no gradient, and no place for it.
    const size_t at = words.find(" W ");
    if (at != std::string_view::npos) {
      Play(words.substr(0, at), tokens_ * hidden_, &slots);
      words.remove_prefix(at + 3);
    }
    if (param == params.back()) {
      for (const int bias : of_biases) ParamGradient(bias);
      hooks_->AfterBackward(experts);
      hooks_->BeforeBackward(router);
      timer_->Backward(TorchOp::kRouter);
    }
    ParamGradient(param);
  }
  for (size_t i = 1; i < of_router.size(); ++i) ParamGradient(of_router[i]);
  Play(words, tokens_ * hidden_, &slots);
  hooks_->AfterBackward(router);
  Tensor d_norm = std::move(slots['d']);
  slots.Reset();
  return d_norm;
}

Tensor TorchStep::SeparateExpertsBackward(int layer, Saved* saved) {
  const PlannedParts& parts = Planned();
  const int router = Module(layer, model_.up_module());
  const TorchElements one = OneExpert();
  TorchSlots& block = saved->activation;
  for (size_t expert = saved->experts.size(); expert-- > 0;) {
    TorchSlots& slots = saved->experts[expert];
    slots['D'] = std::move(block['D']);  // the sum over the experts so far, for the block's input
    std::string_view words = parts.one_expert.backward;
    hooks_->BeforeLayerBackward();
    for (int part = 2; part >= 0; --part) {
      if (part == 0) hooks_->BeforeLayerBackward();
      const int module = router + 1 + 3 * static_cast<int>(expert) + part;
      hooks_->BeforeBackward(module);
      if (part == 2) timer_->Backward(TorchOp::kOneExpert);
      const size_t at = words.find(" W ");
      Play(words.substr(0, at), one, &slots, -1, TorchClass::kActivations);
      words.remove_prefix(at + 3);
      ParamGradients(module);
      hooks_->AfterBackward(module);
    }
    Play(words, one, &slots, -1, TorchClass::kActivations);
    block['D'] = std::move(slots['D']);
    slots.Reset();
  }
  saved->experts.clear();
  hooks_->BeforeBackward(router);
  timer_->Backward(TorchOp::kRouter);
  Play(parts.router.backward, tokens_ * hidden_, &block, router);
  hooks_->AfterBackward(router);
  Tensor d_norm = std::move(block['d']);
  block.Reset();
  return d_norm;
}

// Patches of each sequence's images go through a tower and what projects them, whose results take
// the places of some of the embedded tokens.
void TorchStep::Vision() {
  const VisionTower& tower = model_.code.planned->vision;
  if (!tower.present()) return;
  const int64_t patches = run_.micro_batch * tower.Patches();
  const int64_t image_rows = run_.micro_batch * tower.images * tower.image_tokens;
  images_.clear();
  images_.push_back(New(2 * patches * tower.patch_elements));  // the batch's own
  timer_->Forward(TorchOp::kVision);
  const TowerBytes bytes = TowerBytesOf(tower, run_.autocast || run_.fp32_params);
  const int64_t kept = patches * (bytes.hidden * tower.hidden + bytes.ffn * tower.ffn +
                                  bytes.patch + 4 * tower.heads);
  const int modules = model_.vision_modules();
  for (int module = 1; module <= modules; ++module) {
    hooks_->BeforeForward(module);
    hooks_->AfterForward(module);
  }
  for (int64_t layer = 0; layer < tower.layers; ++layer) {
    Tensor of_layer = New(kept);
    if (model_.vision_trained && !run_.evaluates) images_.push_back(std::move(of_layer));
  }
  if (model_.projector_trained && !run_.evaluates) {
    images_.push_back(
        New(patches * bytes.projected * tower.hidden + image_rows * bytes.text * hidden_));
  }
  Tensor merged = Rows(hidden_);  // embeddings with images in their places
}

void TorchStep::VisionBackward() {
  const VisionTower& tower = model_.code.planned->vision;
  if (!tower.present()) return;
  timer_->Backward(TorchOp::kVision);
  const int64_t patches = run_.micro_batch * tower.Patches();
  for (int module = model_.vision_modules(); module >= 1; --module) {
    hooks_->BeforeBackward(module);
    Tensor grads;
    if (model_.vision_trained) grads = New(patches * (4 * tower.hidden + 4 * tower.ffn));
    ParamGradients(module);
    hooks_->AfterBackward(module);
  }
  images_.clear();
}

void TorchKernels::AddPlannedLayer(const TorchModel& model, const TorchParts& parts) {
  const ModelSpec& spec = model.spec;
  const PlannedCode& code = *model.code.planned;
  const PlannedParts& planned = PlannedPartsOf(run_.fp32_params, frozen_);
  const int64_t hidden = spec.hidden, ffn = spec.ffn;
  const double rows = static_cast<double>(tokens_ * hidden), input = parts.layer.norm_bytes;
  // As of the products of queries and keys.
  const auto add_input = [&](TorchOp op, bool more) {
    const double cast = input > 2 ? (2 + input) * rows : 0;
    AddMemory(op, cast, cast > 0, cast + (more ? 3 * input * rows : 0), (cast > 0) + more, false);
  };
  AddProduct(TorchOp::kOutProj, q_columns_, hidden, /*bias=*/false);
  if (code.post_norms) AddPart(TorchOp::kPostNorm, planned.post_norm, tokens_ * hidden, false);
  if (code.experts > 0) {
    AddExperts(model, parts);
  } else {
    AddProduct(TorchOp::kDown, ffn, hidden, false);
    AddProduct(TorchOp::kUp, hidden, code.one_gate_up ? 2 * ffn : ffn, false);
    add_input(TorchOp::kUp, false);
    if (code.one_gate_up) {
      AddPart(TorchOp::kActivation, planned.gated, 2 * tokens_ * ffn, false);
    } else {
      AddProduct(TorchOp::kGate, hidden, ffn, false);
      add_input(TorchOp::kGate, true);
      AddPart(TorchOp::kActivation, parts.activation, tokens_ * ffn, false);
    }
  }
  TorchWork& forward = forward_[static_cast<size_t>(TorchOp::kAttention)];
  TorchWork& backward = backward_[static_cast<size_t>(TorchOp::kAttention)];
  forward = backward = {};
  AddAttention(model, parts);
  int64_t masked = 0;
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    masked += TakesMask(run_, parts.kernels) && IsMasked(code, layer, run_.seq_len) ? 1 : 0;
  }
  if (masked > 0) {
    // Layers are timed alike: each as their mean. With a mask no block of scores is passed over.
    const double share = static_cast<double>(masked) / static_cast<double>(spec.layers);
    const AttentionShape shape{run_.micro_batch, run_.seq_len, spec.heads, spec.HeadSize(), 0};
    const auto mean = [&](TorchWork& work, bool is_backward) {
      const double with_mask =
          2 * machine_.attention.TorchSeconds(TorchFused::kMemoryEfficient, shape, is_backward);
      work.seconds = work.seconds * (1 - share) + with_mask * share;
    };
    mean(forward, false);
    mean(backward, true);
    TorchElements elements =
        ElementsOf(run_.micro_batch, run_.seq_len, heads_, q_columns_, kv_columns_, 0);
    elements.e = elements.q;
    AddMemory(TorchOp::kAttention, share * MovedBytes(planned.masked.forward_moves, elements), 3,
              share * MovedBytes(planned.masked.backward_moves, elements), 2, false);
  }
  AddVision(model);
}

void TorchKernels::AddExperts(const TorchModel& model, const TorchParts& parts) {
  const ModelSpec& spec = model.spec;
  const PlannedCode& code = *model.code.planned;
  const PlannedParts& planned = PlannedPartsOf(run_.fp32_params, frozen_);
  TorchElements elements = ElementsOf(run_.micro_batch, run_.seq_len, heads_, q_columns_,
                                      kv_columns_, tokens_ * spec.hidden);
  AddExpertElements(spec, tokens_, &elements);
  AddProduct(TorchOp::kRouter, spec.hidden, code.experts, false);
  const bool separate = model.separate_experts();
  const TorchOp op = separate ? TorchOp::kOneExpert : TorchOp::kExperts;
  const auto add_part = [&](TorchOp of, const CodePart& part) {
    AddMemory(of, MovedBytes(part.forward_moves, elements), part.forward_launches,
              MovedBytes(part.backward_moves, elements), part.backward_launches, false);
  };
  if (separate) {
    add_part(TorchOp::kRouter, planned.router);
    AddExpertElements(spec, tokens_, &elements, code.experts);
  }
  add_part(op, separate ? planned.one_expert : planned.ExpertsOf(code));
  // One grouped product over all experts: whole tiles of rows for each, and every weight is read.
  // Experts that are modules have matmuls of their own.
  constexpr int64_t kTile = 128;
  const int64_t each = separate ? elements.c : (elements.c + code.experts - 1) / code.experts;
  const int64_t count = separate ? 1 : code.experts;
  const int64_t rows = count * ((each + kTile - 1) / kTile * kTile);
  const auto product = [&](GemmKind kind, int64_t k, int64_t n, int times) {
    TorchWork work = Product(kind, rows, k, n, times);
    const TorchWork weights = Memory(2 * static_cast<double>(count * times * k * n), times, false);
    return weights.seconds > work.seconds ? weights : work;
  };
  TorchWork& forward = forward_[static_cast<size_t>(op)];
  TorchWork& backward = backward_[static_cast<size_t>(op)];
  const auto add = [&](int64_t k, int64_t n, int times) {
    forward += product(GemmKind::kForward, k, n, times);
    backward += product(GemmKind::kData, k, n, times);
    if (!frozen_) backward += product(GemmKind::kWeight, k, n, times);
  };
  if (separate) {
    add(spec.hidden, spec.ffn, 2);
  } else {
    add(spec.hidden, 2 * spec.ffn, 1);
  }
  add(spec.ffn, spec.hidden, 1);
  if (code.shared_ffn == 0) return;
  const double hidden_rows = static_cast<double>(tokens_ * spec.hidden);
  AddProduct(TorchOp::kGate, spec.hidden, code.shared_ffn, false);
  AddProduct(TorchOp::kDown, code.shared_ffn, spec.hidden, false);
  AddPart(TorchOp::kActivation, parts.layer.gated, tokens_ * code.shared_ffn, false);
  // Sigmoid, scale, sum; gradients of these, and of an input that four matmuls have. Without the
  // gate the sum, and of an input that three have.
  if (code.shared_gate) {
    AddMemory(TorchOp::kActivation, 10 * hidden_rows, 3, 34 * hidden_rows, 8, false);
  } else {
    AddMemory(TorchOp::kActivation, 6 * hidden_rows, 1, 18 * hidden_rows, 3, false);
  }
}

// A tower's layers, products and attention alone with what moves between them; its patches see each
// other, all or within windows.
void TorchKernels::AddVision(const TorchModel& model) {
  const VisionTower& tower = model.code.planned->vision;
  if (!tower.present()) return;
  const int64_t images = run_.micro_batch * tower.images, patches = images * tower.patches;
  const int64_t h = tower.hidden;
  const auto layers = static_cast<int>(tower.layers);
  const auto pass = [&](bool is_backward) {
    TorchWork work;
    const auto add = [&](int64_t k, int64_t n, int times) {
      work += Product(is_backward ? GemmKind::kData : GemmKind::kForward, patches, k, n, times);
      if (is_backward) work += Product(GemmKind::kWeight, patches, k, n, times);
    };
    add(h, h, 4 * layers);
    add(h, tower.ffn, (tower.gated ? 2 : 1) * layers);
    add(tower.ffn, h, layers);
    add(tower.patch_elements, h, 1);
    const auto attend = [&](int64_t seq, int64_t times) {
      if (times == 0) return;
      const AttentionShape shape{patches / seq, seq, tower.heads, h / tower.heads, 0};
      const double seconds =
          2 * static_cast<double>(times) *
          machine_.attention.TorchSeconds(TorchFused::kNewest, shape, is_backward);
      work += {seconds, static_cast<int>(times)};
    };
    const bool windows = tower.window > 0 && tower.window < tower.patches;
    attend(tower.patches, windows ? tower.full_layers : tower.layers);
    if (windows) attend(tower.window, tower.layers - tower.full_layers);
    // Norms, additions and activations: so many bytes of a channel, so many kernels.
    const double bytes = static_cast<double>(patches * (40 * h + 12 * tower.ffn));
    for (int layer = 0; layer < layers; ++layer) {
      work += Memory((is_backward ? 2 : 1) * bytes, is_backward ? 16 : 8, false);
    }
    return work;
  };
  forward_[static_cast<size_t>(TorchOp::kVision)] += pass(false);
  if (model.vision_trained) backward_[static_cast<size_t>(TorchOp::kVision)] += pass(true);
}

}  // namespace zeroplan
