// How a thread waits for its GPU or for other ranks.
#pragma once

#include <sys/prctl.h>

#include <chrono>
#include <thread>

namespace zeroplan {

// First it keeps asking, then it lets others work.
class Patience {
 public:
  void Pause() {
    if (++asked_ < kSpins) {
      std::this_thread::yield();
    } else {
      // Linux wakes a thread up to 50 us late that does not ask for better.
      [[maybe_unused]] static thread_local const int exact = prctl(PR_SET_TIMERSLACK, 1000UL);
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  int asked() const { return asked_; }

 private:
  static constexpr int kSpins = 2000;
  int asked_ = 0;
};

}  // namespace zeroplan
