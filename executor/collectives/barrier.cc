#include "executor/collectives/barrier.h"

#include <utility>

namespace zeroplan {

void AbortableBarrier::Wait() {
  std::unique_lock lock(mutex_);
  if (cause_) throw GroupAborted();
  const uint64_t round = round_;
  if (++arrived_ == size_) {
    arrived_ = 0;
    ++round_;
    changed_.notify_all();
    return;
  }
  changed_.wait(lock, [&] { return round_ != round || cause_; });
  if (cause_) throw GroupAborted();
}

void AbortableBarrier::Abort(std::exception_ptr cause) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!cause_) cause_ = std::move(cause);
  }
  changed_.notify_all();
}

std::exception_ptr AbortableBarrier::cause() const {
  const std::lock_guard lock(mutex_);
  return cause_;
}

}  // namespace zeroplan
