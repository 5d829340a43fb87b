// TorchStep: the head and the loss, in one piece or by chunks of the tokens.
#include <cstdint>
#include <utility>

#include "planner/runtimes/torch_code.h"
#include "planner/runtimes/torch_model.h"
#include "planner/runtimes/torch_timer.h"

namespace zeroplan {

int64_t TorchStep::ChunkTokens() const {
  return LossChunkTokens(parts_.chunks, tokens_, hidden_, vocab_);
}

int64_t TorchStep::HeadElements() const {
  const TorchParam& weight = model_.params[static_cast<size_t>(model_.head_weight())];
  return weight.trained ? static_cast<int64_t>(weight.elements) : 0;
}

void TorchStep::HeadAndLoss() {
  const int64_t chunk = ChunkTokens();
  const bool with_gradients = parts_.chunks == LossChunks::kByHidden;
  hooks_->BeforeForward(model_.head());
  timer_->Forward(TorchOp::kHead);
  loss_.clear();
  loss_.resize(with_gradients ? 1 : static_cast<size_t>((tokens_ + chunk - 1) / chunk));
  if (with_gradients) {
    Play(parts_.loss.forward, tokens_ * hidden_, &loss_[0]);
    if (!run_.evaluates) {
      head_grad_ = New(parts_.style.stream_bytes * HeadElements(), TorchClass::kGrads);
    }
    Tensor logits = New(2 * chunk * vocab_, TorchClass::kLogits);
    if (parts_.style.chunks_cast_head) Tensor cast = New(2 * HeadElements());
    timer_->Forward(TorchOp::kLoss);
    hooks_->AfterForward(model_.head());
    final_norm_.Reset();
    return;
  }
  if (parts_.norm_bytes > 2) {
    Tensor cast = Rows(hidden_);
    final_norm_ = std::move(cast);
  }
  for (TorchSlots& slots : loss_) slots['i'] = New(2 * chunk * vocab_, TorchClass::kLogits);
  hooks_->AfterForward(model_.head());
  timer_->Forward(TorchOp::kLoss);
  for (TorchSlots& slots : loss_) {
    Play(parts_.loss.forward, chunk * vocab_, &slots, -1, TorchClass::kLogits);
  }
  if (parts_.loss.Keeps('i')) return;
  for (TorchSlots& slots : loss_) slots['i'].Reset();
}

Tensor TorchStep::HeadAndLossBackward() {
  const int head = model_.head_weight();
  timer_->Backward(TorchOp::kLoss);
  Tensor d_norm;
  TorchSlots last;
  if (parts_.chunks == LossChunks::kByHidden) {
    d_norm = std::move(loss_[0]['d']);
  } else {
    const int64_t chunk = ChunkTokens();
    last = std::move(loss_.back());
    Play(parts_.loss.backward, chunk * vocab_, &last, -1, TorchClass::kLogits);
  }
  if (!backward_workspace_) backward_workspace_ = New(kGemmWorkspaceBytes, TorchClass::kBuffers);
  hooks_->BeforeBackward(model_.head());
  timer_->Backward(TorchOp::kHead);
  if (!d_norm) {
    d_norm = New(parts_.norm_bytes * tokens_ * hidden_);
    head_grad_ = New(2 * HeadElements(), TorchClass::kGrads);
    loss_.pop_back();
    for (; !loss_.empty(); loss_.pop_back()) {
      last.Reset();
      Play(parts_.loss.backward, ChunkTokens() * vocab_, &loss_.back(), -1, TorchClass::kLogits);
      Tensor more = New(2 * HeadElements(), TorchClass::kGrads);  // added in place
    }
  }
  if (!model_.spec.tied_head && head_grad_) hooks_->Gradient(head, std::move(head_grad_));
  hooks_->AfterBackward(model_.head());
  return d_norm;
}

}  // namespace zeroplan
