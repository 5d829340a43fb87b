#include "executor/process/connection.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "core/base/error.h"

namespace zeroplan {
namespace {

constexpr size_t kHeader = sizeof(uint32_t) + 1;

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

Connection::Connection(UniqueFd socket, size_t max_payload)
    : socket_(std::move(socket)),
      max_payload_(max_payload),
      heard_(std::chrono::steady_clock::now()) {
  fcntl(fd(), F_SETFL, fcntl(fd(), F_GETFL, 0) | O_NONBLOCK);
  fcntl(fd(), F_SETFD, FD_CLOEXEC);
  const int on = 1;  // small frames, each waited for
  setsockopt(fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

SharedFrame MakeFrame(FrameType type, std::string_view payload) {
  ZEROPLAN_CHECK(payload.size() <= Connection::kMaxPayload, "{} bytes in one frame",
                 payload.size());
  const auto bytes = static_cast<uint32_t>(payload.size());
  std::string frame(reinterpret_cast<const char*>(&bytes), sizeof bytes);
  frame += static_cast<char>(type);
  frame += payload;
  return std::make_shared<const std::string>(std::move(frame));
}

void Connection::Queue(FrameType type, std::string_view payload) {
  if (open()) Queue(MakeFrame(type, payload));
}

void Connection::Queue(SharedFrame frame) {
  if (open()) out_.push_back(std::move(frame));
}

void Connection::Pump() {
  if (open()) Receive();
  Flush();
}

void Connection::Flush() {
  if (!open() || Send()) return;
  Receive();  // what the other side said before it went away is not lost
  Close();
}

bool Connection::Send() {
  while (!out_.empty()) {
    const std::string& frame = *out_.front();
    const ssize_t sent = ::send(fd(), frame.data() + sent_, frame.size() - sent_, MSG_NOSIGNAL);
    if (sent < 0) return WouldBlock();
    sent_ += static_cast<size_t>(sent);
    if (sent_ < frame.size()) continue;
    out_.pop_front();
    sent_ = 0;
  }
  return true;
}

void Connection::Receive() {
  char buffer[1 << 16];
  for (;;) {
    const ssize_t got = ::recv(fd(), buffer, sizeof buffer, 0);
    if (got < 0 && WouldBlock()) return;
    if (got <= 0) return Close();
    heard_ = std::chrono::steady_clock::now();
    in_.append(buffer, static_cast<size_t>(got));
    if (in_.size() - taken_ > kHeader + max_payload_) return;  // Next() first
  }
}

std::optional<Frame> Connection::Next() {
  if (in_.size() - taken_ < kHeader) return std::nullopt;
  uint32_t bytes = 0;
  std::memcpy(&bytes, in_.data() + taken_, sizeof bytes);
  const auto type = static_cast<uint8_t>(in_[taken_ + sizeof bytes]);
  if (bytes > max_payload_ || type > static_cast<uint8_t>(FrameType::kProof)) {
    in_.clear();
    taken_ = 0;
    Close();
    return std::nullopt;
  }
  if (in_.size() - taken_ < kHeader + bytes) return std::nullopt;
  Frame frame{static_cast<FrameType>(type), in_.substr(taken_ + kHeader, bytes)};
  taken_ += kHeader + bytes;
  if (taken_ == in_.size()) {
    in_.clear();
    taken_ = 0;
  } else if (taken_ > kMaxPayload) {
    in_.erase(0, taken_);
    taken_ = 0;
  }
  return frame;
}

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
