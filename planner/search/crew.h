// Searches side by side.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

namespace zeroplan {

// What a task throws that ends because its crew was stopped.
struct CrewStopped {};

class Crew {
 public:
  // Runs all tasks, on as many threads as there are processors, and returns when all have ended.
  // Meanwhile `tell` (may be empty) is called on the calling thread, every 50 ms.
  // What a task or `tell` throws stops the crew, and is thrown from here: of several tasks that of
  // the first in the list. Tasks must not share what they change without a lock.
  void Run(const std::vector<std::function<void()>>& tasks, const std::function<void()>& tell);

  // For tasks, every now and then: throws CrewStopped if nobody waits for them any more.
  void CheckStopped() const {
    if (stop_) throw CrewStopped();
  }

 private:
  std::atomic<bool> stop_ = false;
};

}  // namespace zeroplan
