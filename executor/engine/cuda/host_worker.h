// A thread that runs what the program puts on one of the host's streams, in order, beside the GPU's
// streams.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace zeroplan {

class HostWorker {
 public:
  HostWorker();
  // Lets the task under way end and drops those behind it.
  ~HostWorker();
  HostWorker(const HostWorker&) = delete;
  HostWorker& operator=(const HostWorker&) = delete;

  void Post(std::function<void()> task);
  // True once everything that was posted has run, or a task has thrown: nothing runs after that.
  bool Idle() const { return pending_.load(std::memory_order_acquire) == 0 || failed(); }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Rethrows what a task threw, if one did.
  void RethrowFailure() const;

 private:
  void Serve();

  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::atomic<int64_t> pending_{0};
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;  // set before failed_
  std::thread thread_;          // last
};

}  // namespace zeroplan
