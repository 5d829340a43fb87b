#include "cli/run/train/load_sampler.h"

#include <utility>

#include "executor/process/stop_signals.h"

namespace zeroplan {

LoadSampler::LoadSampler(int gpus, std::chrono::milliseconds every,
                         std::function<void(const MachineLoad&)> seen)
    : meter_(gpus), every_(every), seen_(std::move(seen)) {
  const StopSignalsBlocked blocked;  // they are the run's thread's
  thread_ = std::thread([this] { Serve(); });
}

LoadSampler::~LoadSampler() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void LoadSampler::Serve() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    seen_(meter_.Look());
    lock.lock();
    changed_.wait_for(lock, every_, [this] { return stopping_; });
  }
}

}  // namespace zeroplan
