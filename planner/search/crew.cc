#include "planner/search/crew.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "core/base/thread.h"

namespace zeroplan {

void Crew::Run(const std::vector<std::function<void()>>& tasks, const std::function<void()>& tell) {
  stop_ = false;
  std::vector<std::exception_ptr> failed(tasks.size());
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t at = next++; at < tasks.size() && !stop_; at = next++) {
      try {
        tasks[at]();
      } catch (const CrewStopped&) {
      } catch (...) {
        failed[at] = std::current_exception();
        stop_ = true;
      }
    }
  };
  std::mutex mutex;
  std::condition_variable ended;
  size_t done = 0;
  std::vector<std::jthread> threads = StartHelpers(
      std::min<size_t>(std::max(1u, std::thread::hardware_concurrency()), tasks.size()), [&] {
        work();
        const std::lock_guard lock(mutex);
        ++done;
        ended.notify_one();
      });
  if (threads.empty()) work();  // there is no other thread to be had: nothing is told
  std::exception_ptr stopped;
  {
    std::unique_lock lock(mutex);
    while (done < threads.size()) {
      ended.wait_for(lock, std::chrono::milliseconds(50));
      if (stopped || !tell) continue;
      lock.unlock();
      try {
        tell();
      } catch (...) {
        stopped = std::current_exception();
        stop_ = true;
      }
      lock.lock();
    }
  }
  threads.clear();
  if (stopped) std::rethrow_exception(stopped);
  for (const std::exception_ptr& one : failed) {
    if (one) std::rethrow_exception(one);
  }
}

}  // namespace zeroplan
