#include "executor/process/rendezvous.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <thread>
#include <unordered_map>
#include <utility>

#include "core/base/error.h"
#include "core/base/log.h"
#include "executor/process/connection.h"
#include "executor/process/handshake.h"
#include "executor/process/host_text.h"
#include "executor/process/star_frames.h"

namespace zeroplan {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kConnectLimit(2'000);         // for one attempt
constexpr milliseconds kAnswerLimit(10'000);         // until rank 0's challenge
constexpr milliseconds kMeetingVerdictLimit(5'000);  // for rank 0 to say who did not come
constexpr milliseconds kMeetingTurn(100);            // between attempts, and looks for a stop

class Caller {
 public:
  Caller(const ProcessPlace& place, const MeetOptions& options)
      : place_(place), options_(options), until_(Clock::now() + options.limit), prover_(place) {}

  Connection Run() {
    const std::vector<std::string> hosts = SplitHosts(place_.address);
    do {
      for (const std::string& host : hosts) {
        const Addresses found = Resolve(host, place_.port, why_);
        for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
          if (auto connection = Try(*at)) return *std::move(connection);
        }
      }
      ThrowIfStopped();
      std::this_thread::sleep_for(kMeetingTurn);
    } while (Clock::now() < until_);
    ThrowRuntime(
        "rank {}: cannot reach rank 0 at {}:{} within {} s{}: {}; check the address (MASTER_ADDR), "
        "the port (ZEROPLAN_PORT) and that rank 0 runs, or wait longer (⟦rendezvous_timeout⟧)",
        place_.rank, place_.address, place_.port,
        std::chrono::duration_cast<std::chrono::seconds>(options_.limit).count(), way_, why_);
  }

 private:
  [[noreturn]] static void ThrowStopped() {
    throw Error(ExitCode::kInterrupted, "interrupted while the ranks met");
  }
  bool Stopped() const { return options_.stop_requested && options_.stop_requested(); }
  void ThrowIfStopped() const {
    if (Stopped()) ThrowStopped();
  }

  // Waits a turn at most. True if there is something to do.
  static bool Wait(int fd, short events, SteadyTime until) {
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now());
    pollfd one{fd, events, 0};
    return poll(&one, 1,
                static_cast<int>(std::clamp(left, milliseconds(0), kMeetingTurn).count())) > 0;
  }

  std::optional<Connection> Try(const addrinfo& address) {
    ThrowIfStopped();
    way_ = WayText(address);
    UniqueFd fd = BeginToConnect(address, why_);
    if (!fd) return std::nullopt;
    const SteadyTime limit = std::min(until_, Clock::now() + kConnectLimit);
    while (!Wait(fd.get(), POLLOUT, limit)) {
      ThrowIfStopped();
      if (Clock::now() < limit) continue;
      why_ = "no answer";
      return std::nullopt;
    }
    if (std::string why = WhyNotConnected(fd.get()); !why.empty()) {
      why_ = why;
      return std::nullopt;
    }
    const std::string earlier = std::exchange(why_, kNoRankZero);
    auto connection = SayHello(Connection(std::move(fd), Connection::kMaxHello));
    // An attempt that the meeting's end cuts short says less than one before it that was whole.
    if (!connection && was_answered_ && why_ == kNoRankZero && Clock::now() >= until_) {
      why_ = earlier;
    }
    was_answered_ = was_answered_ || why_ != kNoRankZero;
    return connection;
  }

  // Nothing if the connection ended before rank 0 knew us: whoever listened there was not it, or
  // is not yet.
  std::optional<Connection> SayHello(Connection connection) {
    const std::string nonce = RandomBytes(kNonceBytes);
    const std::string text = WriteHello(place_, nonce);
    const Hello hello = *ReadHello(text);
    connection.Queue(FrameType::kHello, text);
    std::string hub_nonce;
    bool joined = false;
    SteadyTime limit = std::min(until_, Clock::now() + kAnswerLimit);
    for (;;) {
      connection.Pump();
      while (const auto frame = connection.Next()) {
        if (joined && frame->type == FrameType::kStart) {
          connection.set_max_payload(Connection::kMaxPayload);
          return connection;
        }
        if (joined && frame->type == FrameType::kFailed) {
          const Failure failure = ReadFailure(frame->payload);
          throw ToldByRankZero(failure.code, failure.message);
        }
        if (joined) ThrowRuntime("rank 0: lost (it broke the protocol) before all ranks had come");
        if (frame->type == FrameType::kRefused) {
          ThrowRuntime("rank {}: sent away by rank 0 at {}:{}: {}", place_.rank, place_.address,
                       place_.port, PeerText(frame->payload));
        }
        if (frame->type == FrameType::kChallenge && hub_nonce.empty() &&
            frame->payload.size() == kNonceBytes) {
          hub_nonce = frame->payload;
          limit = until_;
          connection.Queue(FrameType::kProof, prover_.ProofOfRank(hello, hub_nonce));
          connection.Pump();
        } else if (frame->type == FrameType::kJoined && !hub_nonce.empty()) {
          if (!SameProof(frame->payload, prover_.ProofOfHub(hello, hub_nonce))) {
            why_ = "whoever listens there does not know this run's secret";
            return std::nullopt;
          }
          joined = true;
          // Rank 0 has the same limit, from when it began, and says who did not come.
          limit = Clock::now() + options_.limit + kMeetingVerdictLimit;
          why_ = "it waits for ranks that do not come";
        } else {
          return std::nullopt;
        }
      }
      if (Stopped()) {
        connection.Queue(FrameType::kFailed,
                         WriteFailure({ExitCode::kInterrupted, "interrupted while the ranks met"}));
        connection.Pump();
        ThrowStopped();
      }
      if (!connection.open()) {
        if (joined) ThrowRuntime("rank 0: lost (connection closed) before all ranks had come");
        return std::nullopt;
      }
      if (Clock::now() >= limit) return std::nullopt;
      Wait(connection.fd(), connection.wants_to_send() ? POLLIN | POLLOUT : POLLIN, limit);
    }
  }

  static constexpr const char* kNoRankZero = "whoever listens there does not answer as rank 0 does";

  const ProcessPlace& place_;
  const MeetOptions& options_;
  const SteadyTime until_;
  const Prover prover_;
  std::string why_ = "nobody listens";
  std::string way_;            // of the last attempt
  bool was_answered_ = false;  // by somebody who went on after a greeting
};

// Rank 0's side.

// The most connections at a time that have not shown that they are ranks, where open files allow;
// the oldest of the address with the most of them makes room for another.
constexpr int kMaxStrangers = 256, kMinStrangers = 16;
constexpr milliseconds kHandshakeLimit(3'000);  // from being accepted until it has joined
constexpr int kHubFilesToSpare = 64;            // for whatever else rank 0 opens
constexpr uint64_t kListener = 0;               // ids of connections count from 1

class Meeting {
 public:
  Meeting(const ProcessPlace& place, const MeetOptions& options)
      : place_(place),
        options_(options),
        until_(Clock::now() + options.limit),
        prover_(place),
        listener_(OpenListener(place)),
        rank_ids_(static_cast<size_t>(place.world_size), 0),
        missing_(place.world_size - 1) {
    NeedOpenFiles(missing_ + kMinStrangers, "the connections of rank 0");
    max_strangers_ = std::clamp(RaiseOpenFileLimit(missing_ + kMaxStrangers + kHubFilesToSpare) -
                                    missing_ - kHubFilesToSpare,
                                kMinStrangers, kMaxStrangers);
    poller_.Add(listener_.get(), kListener);
  }

  std::vector<Connection> Run() {
    while (missing_ > 0) {
      if (options_.stop_requested && options_.stop_requested()) {
        End({ExitCode::kInterrupted, "interrupted while the ranks met"});
      }
      if (Clock::now() >= until_) End({ExitCode::kRuntime, WhoIsMissing()});
      Turn();
    }
    std::vector<Connection> ranks(rank_ids_.size());
    for (size_t r = 1; r < ranks.size(); ++r) {
      ranks[r] = std::move(guests_.at(rank_ids_[r]).connection);
      ranks[r].Queue(FrameType::kStart);
      ranks[r].Flush();
    }
    return ranks;
  }

 private:
  struct Guest {
    Connection connection;
    std::string address;
    SteadyTime came;
    std::optional<Hello> hello;
    std::string nonce;  // of our challenge
    bool joined = false;
  };

  static UniqueFd OpenListener(const ProcessPlace& place) {
    if (place.listen_fd >= 0) return UniqueFd(place.listen_fd);
    const bool loopback =
        place.address.starts_with("127.") || place.address == "::1" || place.address == "localhost";
    int port = place.port;
    return Listen(place.address, place.local_world_size < place.world_size && !loopback, port);
  }

  void Turn() {
    const std::vector<uint64_t> ready = poller_.Wait(kMeetingTurn);
    for (const uint64_t id : ready) {
      if (id == kListener) {
        Accept();
      } else if (const auto guest = guests_.find(id); guest != guests_.end()) {
        Serve(id, guest->second);
      }
    }
    const SteadyTime now = Clock::now();
    // Strangers in the order in which they came.
    while (!strangers_.empty()) {
      const auto oldest = strangers_.begin();
      if (now - guests_.at(oldest->first).came <= kHandshakeLimit) break;
      Drop(oldest->first);
    }
  }

  void Accept() {
    for (int accepted = 0; accepted < kMaxStrangers; ++accepted) {
      UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd && (errno == EMFILE || errno == ENFILE) && !strangers_.empty()) {
        DropForRoom();
        continue;
      }
      if (!fd) return;
      if (strangers_.size() >= static_cast<size_t>(max_strangers_)) DropForRoom();
      const uint64_t id = next_id_++;
      Guest guest;
      guest.address = PeerAddress(fd.get());
      guest.came = Clock::now();
      guest.connection = Connection(std::move(fd), Connection::kMaxHello);
      poller_.Add(guest.connection.fd(), id);
      strangers_.emplace(id, guest.address);
      ++by_address_[guest.address];
      // A rank's hello is here already: it is heard before the next one takes its place.
      Serve(id, guests_.emplace(id, std::move(guest)).first->second);
    }
  }

  // Drops the oldest connection of the address that holds the most places.
  void DropForRoom() {
    const auto crowd =
        std::max_element(by_address_.begin(), by_address_.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    for (const auto& [id, address] : strangers_) {
      if (address == crowd->first) return Drop(id);
    }
  }

  void Drop(uint64_t id) {
    NoStranger(id);
    guests_.erase(id);
  }

  void NoStranger(uint64_t id) {
    const auto found = strangers_.find(id);
    if (found == strangers_.end()) return;
    const auto count = by_address_.find(found->second);
    if (--count->second == 0) by_address_.erase(count);
    strangers_.erase(found);
  }

  void Serve(uint64_t id, Guest& guest) {
    guest.connection.Pump();
    while (const auto frame = guest.connection.Next()) {
      if (guest.joined) {
        HearRank(guest, *frame);
      } else if (!Hear(id, guest, *frame)) {
        return Drop(id);
      }
    }
    if (guest.connection.open()) return;
    if (guest.joined) LoseRank(*guest.hello, "connection closed");
    Drop(id);
  }

  // A frame of a stranger. False: it has to go.
  bool Hear(uint64_t id, Guest& guest, const Frame& frame) {
    if (!guest.hello) {
      if (frame.type != FrameType::kHello) return false;
      guest.hello = ReadHello(frame.payload);
      if (!guest.hello) return false;
      if (const std::string why = WhyRefused(*guest.hello, place_); !why.empty()) {
        return Refuse(guest, why);
      }
      guest.nonce = RandomBytes(kNonceBytes);
      guest.connection.Queue(FrameType::kChallenge, guest.nonce);
      guest.connection.Pump();
      return true;
    }
    const Hello& hello = *guest.hello;
    if (frame.type != FrameType::kProof) return false;
    if (!SameProof(frame.payload, prover_.ProofOfRank(hello, guest.nonce))) {
      return Refuse(
          guest, fmt::format("it belongs to another run{}; give each run a port of its own "
                             "(ZEROPLAN_PORT, now {})",
                             place_.secret.empty() ? "" : " or has another secret", place_.port));
    }
    if (rank_ids_[static_cast<size_t>(hello.rank)] != 0) {
      return Refuse(
          guest, fmt::format("there is a rank {} already; every rank is started once", hello.rank));
    }
    rank_ids_[static_cast<size_t>(hello.rank)] = id;
    --missing_;
    guest.joined = true;
    NoStranger(id);
    guest.connection.set_max_payload(Connection::kMaxPayload);
    guest.connection.Queue(FrameType::kJoined, prover_.ProofOfHub(hello, guest.nonce));
    guest.connection.Pump();
    return true;
  }

  bool Refuse(Guest& guest, const std::string& why) {
    refused_ = fmt::format("rank {} was sent away: {}", guest.hello->rank, why);
    guest.connection.Queue(FrameType::kRefused, why);
    guest.connection.Pump();
    return false;
  }

  // A rank that joined says nothing before the start but that it goes.
  void HearRank(const Guest& guest, const Frame& frame) {
    if (frame.type != FrameType::kFailed) return LoseRank(*guest.hello, "it broke the protocol");
    const Failure failure = ReadFailure(frame.payload);
    End({failure.code, OfRank(guest.hello->rank, failure.message)});
  }

  void LoseRank(const Hello& hello, const char* why) {
    End({ExitCode::kRuntime,
         fmt::format("rank {}: lost ({}) before all ranks had come", hello.rank, why)});
  }

  [[noreturn]] void End(const Failure& failure) {
    const SharedFrame frame = MakeFrame(FrameType::kFailed, WriteFailure(failure));
    for (const uint64_t id : rank_ids_) {
      if (id == 0) continue;
      Connection& rank = guests_.at(id).connection;
      rank.Queue(frame);
      rank.Pump();
    }
    throw Error(failure.code, failure.message);
  }

  std::string WhoIsMissing() const {
    std::string names;
    size_t count = 0;
    for (size_t r = 1; r < rank_ids_.size(); ++r) {
      if (rank_ids_[r] != 0 || ++count > kRanksNamed) continue;
      names += fmt::format("{}{}", names.empty() ? "" : ", ", r);
    }
    if (count > kRanksNamed) names += fmt::format(" and {} more", count - kRanksNamed);
    return fmt::format(
        "rank{} {} did not come within {} s to rank 0 at {}:{}{}{}", count == 1 ? "" : "s", names,
        std::chrono::duration_cast<std::chrono::seconds>(options_.limit).count(), place_.address,
        place_.port,
        refused_.empty() ? "; start all ranks, or give them longer (⟦rendezvous_timeout⟧)" : "; ",
        refused_);
  }

  const ProcessPlace& place_;
  const MeetOptions& options_;
  const SteadyTime until_;
  const Prover prover_;
  UniqueFd listener_;
  Poller poller_;
  uint64_t next_id_ = kListener + 1;
  std::unordered_map<uint64_t, Guest> guests_;
  std::map<uint64_t, std::string> strangers_;  // ids of guests that have not joined: address
  std::map<std::string, int> by_address_;      // how many of them
  std::vector<uint64_t> rank_ids_;             // of guests by rank; 0: not here
  int missing_;
  int max_strangers_ = kMinStrangers;
  std::string refused_;
};

}  // namespace

Connection MeetHub(const ProcessPlace& place, const MeetOptions& options) {
  return Caller(place, options).Run();
}

std::vector<Connection> MeetAsHub(const ProcessPlace& place, const MeetOptions& options) {
  if (place.secret.empty() && place.local_world_size < place.world_size) {
    LogWarning(
        "this run has no secret: anyone who reaches {}:{} may join it until all ranks have met; "
        "set ZEROPLAN_SECRET_FILE on all hosts",
        place.address, place.port);
  }
  return Meeting(place, options).Run();
}

std::vector<Connection> Meet(const ProcessPlace& place, const MeetOptions& options) {
  ZEROPLAN_CHECK(place.world_size > 1 && place.rank >= 0 && place.rank < place.world_size,
                 "rank {} of {}", place.rank, place.world_size);
  if (place.rank == 0) return MeetAsHub(place, options);
  std::vector<Connection> peers;
  peers.push_back(MeetHub(place, options));
  return peers;
}

}  // namespace zeroplan
