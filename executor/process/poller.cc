#include "executor/process/poller.h"

#include <sys/epoll.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "core/base/error.h"

namespace zeroplan {

Poller::Poller() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) ThrowRuntime("cannot watch connections: {}", std::strerror(errno));
}

void Poller::Add(int fd, uint64_t id) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = id;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    ThrowRuntime("cannot watch a connection: {}", std::strerror(errno));
  }
}

void Poller::WantToSend(int fd, uint64_t id, bool wants) {
  epoll_event event{};
  event.events = wants ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u64 = id;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0) {
    ThrowRuntime("cannot watch a connection: {}", std::strerror(errno));
  }
}

const std::vector<uint64_t>& Poller::Wait(std::chrono::milliseconds limit) {
  std::array<epoll_event, 256> events;
  const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                               static_cast<int>(limit.count()));
  ready_.clear();
  for (int i = 0; i < count; ++i) {
    // A copy: epoll_event is packed on x86, and a reference to a member of it is misaligned.
    const uint64_t tag = events[static_cast<size_t>(i)].data.u64;
    ready_.push_back(tag);
  }
  return ready_;
}

}  // namespace zeroplan
