// Rank 0's side of the rendezvous.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <unordered_map>

#include "core/base/error.h"
#include "core/base/log.h"
#include "executor/process/connection.h"
#include "executor/process/handshake.h"
#include "executor/process/rendezvous.h"
#include "executor/process/star_frames.h"
#include "executor/process/tcp_sockets.h"

namespace zeroplan {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// The most connections at a time that have not shown that they are ranks, where open files allow;
// the oldest of the address with the most of them makes room for another.
constexpr int kMaxStrangers = 256, kMinStrangers = 16;
constexpr milliseconds kHandshakeLimit(3'000);  // from being accepted until it has joined
constexpr int kHubFilesToSpare = 64;            // for whatever else rank 0 opens
constexpr milliseconds kHubTurn(100);
constexpr uint64_t kListener = 0;  // ids of connections count from 1

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
    const std::vector<uint64_t> ready = poller_.Wait(kHubTurn);
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
        refused_.empty() ? "; start all ranks, or give them longer (@@rendezvous_timeout)" : "; ",
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

std::vector<Connection> MeetAsHub(const ProcessPlace& place, const MeetOptions& options) {
  if (place.secret.empty() && place.local_world_size < place.world_size) {
    LogWarning(
        "this run has no secret: anyone who reaches {}:{} may join it until all ranks have met; "
        "set ZEROPLAN_SECRET_FILE on all hosts",
        place.address, place.port);
  }
  return Meeting(place, options).Run();
}

}  // namespace zeroplan
