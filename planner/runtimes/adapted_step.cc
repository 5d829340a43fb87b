// TorchStep's and TorchKernels' linear modules with adapters, or in NF4.
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "planner/runtimes/torch_adapters.h"
#include "planner/runtimes/torch_kernels.h"
#include "planner/runtimes/torch_model.h"
#include "planner/runtimes/torch_timer.h"

namespace zeroplan {
namespace {

// PEFT's layer around the linear, and its dropout: modules without parameters.
constexpr int kBareModules = 2;
constexpr int64_t kLowRank = 64;

const TorchParam& WeightOf(const TorchModel& model, int module) {
  const int param = model.modules[static_cast<size_t>(module)].params.front();
  return model.params[static_cast<size_t>(param)];
}

}  // namespace

bool TorchStep::IsAdapted(int module) const {
  return model_.modules[static_cast<size_t>(module)].down >= 0;
}

bool TorchStep::IsQuantized(int module) const { return WeightOf(model_, module).quantized > 0; }

AdapterRun TorchStep::AdaptersOf(int module) const {
  const bool out =
      (module - model_.first_layer_module) % model_.layer_modules == model_.out_module();
  return out ? run_.adapters.OfAttention() : run_.adapters;
}

const AdaptedLinear& TorchStep::Adapted(int module) const {
  return AdaptedLinearOf(AdaptersOf(module), IsQuantized(module), model_.spec.lora_dropout > 0);
}

bool TorchStep::KeepsInput(int module) const {
  if (IsAdapted(module)) return Adapted(module).keeps_input;
  // Made again from what is kept before it (docs/runtimes.md, "FP8 by torchao").
  if (IsFloat8(model_, run_, module)) return false;
  return WeightOf(model_, module).trained;
}

TorchElements TorchStep::AdapterElements(int module) const {
  const TorchParam& weight = WeightOf(model_, module);
  const uint64_t elements = weight.quantized > 0 ? weight.quantized : weight.elements;
  // Of a GPT-2 matrix, which lies [in, out], columns are outputs.
  const auto first = static_cast<int64_t>(weight.columns);
  const auto second = static_cast<int64_t>(elements) / first;
  const bool in_out = model_.code.one_qkv && model_.code.planned == nullptr;
  const int64_t in = in_out ? second : first;
  TorchElements all = Elements(tokens_ * in);
  all.y = tokens_ * (in == first ? second : first);
  all.b = tokens_ * model_.spec.lora_rank;
  all.w = static_cast<int64_t>(elements);
  all.z = (all.w + 63) / 64;
  return all;
}

Tensor TorchStep::AdaptedLinear(int module, TorchOp op, int64_t /*columns*/, Saved* saved) {
  const TorchElements elements = AdapterElements(module);
  const auto play = [&](std::string_view words, TorchSlots* slots) {
    Play(words, elements, slots, -1, TorchClass::kActivations);
  };
  hooks_->BeforeForward(module);
  if (IsQuantized(module)) timer_->Host(timer_->constants().four_bit_forward);
  timer_->Forward(op);
  if (!IsAdapted(module)) {
    TorchSlots slots;
    play(QuantizedLinearOf(AdaptersOf(module)).forward, &slots);
    hooks_->AfterForward(module);
    return std::move(slots['o']);
  }
  const zeroplan::AdaptedLinear& row = Adapted(module);
  const TorchModule& linear = model_.modules[static_cast<size_t>(module)];
  TorchSlots& slots = saved->adapted[module];
  for (int i = 0; i < kBareModules; ++i) hooks_->BeforeLayer();
  timer_->Host(timer_->constants().adapter);
  play(row.base, &slots);
  timer_->ForwardAdapter(op);
  hooks_->BeforeForward(linear.down);
  play(row.down, &slots);
  hooks_->AfterForward(linear.down);
  hooks_->BeforeForward(linear.up);
  play(row.up, &slots);
  hooks_->AfterForward(linear.up);
  play(row.sum, &slots);
  hooks_->AfterForward(module);
  Tensor out = std::move(slots['o']);
  if (!keeps_) saved->adapted.erase(module);
  return out;
}

Tensor TorchStep::AdaptedLinearBackward(int module, TorchOp op, int64_t /*inputs*/, Saved* saved) {
  const TorchElements elements = AdapterElements(module);
  hooks_->BeforeBackward(module);
  if (IsQuantized(module)) timer_->Host(timer_->constants().four_bit_backward);
  TorchSlots none;
  const auto play = [&](std::string_view words, TorchSlots* slots, int of) {
    Play(words, elements, slots, of, TorchClass::kActivations);
  };
  if (!IsAdapted(module)) {
    timer_->Backward(op);
    play(QuantizedLinearOf(AdaptersOf(module)).backward, &none, -1);
    hooks_->AfterBackward(module);
    return std::move(none['d']);
  }
  const zeroplan::AdaptedLinear& row = Adapted(module);
  const TorchModule& linear = model_.modules[static_cast<size_t>(module)];
  TorchSlots& slots = saved->adapted[module];
  for (int i = 0; i < kBareModules; ++i) hooks_->BeforeLayerBackward();
  timer_->BackwardAdapter(op);
  play(row.sum_back, &slots, -1);
  hooks_->BeforeBackward(linear.up);
  play(row.up_back, &slots, linear.up);
  hooks_->AfterBackward(linear.up);
  hooks_->BeforeBackward(linear.down);
  play(row.down_back, &slots, linear.down);
  hooks_->AfterBackward(linear.down);
  timer_->Backward(op);
  play(row.base_back, &slots, -1);
  hooks_->AfterBackward(module);
  Tensor grad = std::move(slots['d']);
  saved->adapted.erase(module);
  return grad;
}

void TorchKernels::AddAdapters(const TorchModel& model) {
  if (!model.has_adapters()) return;
  const auto add = [&](TorchOp op, std::initializer_list<int> offsets, int64_t in, int64_t out) {
    const auto of = static_cast<size_t>(op);
    const TorchModule* adapted = nullptr;
    for (const int offset : offsets) {
      const size_t at = static_cast<size_t>(model.first_layer_module) + static_cast<size_t>(offset);
      if (model.modules[at].down >= 0) adapted = &model.modules[at];
    }
    if (model.spec.lora_quantized) {
      const double bytes = DequantizedBytes(static_cast<double>(in * out));
      TorchWork made = Memory(bytes, kDequantizeLaunches, false);
      made.launches = 0;  // the host's time is TimeConstants::four_bit_forward's, and backward's
      forward_[of] += made;
      backward_[of] += made;
    }
    if (adapted == nullptr) return;
    const AdapterRun run = op == TorchOp::kOutProj ? run_.adapters.OfAttention() : run_.adapters;
    const zeroplan::AdaptedLinear& row =
        AdaptedLinearOf(run, model.spec.lora_quantized, model.spec.lora_dropout > 0);
    TorchElements elements;
    elements.e = tokens_ * in;
    elements.y = tokens_ * out;
    TorchWork& forward = adapter_forward_[of];
    TorchWork& backward = adapter_backward_[of];
    const int64_t rank = model.spec.lora_rank;
    for (const auto& [k, n] : {std::pair(in, rank), std::pair(rank, out)}) {
      // Of low rank they are bound by reading or writing the wide matrix.
      const TorchWork wide = Memory(2 * static_cast<double>(tokens_ * (k + n) + k * n), 1, false);
      const bool low = rank <= kLowRank;
      forward += low ? wide : Product(GemmKind::kForward, tokens_, k, n);
      backward += low ? wide : Product(GemmKind::kData, tokens_, k, n);
      backward += low ? wide : Product(GemmKind::kWeight, tokens_, k, n);
    }
    const bool compiled = run_.compiled;
    forward += Memory(MovedBytes(row.forward_moves, elements), row.forward_launches, compiled);
    backward += Memory(MovedBytes(row.backward_moves, elements), row.backward_launches, compiled);
  };
  const int64_t hidden = model.spec.hidden, ffn = model.spec.ffn;
  if (model.code.one_qkv) {
    add(TorchOp::kQkv, {1}, hidden, q_columns_ + 2 * kv_columns_);
  } else {
    add(TorchOp::kQkv, {1}, hidden, q_columns_);
    add(TorchOp::kKey, {2, 3}, hidden, kv_columns_);
  }
  add(TorchOp::kOutProj, {model.out_module()}, q_columns_, hidden);
  if (model.code.planned != nullptr && model.code.planned->experts > 0) return;
  add(TorchOp::kUp, {model.up_module()}, hidden, model.one_gate_up() ? 2 * ffn : ffn);
  if (model.code.gated && !model.one_gate_up())
    add(TorchOp::kGate, {model.up_module() + 1}, hidden, ffn);
  add(TorchOp::kDown, {model.down_module()}, ffn, hidden);
}

}  // namespace zeroplan
