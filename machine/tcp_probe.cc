#include "machine/tcp_probe.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <list>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/thread.h"
#include "core/base/timing.h"

namespace zeroplan {
namespace {

using ProbeClock = std::chrono::steady_clock;

constexpr int kMostServed = 512;  // connections at a time; one more is closed
constexpr size_t kChunk = size_t{256} << 10;

// What a connection is for, and what a client sends first.
enum class ProbeOp : char { kReach = 'r', kEcho = 'e', kSink = 's', kSource = 'd' };
struct Opening {
  ProbeToken token{};
  ProbeOp op = ProbeOp::kReach;
  char unused[3] = {};
  uint32_t window_milliseconds = 0;
  uint64_t most_bytes = 0;
};
static_assert(sizeof(Opening) == 48);
struct Greeting {
  ProbeToken token{};
  uint32_t name = 0;
};
// What came in the window, behind its first quarter.
struct Count {
  uint64_t bytes = 0;
  double seconds = 0;
  double rate() const { return seconds > 0 ? static_cast<double>(bytes) / seconds : 0; }
};

int Milliseconds(double seconds) { return static_cast<int>(std::clamp(seconds * 1000, 0.0, 2e9)); }

// Blocking calls of `fd` end with EAGAIN after that long.
void LimitWaits(int fd, double seconds) {
  timeval limit{};
  limit.tv_sec = static_cast<time_t>(seconds);
  limit.tv_usec = static_cast<suseconds_t>((seconds - std::floor(seconds)) * 1e6);
  if (limit.tv_sec == 0 && limit.tv_usec == 0) limit.tv_usec = 1000;
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL, 0) & ~O_NONBLOCK);
}

// What is still in the socket's buffer is thrown away with it, so that it is in nobody's way.
void DropOnClose(int fd) {
  const linger drop{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &drop, sizeof drop);
}

bool SendWhole(int fd, const void* bytes, size_t size) {
  const char* at = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t sent = send(fd, at, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

bool ReceiveWhole(int fd, void* bytes, size_t size) {
  char* at = static_cast<char*>(bytes);
  while (size > 0) {
    const ssize_t got = recv(fd, at, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

// Receives for the window, from the first bytes on.
Count CountWhatComes(int fd, double window, uint64_t most_bytes) {
  std::vector<char> buffer(kChunk);
  Count count;
  uint64_t all = 0;
  ProbeClock::time_point begin, counted;
  for (;;) {
    const ssize_t got = recv(fd, buffer.data(), buffer.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return count;
    if (all == 0) begin = ProbeClock::now();
    all += static_cast<uint64_t>(got);
    const double since = SecondsSince(begin);
    if (counted == ProbeClock::time_point()) {
      if (since >= window / 4 || all >= most_bytes / 4) counted = ProbeClock::now();
      continue;
    }
    count.bytes += static_cast<uint64_t>(got);
    count.seconds = SecondsSince(counted);
    if (since >= window || all >= most_bytes) return count;
  }
}

// Sends until the peer answers or goes, or takes nothing for as long as it may take.
void SendUntilAnswered(int fd, double wait) {
  const std::vector<char> zeros(kChunk);
  for (;;) {
    pollfd one{fd, POLLIN | POLLOUT, 0};
    if (poll(&one, 1, Milliseconds(wait)) <= 0) return;
    if ((one.revents & ~POLLOUT) != 0) return;
    const ssize_t sent = send(fd, zeros.data(), zeros.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return;
  }
}

// Both of IPv4 and IPv6 where the kernel has that.
UniqueFd ListenEverywhere(int asked, ProbePort& port) {
  for (const int family : {AF_INET6, AF_INET}) {
    UniqueFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd) {
      port.why = std::strerror(errno);
      continue;
    }
    const int on = 1, off = 0;
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_storage where{};
    socklen_t bytes = sizeof(sockaddr_in);
    where.ss_family = static_cast<sa_family_t>(family);
    if (family == AF_INET6) {
      setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
      bytes = sizeof(sockaddr_in6);
    }
    // The port lies at the same place in both.
    reinterpret_cast<sockaddr_in&>(where).sin_port = htons(static_cast<uint16_t>(asked));
    if (bind(fd.get(), reinterpret_cast<sockaddr*>(&where), bytes) == 0 &&
        listen(fd.get(), SOMAXCONN) == 0 &&
        getsockname(fd.get(), reinterpret_cast<sockaddr*>(&where), &bytes) == 0) {
      port.port = ntohs(reinterpret_cast<sockaddr_in&>(where).sin_port);
      port.why.clear();
      return fd;
    }
    port.why = std::strerror(errno);
  }
  return {};
}

}  // namespace

class ProbeServer::Impl {
 public:
  Impl(const ProbeToken& token, uint32_t name, const std::vector<int>& ports, double seconds)
      : greeting_{token, name}, seconds_(seconds), stop_(eventfd(0, EFD_CLOEXEC)) {
    for (const int asked : ports) {
      ProbePort port{asked, 0, {}};
      UniqueFd fd = ListenEverywhere(asked, port);
      if (fd) listeners_.push_back(std::move(fd));
      ports_.push_back(std::move(port));
    }
    thread_ = StartThread("those who ask this host", [this] { Accept(); });
  }
  ~Impl() {
    stopping_ = true;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(stop_.get(), &one, sizeof one);
    thread_.join();
    for (Served& served : served_) {
      shutdown(served.fd.get(), SHUT_RDWR);
      served.thread.join();
    }
  }

  const std::vector<ProbePort>& ports() const { return ports_; }

 private:
  struct Served {
    UniqueFd fd;
    std::atomic<bool> done{false};
    std::jthread thread;
  };

  void Accept() {
    std::vector<pollfd> polled = {{stop_.get(), POLLIN, 0}};
    for (const UniqueFd& fd : listeners_) polled.push_back({fd.get(), POLLIN, 0});
    while (!stopping_) {
      if (poll(polled.data(), polled.size(), -1) < 0) continue;
      for (size_t i = 1; i < polled.size(); ++i) {
        if (polled[i].revents == 0) continue;
        UniqueFd fd(accept4(polled[i].fd, nullptr, nullptr, SOCK_CLOEXEC));
        served_.remove_if([](Served& served) {
          if (!served.done) return false;
          served.thread.join();
          return true;
        });
        if (!fd || served_.size() >= static_cast<size_t>(kMostServed)) continue;
        Served& served = served_.emplace_back();
        served.fd = std::move(fd);
        try {
          served.thread = StartThread("a host that asks", [this, &served] {
            Serve(served.fd.get());
            // Descriptors are closed by their owner; the peer learns of the end here.
            shutdown(served.fd.get(), SHUT_RDWR);
            served.done = true;
          });
        } catch (const Error&) {
          served_.pop_back();  // it asks again, or says that it had no answer
        }
      }
    }
  }

  void Serve(int fd) const {
    LimitWaits(fd, seconds_);
    Opening opening;
    if (!ReceiveWhole(fd, &opening, sizeof opening) || opening.token != greeting_.token) return;
    if (!SendWhole(fd, &greeting_, sizeof greeting_)) return;
    const double window = opening.window_milliseconds / 1000.0;
    switch (opening.op) {
      case ProbeOp::kReach:
        return;
      case ProbeOp::kEcho:
        for (char byte = 0; ReceiveWhole(fd, &byte, 1);) {
          if (!SendWhole(fd, &byte, 1)) return;
        }
        return;
      case ProbeOp::kSink: {
        const Count count = CountWhatComes(fd, window, opening.most_bytes);
        if (!SendWhole(fd, &count, sizeof count)) return;
        // The peer reads that and goes.
        std::vector<char> rest(kChunk);
        while (recv(fd, rest.data(), rest.size(), 0) > 0) {
        }
        return;
      }
      case ProbeOp::kSource:
        DropOnClose(fd);
        return SendUntilAnswered(fd, seconds_);
    }
  }

  const Greeting greeting_;
  const double seconds_;
  UniqueFd stop_;
  std::vector<UniqueFd> listeners_;
  std::vector<ProbePort> ports_;
  std::atomic<bool> stopping_{false};
  std::list<Served> served_;  // of the thread that accepts
  std::jthread thread_;       // last
};

ProbeServer::ProbeServer(const ProbeToken& token, uint32_t name, const std::vector<int>& ports,
                         double seconds)
    : impl_(std::make_unique<Impl>(token, name, ports, seconds)) {}
ProbeServer::~ProbeServer() = default;
const std::vector<ProbePort>& ProbeServer::ports() const { return impl_->ports(); }

namespace {

struct FreeFound {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Found = std::unique_ptr<addrinfo, FreeFound>;

Found Look(const std::string& host, int port, int flags, std::string& why) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) why = gai_strerror(error);
  return Found(error == 0 ? found : nullptr);
}

ProbeReach Silent(double seconds) {
  return {ProbeReach::State::kSilent, fmt::format("no answer within {:g} s", seconds), 0};
}

ProbeReach Failed(int error) {
  return {error == ECONNREFUSED ? ProbeReach::State::kRefused
          : error == ETIMEDOUT  ? ProbeReach::State::kSilent
                                : ProbeReach::State::kFailed,
          std::strerror(error), 0};
}

// A connection whose server has greeted; a closed one, and `reach` says why.
UniqueFd Dial(const ProbeTarget& target, const Opening& opening, double seconds,
              ProbeReach& reach) {
  std::string why;
  const Found at = Look(target.address, target.port, AI_NUMERICHOST | AI_NUMERICSERV, why);
  if (!at) {
    reach = {ProbeReach::State::kFailed, why, 0};
    return {};
  }
  UniqueFd fd(socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd || (connect(fd.get(), at->ai_addr, at->ai_addrlen) != 0 && errno != EINPROGRESS)) {
    reach = Failed(errno);
    return {};
  }
  pollfd one{fd.get(), POLLOUT, 0};
  if (poll(&one, 1, Milliseconds(seconds)) <= 0) {
    reach = Silent(seconds);
    return {};
  }
  int error = 0;
  socklen_t bytes = sizeof error;
  getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
  if (error != 0) {
    reach = Failed(error);
    return {};
  }
  LimitWaits(fd.get(), seconds);
  Greeting greeting;
  if (!SendWhole(fd.get(), &opening, sizeof opening) ||
      !ReceiveWhole(fd.get(), &greeting, sizeof greeting) || greeting.token != opening.token) {
    reach = {ProbeReach::State::kStranger, "who listens there does not answer as zeroplan does", 0};
    return {};
  }
  if (greeting.name != target.name) {
    reach = {ProbeReach::State::kOther, "another of the hosts answers there", greeting.name};
    return {};
  }
  reach = {ProbeReach::State::kReached, "", 0};
  return fd;
}

}  // namespace

std::vector<std::string> ResolveHost(const std::string& host, std::string& why) {
  constexpr size_t kMost = 4;
  std::vector<std::string> addresses;
  const Found found = Look(host, 0, 0, why);
  for (const addrinfo* at = found.get(); at != nullptr && addresses.size() < kMost;
       at = at->ai_next) {
    char text[NI_MAXHOST] = "";
    if (getnameinfo(at->ai_addr, at->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) ==
            0 &&
        std::find(addresses.begin(), addresses.end(), text) == addresses.end()) {
      addresses.emplace_back(text);
    }
  }
  return addresses;
}

std::vector<ProbeReach> ReachAll(const std::vector<ProbeTarget>& targets, const ProbeToken& token,
                                 double seconds) {
  constexpr size_t kAtOnce = 128;
  std::vector<ProbeReach> reached(targets.size());
  std::atomic<size_t> next{0};
  const auto dial = [&] {
    for (size_t at; (at = next++) < targets.size();) {
      Dial(targets[at], {.token = token}, seconds, reached[at]);
    }
  };
  {
    const std::vector<std::jthread> others =
        StartHelpers(std::clamp<size_t>(targets.size(), 1, kAtOnce) - 1, dial);
    dial();
  }
  return reached;
}

namespace {

// Bytes a second through all streams; each counts in a window of its own. Nothing, and `reach` says
// why, where one cannot connect.
std::optional<double> RateOf(const ProbeTarget& target, const Opening& opening,
                             const ProbeLimits& limits, ProbeReach& reach) {
  const auto streams = static_cast<size_t>(limits.streams);
  std::vector<UniqueFd> fds(streams);
  for (UniqueFd& fd : fds) {
    fd = Dial(target, opening, limits.wait_seconds, reach);
    if (!fd) return std::nullopt;
    DropOnClose(fd.get());
  }
  std::vector<Count> counts(streams);
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < streams; ++i) {
    threads.push_back(
        StartThread("a stream of the network", [&, fd = fds[i].get(), &count = counts[i]] {
          if (opening.op == ProbeOp::kSource) {
            count = CountWhatComes(fd, limits.window_seconds, limits.most_bytes);
            return;
          }
          SendUntilAnswered(fd, limits.wait_seconds);
          Count said;
          if (ReceiveWhole(fd, &said, sizeof said)) count = said;
        }));
  }
  threads.clear();
  double rate = 0;
  for (const Count& count : counts) rate += count.rate();
  return rate;
}

}  // namespace

LinkSpeed MeasureLinkSpeed(const ProbeTarget& target, const ProbeToken& token,
                           const ProbeLimits& limits) {
  LinkSpeed speed;
  ProbeReach reach;
  Opening opening{.token = token,
                  .op = ProbeOp::kEcho,
                  .window_milliseconds = static_cast<uint32_t>(Milliseconds(limits.window_seconds)),
                  .most_bytes = limits.most_bytes};
  {
    const UniqueFd fd = Dial(target, opening, limits.wait_seconds, reach);
    std::vector<double> trips;
    const auto begin = ProbeClock::now();
    while (fd && trips.size() < static_cast<size_t>(limits.round_trips)) {
      const auto sent = ProbeClock::now();
      char byte = 0;
      if (!SendWhole(fd.get(), &byte, 1) || !ReceiveWhole(fd.get(), &byte, 1)) break;
      trips.push_back(SecondsSince(sent));
      if (SecondsSince(begin) > limits.wait_seconds) break;
    }
    if (trips.empty()) {
      speed.why = fd ? "the connection was cut" : reach.why;
      return speed;
    }
    std::sort(trips.begin(), trips.end());
    speed.round_trip_seconds = trips[trips.size() / 2];
  }
  for (const bool back : {false, true}) {
    opening.op = back ? ProbeOp::kSource : ProbeOp::kSink;
    const std::optional<double> rate = RateOf(target, opening, limits, reach);
    if (!rate) {
      speed.why = reach.why;
      return speed;
    }
    (back ? speed.bytes_per_second_back : speed.bytes_per_second) = *rate;
  }
  return speed;
}

}  // namespace zeroplan
