// Runs searches concurrently.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

namespace zeroplan {

// Thrown by a task that ends because its crew was stopped.
struct CrewStopped {};

class Crew {
 public:
  // Runs all tasks, on as many threads as there are processors, and returns when all have ended.
  // Meanwhile calls `tell` (may be empty) on the calling thread, every 50 ms. An exception of a
  // task or of `tell` stops the crew and is rethrown here; among several tasks that of the first in
  // the list. Tasks must lock the data that they share and change.
  void Run(const std::vector<std::function<void()>>& tasks, const std::function<void()>& tell);

  // Tasks call it every now and then: throws CrewStopped if nobody waits for them any more.
  void CheckStopped() const {
    if (stop_) throw CrewStopped();
  }

 private:
  std::atomic<bool> stop_ = false;
};

}  // namespace zeroplan
