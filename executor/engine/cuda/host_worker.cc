#include "executor/engine/cuda/host_worker.h"

#include <utility>

namespace zeroplan {

HostWorker::HostWorker() : thread_([this] { Serve(); }) {}

HostWorker::~HostWorker() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  posted_.notify_one();
  thread_.join();
}

void HostWorker::Post(std::function<void()> task) {
  pending_.fetch_add(1, std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  posted_.notify_one();
}

void HostWorker::RethrowFailure() const {
  if (failed()) std::rethrow_exception(failure_);
}

void HostWorker::Serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    posted_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (stopping_) return;
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    if (!failed()) {
      try {
        task();
      } catch (...) {
        failure_ = std::current_exception();
        failed_.store(true, std::memory_order_release);
      }
    }
    pending_.fetch_sub(1, std::memory_order_release);
    lock.lock();
  }
}

}  // namespace zeroplan
