// Owner of a file descriptor.
#pragma once

#include <utility>

namespace zeroplan {

// Move-only; the destructor closes and ignores what close says (whoever needs to know calls Close).
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { Close(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    const int fd = other.Release();
    Close();
    fd_ = fd;
    return *this;
  }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  // Returns 0 or the errno of close. The descriptor is gone either way.
  int Close() noexcept;

 private:
  int fd_ = -1;
};

}  // namespace zeroplan
