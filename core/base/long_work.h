// Work that a person waits for, on the progress line (core/base/terminal.h).
#pragma once

#include <chrono>
#include <string>
#include <utility>

#include "core/base/terminal.h"

namespace zeroplan {

// Says what is being done from its first Show until it ends. Costs next to nothing where there is
// no progress line. One at a time, in one thread.
class LongWork {
 public:
  // "Searching". `at_once`: it is shown right away, as for work that does not say how far it is.
  explicit LongWork(std::string doing, bool at_once = false) : doing_(std::move(doing)) {
    if (at_once) ShowProgress(doing_);
  }
  ~LongWork() { HideProgress(); }
  LongWork(const LongWork&) = delete;
  LongWork& operator=(const LongWork&) = delete;

  void Doing(std::string what) { doing_ = std::move(what); }
  // "Searching: 120 programs lowered", ten times a second at most. `how_far()` makes the text, and
  // is called only where it is shown.
  template <typename HowFar>
  void Show(HowFar how_far) {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_) return;
    next_ = now + std::chrono::milliseconds(100);
    if (ProgressColumns() > 0) ShowProgress(doing_ + ": " + how_far());
  }

 private:
  std::string doing_;
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace zeroplan
