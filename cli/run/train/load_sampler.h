// Looks at the machine beside a run, in a thread of its own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "machine/machine_load.h"

namespace zeroplan {

// Often enough to see a run, too seldom to be felt in it.
inline constexpr std::chrono::milliseconds kLookEvery{500};

class LoadSampler {
 public:
  // Calls `seen` in its thread with each look, `every` so often, until it is destroyed; `gpus` as
  // of MachineMeter. `seen` throws nothing.
  LoadSampler(int gpus, std::chrono::milliseconds every,
              std::function<void(const MachineLoad&)> seen);
  ~LoadSampler();
  LoadSampler(const LoadSampler&) = delete;
  LoadSampler& operator=(const LoadSampler&) = delete;

 private:
  void Serve();

  MachineMeter meter_;
  const std::chrono::milliseconds every_;
  const std::function<void(const MachineLoad&)> seen_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace zeroplan
