#include "executor/process/rendezvous.h"

#include <poll.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "executor/process/handshake.h"
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
        "rank {}: cannot reach rank 0 at {}:{} within {} s: {}; check the address (MASTER_ADDR), "
        "the port (ZEROPLAN_PORT) and that rank 0 runs, or wait longer (@@rendezvous_timeout)",
        place_.rank, place_.address, place_.port,
        std::chrono::duration_cast<std::chrono::seconds>(options_.limit).count(), why_);
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
  bool was_answered_ = false;  // by somebody who went on after a greeting
};

}  // namespace

Connection MeetHub(const ProcessPlace& place, const MeetOptions& options) {
  return Caller(place, options).Run();
}

}  // namespace zeroplan
