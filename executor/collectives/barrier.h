// A barrier that one thread's failure opens for everybody.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>

namespace zeroplan {

// Thrown in the ranks that were waiting for one that failed. It is not the cause: that is
// AbortableBarrier::cause().
class GroupAborted : public std::exception {
 public:
  const char* what() const noexcept override { return "another rank failed"; }
};

class AbortableBarrier {
 public:
  explicit AbortableBarrier(int size) : size_(size) {}

  // Returns when all `size` threads have arrived, with what they wrote before visible. Throws
  // GroupAborted, at once and from then on, if the group is aborted.
  void Wait();

  // Any thread, any number of times: the first cause is kept.
  void Abort(std::exception_ptr cause) noexcept;
  // Null while the group is sound.
  std::exception_ptr cause() const;

 private:
  const int size_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  uint64_t round_ = 0;
  std::exception_ptr cause_;
};

}  // namespace zeroplan
