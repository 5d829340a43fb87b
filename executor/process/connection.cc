#include "executor/process/connection.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/strings.h"

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

namespace {

bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* in = reinterpret_cast<const sockaddr_in*>(address);
    return ntohl(in->sin_addr.s_addr) >> 24 == 127;
  }
  const auto* in6 = reinterpret_cast<const sockaddr_in6*>(address);
  return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
}

void MakeAny(sockaddr* address) {
  if (address->sa_family == AF_INET) {
    reinterpret_cast<sockaddr_in*>(address)->sin_addr.s_addr = htonl(INADDR_ANY);
  } else if (address->sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address)->sin6_addr = in6addr_any;
  }
}

int BoundPort(int fd) {
  sockaddr_storage bound{};
  socklen_t bytes = sizeof bound;
  getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &bytes);
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<sockaddr_in&>(bound).sin_port);
}

// A closed one, and errno, if it cannot.
UniqueFd ListenAt(const addrinfo& at, bool any) {
  UniqueFd fd(socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return fd;
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_storage where{};
  std::memcpy(&where, at.ai_addr, at.ai_addrlen);
  if (any) MakeAny(reinterpret_cast<sockaddr*>(&where));
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&where), at.ai_addrlen) == 0 &&
      listen(fd.get(), SOMAXCONN) == 0) {
    return fd;
  }
  const int error = errno;
  fd.Close();
  errno = error;
  return fd;
}

}  // namespace

Addresses Resolve(const std::string& host, int port, std::string& why) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) why = fmt::format("{}: {}", host, gai_strerror(error));
  return Addresses(error == 0 ? found : nullptr);
}

std::vector<std::string> SplitHosts(const std::string& address) {
  std::vector<std::string> hosts;
  for (const std::string_view host : Split(address, ',')) {
    if (!host.empty()) hosts.emplace_back(host);
  }
  return hosts;
}

UniqueFd BeginToConnect(const addrinfo& address, std::string& why) {
  UniqueFd fd(socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd && (connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0 || errno == EINPROGRESS)) {
    return fd;
  }
  why = std::strerror(errno);
  return {};
}

std::string WhyNotConnected(int fd) {
  int error = 0;
  socklen_t bytes = sizeof error;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
  return error == 0 ? "" : std::strerror(error);
}

namespace {

// `name_of`: getpeername or getsockname.
std::string AddressBy(int (*name_of)(int, sockaddr*, socklen_t*), int fd) {
  sockaddr_storage name{};
  socklen_t bytes = sizeof name;
  char text[NI_MAXHOST] = "";
  if (name_of(fd, reinterpret_cast<sockaddr*>(&name), &bytes) != 0) return "";
  getnameinfo(reinterpret_cast<sockaddr*>(&name), bytes, text, sizeof text, nullptr, 0,
              NI_NUMERICHOST);
  return text;
}

}  // namespace

std::string PeerAddress(int fd) { return AddressBy(getpeername, fd); }

bool IsLoopbackText(std::string_view address) {
  return address.empty() || address.starts_with("127.") || address == "::1" ||
         address.starts_with("::ffff:127.");
}

std::string OwnAddress(const std::vector<Connection>& connections) {
  constexpr std::string_view kMapped = "::ffff:";  // IPv4 on a socket of both
  std::string loopback;
  for (const Connection& connection : connections) {
    if (!connection.open()) continue;
    std::string own = AddressBy(getsockname, connection.fd());
    if (own.starts_with(kMapped)) own.erase(0, kMapped.size());
    if (!IsLoopbackText(own)) return own;
    // The two ends of a connection to 127.0.1.1 are 127.0.0.1 and 127.0.1.1.
    loopback = own.starts_with("127.") ? "127.0.0.1" : std::move(own);
  }
  return loopback;
}

UniqueFd Listen(const std::string& address, bool other_hosts, int& port) {
  std::string why = "no such address";
  const std::vector<std::string> hosts = SplitHosts(address);
  for (const bool any : {false, true}) {
    if (!any && hosts.size() > 1) continue;
    bool foreign = hosts.size() > 1;  // an address that is none of this host's
    for (const std::string& host : hosts) {
      const Addresses found = Resolve(host, port, why);
      for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
        if (!any && other_hosts && IsLoopback(at->ai_addr)) {
          foreign = true;
          continue;
        }
        UniqueFd fd = ListenAt(*at, any);
        if (fd) {
          if (port == 0) port = BoundPort(fd.get());
          return fd;
        }
        why = std::strerror(errno);
        foreign = foreign || errno == EADDRNOTAVAIL;
      }
    }
    if (!foreign) break;
  }
  ThrowRuntime("rank 0 cannot listen at {}:{}: {}; ZEROPLAN_PORT sets another port", address, port,
               why);
}

namespace {

rlim_t OpenNow() {
  std::error_code error;
  std::filesystem::directory_iterator at("/proc/self/fd", error), end;
  rlim_t count = 0;
  for (; !error && at != end; at.increment(error)) ++count;
  return error ? 64 : count;
}

}  // namespace

int RaiseOpenFileLimit(int more) {
  rlimit limit{};
  const rlim_t open = OpenNow(), needed = open + static_cast<rlim_t>(more);
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return more;
  if (limit.rlim_cur < needed) {
    limit.rlim_cur = std::min(needed, limit.rlim_max);
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
  }
  if (limit.rlim_cur >= needed) return more;
  return limit.rlim_cur > open ? static_cast<int>(limit.rlim_cur - open) : 0;
}

void NeedOpenFiles(int more, const char* what) {
  const int can = RaiseOpenFileLimit(more);
  if (can >= more) return;
  ThrowRuntime(
      "{} need {} more open files, and this process's hard limit leaves {}; raise it (ulimit -Hn, "
      "LimitNOFILE of the service)",
      what, more, can);
}

}  // namespace zeroplan
