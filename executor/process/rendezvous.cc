#include "executor/process/rendezvous.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "core/base/error.h"

namespace zeroplan {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::string_view kMagic = "zeroplan";
constexpr uint32_t kProtocol = 1;
constexpr size_t kMaxStrangers = 64;          // connections at a time that have not said hello
constexpr milliseconds kHelloLimit(10'000);   // for one of them to do so
constexpr milliseconds kConnectLimit(2'000);  // for one attempt
constexpr milliseconds kPause(100);           // between attempts

struct Hello {
  uint32_t protocol = kProtocol;
  int32_t rank = 0, world_size = 1;
};

std::string WriteHello(const ProcessPlace& place) {
  const Hello hello{kProtocol, place.rank, place.world_size};
  std::string text(kMagic);
  text.append(reinterpret_cast<const char*>(&hello), sizeof hello);
  return text + place.run_token.substr(0, Connection::kMaxHello / 2);
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Addresses Resolve(const std::string& host, int port, std::string& why) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) why = gai_strerror(error);
  return Addresses(error == 0 ? found : nullptr);
}

int Wait(int fd, short events, Clock::time_point until) {
  const auto left = std::chrono::duration_cast<milliseconds>(until - Clock::now()).count();
  pollfd one{fd, events, 0};
  return poll(&one, 1, static_cast<int>(std::max<int64_t>(left, 0)));
}

UniqueFd ConnectTo(const addrinfo& address, Clock::time_point until, std::string& why) {
  UniqueFd fd(socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) {
    why = std::strerror(errno);
    return {};
  }
  if (connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0) return fd;
  int error = errno;
  if (error == EINPROGRESS) {
    if (Wait(fd.get(), POLLOUT, std::min(until, Clock::now() + kConnectLimit)) <= 0) {
      why = "no answer";
      return {};
    }
    socklen_t bytes = sizeof error;
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
  }
  if (error == 0) return fd;
  why = std::strerror(error);
  return {};
}

int BoundPort(int fd) {
  sockaddr_storage bound{};
  socklen_t bytes = sizeof bound;
  getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &bytes);
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<sockaddr_in&>(bound).sin_port);
}

// What a rank's first frame makes of it: joined, or why not ("" for somebody who is no rank).
class Door {
 public:
  explicit Door(const ProcessPlace& place)
      : place_(place), ranks_(static_cast<size_t>(place.world_size)) {}

  std::vector<Connection>& ranks() { return ranks_; }
  const std::string& refused() const { return refused_; }

  std::string Missing() const {
    std::string names;
    for (size_t r = 1; r < ranks_.size(); ++r) {
      if (!ranks_[r].open()) names += fmt::format("{}{}", names.empty() ? "" : ", ", r);
    }
    return names;
  }

  void Admit(Connection& connection, const Frame& frame) {
    if (frame.type != FrameType::kHello || !frame.payload.starts_with(kMagic) ||
        frame.payload.size() < kMagic.size() + sizeof(Hello)) {
      return connection.Close();
    }
    Hello hello;
    std::memcpy(&hello, frame.payload.data() + kMagic.size(), sizeof hello);
    const std::string why = Refusal(hello, frame.payload.substr(kMagic.size() + sizeof hello));
    if (!why.empty()) {
      refused_ = fmt::format("rank {} was sent away: {}", hello.rank, why);
      connection.Queue(FrameType::kRefused, why);
      connection.Pump();
      return connection.Close();
    }
    connection.set_max_payload(Connection::kMaxPayload);
    connection.Queue(FrameType::kJoined);
    connection.Pump();
    ranks_[static_cast<size_t>(hello.rank)] = std::move(connection);
  }

 private:
  std::string Refusal(const Hello& hello, const std::string& token) const {
    if (hello.protocol != kProtocol) {
      return fmt::format(
          "it speaks version {} of the protocol, rank 0 version {}; install the same "
          "zeroplan everywhere",
          hello.protocol, kProtocol);
    }
    if (token != WriteHello(place_).substr(kMagic.size() + sizeof hello)) {
      return fmt::format(
          "it belongs to another run; give each run a port of its own "
          "(ZEROPLAN_PORT, now {})",
          place_.port);
    }
    if (hello.world_size != place_.world_size) {
      return fmt::format(
          "it has a run of {} ranks, rank 0 one of {}; start all with the same count",
          hello.world_size, place_.world_size);
    }
    if (hello.rank < 1 || hello.rank >= place_.world_size ||
        ranks_[static_cast<size_t>(hello.rank)].open()) {
      return fmt::format("there is a rank {} already; every rank is started once", hello.rank);
    }
    return "";
  }

  const ProcessPlace& place_;
  std::vector<Connection> ranks_;
  std::string refused_;
};

// A rank that joined says nothing before the start: whatever happens on its connection is its end.
[[noreturn]] void LoseWhileMeeting(std::vector<Connection>& ranks, size_t lost) {
  const std::string message =
      fmt::format("rank {}: lost (connection closed) before all ranks had come", lost);
  const auto code = static_cast<char>(ExitCode::kRuntime);
  for (Connection& rank : ranks) {
    rank.Queue(FrameType::kFailed, code + message);
    if (rank.open()) rank.Pump();
  }
  throw Error(ExitCode::kRuntime, message);
}

void Accept(int listener, std::vector<Connection>& strangers) {
  for (;;) {
    UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) return;
    if (strangers.size() < kMaxStrangers) {
      strangers.emplace_back(std::move(fd), Connection::kMaxHello);
    }
  }
}

}  // namespace

UniqueFd Listen(const std::string& address, bool any_address, int& port) {
  std::string why = "no such address";
  const Addresses found = Resolve(address, port, why);
  for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
    UniqueFd fd(socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    if (fd) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_storage where{};
    std::memcpy(&where, at->ai_addr, at->ai_addrlen);
    if (any_address && at->ai_family == AF_INET) {
      reinterpret_cast<sockaddr_in&>(where).sin_addr.s_addr = htonl(INADDR_ANY);
    } else if (any_address && at->ai_family == AF_INET6) {
      reinterpret_cast<sockaddr_in6&>(where).sin6_addr = in6addr_any;
    }
    if (fd && bind(fd.get(), reinterpret_cast<sockaddr*>(&where), at->ai_addrlen) == 0 &&
        listen(fd.get(), SOMAXCONN) == 0) {
      if (port == 0) port = BoundPort(fd.get());
      return fd;
    }
    why = std::strerror(errno);
  }
  ThrowRuntime("rank 0 cannot listen at {}:{}: {}; ZEROPLAN_PORT sets another port", address, port,
               why);
}

std::vector<Connection> MeetAsHub(const ProcessPlace& place, milliseconds limit) {
  const Clock::time_point until = Clock::now() + limit;
  UniqueFd listener(place.listen_fd);
  if (!listener) {
    int port = place.port;
    const bool local =
        place.address.starts_with("127.") || place.address == "::1" || place.address == "localhost";
    listener = Listen(place.address, !local, port);
  }
  Door door(place);
  std::vector<Connection>& ranks = door.ranks();
  std::vector<Connection> strangers;
  while (!door.Missing().empty()) {
    if (Clock::now() >= until) {
      ThrowRuntime("rank{} {} did not come within {} s to rank 0 at {}:{}{}{}",
                   door.Missing().find(',') == std::string::npos ? "" : "s", door.Missing(),
                   std::chrono::duration_cast<std::chrono::seconds>(limit).count(), place.address,
                   place.port, door.refused().empty() ? "; start all ranks" : "; ", door.refused());
    }
    std::vector<pollfd> polled = {{listener.get(), POLLIN, 0}};
    for (const auto* list : {&strangers, &ranks}) {
      for (const Connection& connection : *list) {
        if (connection.open()) polled.push_back({connection.fd(), POLLIN, 0});
      }
    }
    poll(polled.data(), polled.size(), static_cast<int>(kPause.count()));
    Accept(listener.get(), strangers);
    for (size_t r = 1; r < ranks.size(); ++r) {
      if (!ranks[r].open()) continue;
      ranks[r].Pump();
      if (!ranks[r].open()) LoseWhileMeeting(ranks, r);
    }
    for (Connection& stranger : strangers) {
      stranger.Pump();
      if (const auto frame = stranger.Next()) door.Admit(stranger, *frame);
      if (stranger.open() && Clock::now() - stranger.heard() > kHelloLimit) stranger.Close();
    }
    std::erase_if(strangers, [](const Connection& stranger) { return !stranger.open(); });
  }
  for (Connection& rank : ranks) rank.Queue(FrameType::kStart);
  return std::move(ranks);
}

namespace {

// Waits for the frames that follow a hello. Nothing if the connection ended before rank 0 knew us:
// whoever listened there was not it, or is not yet.
std::optional<Connection> SayHello(UniqueFd fd, const ProcessPlace& place,
                                   Clock::time_point until) {
  Connection connection(std::move(fd));
  connection.Queue(FrameType::kHello, WriteHello(place));
  bool joined = false;
  for (;;) {
    connection.Pump();
    while (const auto frame = connection.Next()) {
      if (frame->type == FrameType::kJoined) joined = true;
      if (frame->type == FrameType::kStart && joined) return connection;
      if (frame->type == FrameType::kFailed && !frame->payload.empty()) {
        throw Error(static_cast<ExitCode>(frame->payload[0]), frame->payload.substr(1));
      }
      if (frame->type == FrameType::kRefused) {
        ThrowRuntime("rank {}: sent away by rank 0 at {}:{}: {}", place.rank, place.address,
                     place.port, frame->payload);
      }
    }
    if (!connection.open()) {
      if (joined) ThrowRuntime("rank 0: lost (connection closed) before all ranks had come");
      return std::nullopt;
    }
    if (Clock::now() >= until) return std::nullopt;
    Wait(connection.fd(), connection.wants_to_send() ? POLLIN | POLLOUT : POLLIN, until);
  }
}

}  // namespace

Connection MeetHub(const ProcessPlace& place, milliseconds limit) {
  const Clock::time_point until = Clock::now() + limit;
  std::string why = "nobody listens";
  do {
    const Addresses found = Resolve(place.address, place.port, why);
    for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
      UniqueFd fd = ConnectTo(*at, until, why);
      if (!fd) continue;
      why = "it does not answer as rank 0 does, or waits for ranks that do not come";
      if (auto connection = SayHello(std::move(fd), place, until)) return *std::move(connection);
    }
    std::this_thread::sleep_for(kPause);
  } while (Clock::now() < until);
  ThrowRuntime(
      "rank {}: cannot reach rank 0 at {}:{} within {} s: {}; check the address (MASTER_ADDR), the "
      "port (ZEROPLAN_PORT) and that rank 0 runs",
      place.rank, place.address, place.port,
      std::chrono::duration_cast<std::chrono::seconds>(limit).count(), why);
}

}  // namespace zeroplan
