#include "planner/runtimes/torch_offload.h"

#include <utility>

namespace zeroplan {
namespace {

constexpr int kActivationStream = 5;

}  // namespace

void ActivationOffload::CopyOut() {
  memory_->Pin(bytes_);
  timer_->StreamWaits(kActivationStream, TorchClock::kComputeStream);
  timer_->Copy(kActivationStream, /*to_device=*/false, static_cast<double>(bytes_));
}

void ActivationOffload::BeginLayer() {
  used_.clear();
  if (how_.at_start) CopyOut();
}

void ActivationOffload::Keep(Tensor input) {
  kept_.push_back(std::move(input));
  if (kept_.size() <= how_.kept) return;
  if (!how_.at_start) CopyOut();
  stash_.push_back({std::move(kept_.front()), timer_->Record(kActivationStream)});
  kept_.pop_front();
  if (stash_.size() <= how_.stash) return;
  if (how_.waits) timer_->StreamWaits(TorchClock::kComputeStream, stash_.front().copied);
  stash_.pop_front();
  ++on_host_;
}

Tensor ActivationOffload::Bring() {
  used_.push_back(timer_->Record(TorchClock::kComputeStream));
  if (!kept_.empty()) {
    Tensor input = std::move(kept_.back());
    kept_.pop_back();
    return input;
  }
  memory_->Unpin(bytes_);
  if (!stash_.empty()) {
    timer_->StreamWaits(TorchClock::kComputeStream, stash_.back().copied);
    Tensor input = std::move(stash_.back().input);
    stash_.pop_back();
    // torchtune's hooks drop the others when the first has been used.
    if (how_.waits) {
      on_host_ += stash_.size();
      stash_.clear();
    }
    return input;
  }
  --on_host_;
  if (how_.in_order > 0 && used_.size() > how_.in_order) {
    timer_->StreamWaits(kActivationStream, used_[used_.size() - 1 - how_.in_order]);
  }
  Tensor input = memory_->New(TorchClass::kActivations, bytes_, kActivationStream);
  timer_->Copy(kActivationStream, /*to_device=*/true, static_cast<double>(bytes_));
  timer_->StreamWaits(TorchClock::kComputeStream, kActivationStream);
  return input;
}

}  // namespace zeroplan
