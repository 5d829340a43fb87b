// Which of many connections have something to do: the cost of a turn is that of those, not of all.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "core/base/files.h"

namespace zeroplan {

// Over epoll. A descriptor leaves it by being closed.
class Poller {
 public:
  Poller();  // throws Error(kRuntime)

  // `id` is what Wait names it by.
  void Add(int fd, uint64_t id);
  // Whether room to send counts as something to do.
  void WantToSend(int fd, uint64_t id, bool wants);
  // The ids with something to do, none after `limit`, or when a signal came. The list is good until
  // the next call.
  const std::vector<uint64_t>& Wait(std::chrono::milliseconds limit);

 private:
  UniqueFd epoll_;
  std::vector<uint64_t> ready_;
};

}  // namespace zeroplan
