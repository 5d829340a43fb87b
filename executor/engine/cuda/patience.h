// How a thread waits for something near.
#pragma once

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
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  int asked() const { return asked_; }

 private:
  static constexpr int kSpins = 2000;
  int asked_ = 0;
};

}  // namespace zeroplan
