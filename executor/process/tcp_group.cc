#include "executor/process/tcp_group.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/full_screen.h"
#include "core/base/terminal.h"
#include "core/base/thread.h"
#include "executor/process/connection.h"
#include "executor/process/host_text.h"
#include "executor/process/rendezvous.h"
#include "executor/process/star_frames.h"

namespace zeroplan {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kStarTurn(200);      // the thread looks around at least so often
constexpr milliseconds kAliveEvery(1'000);  // a word to every peer
constexpr milliseconds kLastWords(2'000);   // to get a failure sent before leaving

int64_t Seconds(Clock::duration time) {
  return std::chrono::duration_cast<std::chrono::seconds>(time).count();
}

}  // namespace

// All of it but the meeting. The thread alone touches the connections; callers leave orders and
// wait.
class TcpGroup::Impl {
 public:
  // `peers` by rank: open are, on rank 0, all others, else rank 0 alone.
  Impl(const ProcessPlace& place, const TcpGroupOptions& options, std::vector<Connection> peers)
      : place_(place),
        options_(options),
        host_address_(OwnAddress(peers)),
        on_host_(OnHostText(host_address_)),
        limit_(options.collective_limit),
        progress_(Clock::now()),
        peers_(peers.size()),
        parts_(static_cast<size_t>(place.world_size)),
        last_turn_(progress_),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!wake_) ThrowRuntime("cannot make an event: {}", std::strerror(errno));
    poller_.Add(wake_.get(), peers.size());
    for (size_t r = 0; r < peers.size(); ++r) {
      if (is_hub() && r == 0) continue;
      // What came with the last frame of the meeting, or is to be sent, or that it has gone.
      look_at_.push_back(r);
      peers[r].set_heard(last_turn_);
      peers_[r].connection = std::move(peers[r]);
      peers_[r].where = OtherEndText(peers_[r].connection.fd());
      peers_[r].doing_since = last_turn_;
      if (peers_[r].connection.open()) poller_.Add(peers_[r].connection.fd(), r);
    }
    thread_ = StartThread("the control channel", [this] { Serve(); });
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      leaving_ = true;
    }
    Wake();
    thread_.join();
  }

  // This rank's part goes to rank 0; what comes back is every rank's (kAllGather), rank 0's of
  // `size` bytes (kBroadcast) or nothing (kBarrier). Throws once the run has failed.
  std::vector<std::string> Collective(CollectiveCall call, std::string bytes, uint64_t size) {
    std::unique_lock lock(mutex_);
    if (!failed_) {
      const std::string name = NameOfCall(call, next_number_);
      position_ = "in " + name;
      progress_ = Clock::now();
      order_part_ = Part{next_number_++, call, size, limit_, purpose_, std::move(bytes)};
      result_.reset();
      Wake();
      changed_.wait(lock, [this] { return result_.has_value() || failed_; });
      if (result_) {
        position_ = "past " + name;
        progress_ = Clock::now();
        return *std::exchange(result_, std::nullopt);
      }
    }
    throw Error(failure_.code, failure_.message);
  }

  void SetDeadline(milliseconds limit, const std::string& purpose) {
    const std::lock_guard lock(mutex_);
    limit_ = limit;
    purpose_ = purpose;
    progress_ = Clock::now();
    say_now_ = true;
    Wake();
  }

  void Fail(ExitCode code, const std::string& message) noexcept try {
    std::unique_lock lock(mutex_);
    if (failed_ || order_failure_) return;
    order_failure_ = Failure{code, message};
    Wake();
    changed_.wait_for(lock, 2 * options_.verdict_limit, [this] { return failed_.load(); });
  } catch (...) {  // out of memory: closing the connection will tell
  }

  std::string failure() const {
    const std::lock_guard lock(mutex_);
    return failure_.message;
  }

  ExitCode failure_code() const noexcept {
    const std::lock_guard lock(mutex_);
    return failure_.code;
  }

  bool rank_0_says_it() const noexcept {
    const std::lock_guard lock(mutex_);
    return failed_ && (is_hub() || told_by_hub_);
  }

  const ProcessPlace& place() const { return place_; }
  const std::string& host_address() const { return host_address_; }
  bool failed() const noexcept { return failed_; }

 private:
  struct Peer {
    Connection connection;
    bool writing = false;  // the poller looks for room to send
    bool left = false;     // said goodbye
    std::string where;     // OtherEndText
    // Its position as it last reported it, and since when.
    std::string doing = "before its first word";
    SteadyTime doing_since;
  };

  bool is_hub() const { return place_.rank == 0; }
  void Wake() noexcept {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
  }

  // REQUIRES: mutex_ is held
  Doing OwnDoing() const {
    return {std::chrono::duration_cast<milliseconds>(Clock::now() - progress_),
            (purpose_.empty() ? position_ : purpose_ + ", " + position_) + on_host_};
  }

  // All below: on the thread only.
  void Serve() {
    for (;;) {
      SteadyTime now = Clock::now();
      try {
        Turn();
        now = Clock::now();
        ForgiveGap(now);
        TakeOrders(now);
        CheckTimes(now);
      } catch (const std::exception& error) {  // a bug, or no memory
        RunFailed({ExitCode::kRuntime, OfRank(place_.rank, error.what())});
      }
      EndIfStuck(now);
      if (MayEnd(now)) return;
    }
  }

  void Turn() {
    for (const uint64_t id : poller_.Wait(look_at_.empty() ? kStarTurn : milliseconds(0))) {
      if (id < peers_.size()) {
        look_at_.push_back(id);
      } else {
        uint64_t count = 0;
        [[maybe_unused]] const ssize_t got = read(wake_.get(), &count, sizeof count);
      }
    }
    for (const size_t rank : std::exchange(look_at_, {})) Attend(rank);
  }

  // A process that was stopped (Ctrl-Z, a debugger) has not listened: nobody was silent or late.
  void ForgiveGap(SteadyTime now) {
    const Clock::duration gap = now - std::exchange(last_turn_, now);
    if (gap <= 5 * kStarTurn) return;
    for (Peer& peer : peers_) peer.connection.set_heard(now);
    collective_began_ += gap;
    pending_since_ += gap;
  }

  void Attend(size_t rank) {
    Peer& peer = peers_[rank];
    peer.connection.Pump();
    while (auto frame = peer.connection.Next()) Handle(static_cast<int>(rank), *frame);
    if (!peer.connection.open()) return Lose(rank);
    const bool writing = peer.connection.wants_to_send();
    if (writing == peer.writing) return;
    peer.writing = writing;
    poller_.WantToSend(peer.connection.fd(), rank, writing);
  }

  void Send(size_t rank, SharedFrame frame) {
    Peer& peer = peers_[rank];
    if (!peer.connection.open()) return;
    peer.connection.Queue(std::move(frame));
    peer.connection.Flush();
    // Its closing is heard in the next turn, and so is room for the rest.
    if (peer.connection.wants_to_send() != peer.writing || !peer.connection.open()) {
      look_at_.push_back(rank);
    }
  }

  void SendAll(const SharedFrame& frame) {
    for (size_t r = 0; r < peers_.size(); ++r) Send(r, frame);
  }

  void TakeOrders(SteadyTime now) {
    std::optional<Part> part;
    std::optional<Failure> failure;
    bool leaving = false;
    {
      const std::lock_guard lock(mutex_);
      part = std::exchange(order_part_, std::nullopt);
      // Kept in place, so that only the first counts.
      if (order_failure_ && !own_failure_) failure = order_failure_;
      leaving = leaving_;
      if (std::exchange(say_now_, false)) last_alive_ = {};
    }
    if (failure && !failed()) {
      own_failure_ = failure;
      own_failure_limit_ = now + options_.verdict_limit;
      if (is_hub()) {
        RunFailed({failure->code, OfRank(0, failure->message)});
      } else {
        Send(0, MakeFrame(FrameType::kFailed, WriteFailure(*failure)));
      }
    }
    if (part && !failed()) OrderPart(*std::move(part), now);
    if (leaving && !said_goodbye_) {
      said_goodbye_ = true;
      leave_limit_ = now + options_.leave_limit;
      if (!failed()) {
        SendAll(MakeFrame(FrameType::kGoodbye, ""));
        if (is_hub()) CheckLeavers();
      }
    }
    if (now - last_alive_ > kAliveEvery) {
      last_alive_ = now;
      SayAlive();
    }
  }

  void OrderPart(Part part, SteadyTime now) {
    if (is_hub()) return TakePart(0, std::move(part));
    Send(0, MakeFrame(FrameType::kPart, WritePart(part)));
    part.bytes.clear();
    pending_ = std::move(part);
    pending_since_ = now;
    // Rank 0 still hears the part, and tells the others.
    if (peers_[0].left) EndRun("rank 0: left the run while others still needed it");
  }

  void SayAlive() {
    std::string doing;
    if (!is_hub()) {
      const std::lock_guard lock(mutex_);
      doing = WriteDoing(OwnDoing());
    }
    const SharedFrame frame = MakeFrame(FrameType::kAlive, doing);
    for (size_t r = 0; r < peers_.size(); ++r) {
      // One word is enough for a peer that does not take it.
      if (!peers_[r].connection.wants_to_send()) Send(r, frame);
    }
  }

  void CheckTimes(SteadyTime now) {
    if (failed()) return;
    for (size_t r = 0; r < peers_.size(); ++r) {
      const Peer& peer = peers_[r];
      if (!peer.connection.open() || peer.left) continue;
      const Clock::duration silence = now - peer.connection.heard();
      if (silence <= options_.silence_limit) continue;
      return EndRun("rank {}: lost (no word for {} s){}", r, Seconds(silence), peer.where);
    }
    if (own_failure_ && now > own_failure_limit_) {
      return RunFailed({own_failure_->code, OfRank(place_.rank, own_failure_->message)});
    }
    if (came_ > 0 && now - collective_began_ > collective_limit_) {
      return RunFailed({ExitCode::kRuntime, WhoHasNotCome(now)});
    }
    // Rank 0 itself keeps this limit; where it does not, it is heard, but does not work.
    if (pending_ && now - pending_since_ > pending_->limit + options_.silence_limit) {
      EndRun("rank 0: no answer to {}{} for {} s, though it is heard",
             NameOfCall(pending_->call, pending_->number), InPurpose(pending_->purpose),
             Seconds(now - pending_since_));
    }
  }

  std::string WhoHasNotCome(SteadyTime now) const {
    std::string first, others;
    size_t missing = 0;
    const Part& part = *parts_[first_came_];
    for (size_t r = 0; r < parts_.size(); ++r) {
      if (parts_[r]) continue;
      ++missing;
      if (missing > 1 && missing <= kRanksNamed) {
        others += fmt::format("{}{}", others.empty() ? "" : ", ", r);
      }
      if (missing > 1) continue;
      const Peer& peer = peers_[r];
      Doing doing{std::chrono::duration_cast<milliseconds>(now - peer.doing_since), peer.doing};
      if (r == 0) {
        const std::lock_guard lock(mutex_);
        doing = OwnDoing();
      }
      first = fmt::format(
          "rank {}: has not come to {}{} within {} s of rank {}; it is heard, {} for {} s", r,
          NameOfCall(part.call, part.number), InPurpose(part.purpose),
          Seconds(now - collective_began_), first_came_, doing.what, Seconds(doing.since));
    }
    if (missing < 2) return first;
    if (missing > kRanksNamed) others += fmt::format(" and {} more", missing - kRanksNamed);
    return fmt::format("{}. Nor {} rank{} {}", first, missing == 2 ? "has" : "have",
                       missing == 2 ? "" : "s", others);
  }

  void Handle(int rank, const Frame& frame) {
    const auto r = static_cast<size_t>(rank);
    switch (frame.type) {
      case FrameType::kFailed: {
        Failure failure = ReadFailure(frame.payload);
        if (is_hub()) failure.message = OfRank(rank, failure.message);
        return RunFailed(std::move(failure), /*told_by_hub=*/!is_hub());
      }
      case FrameType::kGoodbye:
        peers_[r].left = true;
        if (is_hub() && !failed()) CheckLeavers();
        return;
      default:
        if (failed()) return;
        return is_hub() ? HandleAsHub(rank, frame) : HandleAsRank(frame);
    }
  }

  void HandleAsHub(int rank, const Frame& frame) {
    Peer& peer = peers_[static_cast<size_t>(rank)];
    if (frame.type == FrameType::kPart) {
      std::optional<Part> part = ReadPart(frame.payload);
      if (!part) return Broke(rank, "a malformed part of a collective");
      return TakePart(rank, *std::move(part));
    }
    if (frame.type != FrameType::kAlive) return Broke(rank, "a frame out of turn");
    const std::optional<Doing> doing = ReadDoing(frame.payload);
    if (!doing) return Broke(rank, "a malformed sign of life");
    peer.doing = doing->what;
    peer.doing_since = Clock::now() - doing->since;
  }

  void HandleAsRank(const Frame& frame) {
    if (frame.type == FrameType::kAlive) return;
    if (frame.type != FrameType::kResult) return Broke(0, "a frame out of turn");
    std::optional<Result> result = ReadResult(frame.payload);
    if (!result || !pending_ || result->number != pending_->number ||
        result->call != pending_->call) {
      return Broke(0, "a malformed result of a collective");
    }
    const size_t texts = result->texts.size();
    switch (result->call) {
      case CollectiveCall::kBarrier:
        if (texts != 0) return Broke(0, "a barrier with a result");
        break;
      case CollectiveCall::kBroadcast:
        if (texts != 1 || result->texts[0].size() != pending_->size) {
          return Broke(0, "a broadcast of another size");
        }
        break;
      case CollectiveCall::kAllGather:
        if (texts != parts_.size()) return Broke(0, "an all-gather of another number of ranks");
        break;
    }
    pending_.reset();
    Deliver(std::move(result->texts));
  }

  void TakePart(int rank, Part part) {
    const auto r = static_cast<size_t>(rank);
    if (parts_[r]) return Broke(rank, "two parts of one collective");
    if (came_ == 0) {
      collective_began_ = Clock::now();
      collective_limit_ = milliseconds(0);
      first_came_ = r;
    } else {
      const Part& first = *parts_[first_came_];
      if (first.number != part.number || first.call != part.call) {
        return EndRun("rank {}: at {} where rank {} is at {} (a bug in zeroplan)", rank,
                      NameOfCall(part.call, part.number), first_came_,
                      NameOfCall(first.call, first.number));
      }
      if (first.size != part.size) {
        return EndRun(
            "rank {}: expects {} bytes of {} where rank {} expects {} (a "
            "bug in zeroplan)",
            rank, part.size, NameOfCall(part.call, part.number), first_came_, first.size);
      }
    }
    collective_limit_ = std::max(collective_limit_, part.limit);
    if (rank != 0) {
      peers_[r].doing = "in " + NameOfCall(part.call, part.number);
      peers_[r].doing_since = Clock::now();
    }
    parts_[r] = std::move(part);
    ++came_;
    if (came_ == parts_.size()) return Complete();
    CheckLeavers();
  }

  // Whoever has left comes to no collective any more.
  void CheckLeavers() {
    if (came_ == 0) return;
    for (size_t r = 0; r < parts_.size(); ++r) {
      const bool gone = r == 0 ? said_goodbye_ : peers_[r].left;
      if (parts_[r] || !gone) continue;
      return EndRun("rank {}: left the run while others still needed it", r);
    }
  }

  void Complete() {
    Result result;
    result.number = parts_[0]->number;
    result.call = parts_[0]->call;
    size_t bytes = 16 * (parts_.size() + 1);
    if (result.call == CollectiveCall::kBroadcast) {
      if (parts_[0]->bytes.size() != parts_[0]->size)
        return Broke(0, "a broadcast of another size");
      result.texts.push_back(std::move(parts_[0]->bytes));
      bytes += parts_[0]->size;
    }
    if (result.call == CollectiveCall::kAllGather) {
      for (auto& part : parts_) {
        bytes += part->bytes.size();
        result.texts.push_back(std::move(part->bytes));
      }
    }
    for (auto& part : parts_) part.reset();
    came_ = 0;
    if (bytes > Connection::kMaxPayload) {
      return EndRun("rank 0: {} makes {} bytes, more than the control channel is for",
                    NameOfCall(result.call, result.number), bytes);
    }
    SendAll(MakeFrame(FrameType::kResult, WriteResult(result)));
    Deliver(std::move(result.texts));
  }

  void Deliver(std::vector<std::string> texts) {
    const std::lock_guard lock(mutex_);
    result_ = std::move(texts);
    changed_.notify_all();
  }

  void Lose(size_t rank) {
    if (peers_[rank].left || failed()) return;
    // What this rank had to say itself was first, if rank 0 did not live to tell.
    if (own_failure_) {
      return RunFailed({own_failure_->code, OfRank(place_.rank, own_failure_->message)});
    }
    EndRun("rank {}: lost (connection closed){}", rank, peers_[rank].where);
  }

  void Broke(int rank, std::string_view what) {
    EndRun("rank {}: lost (it sent {})", rank, what);
    if (rank != place_.rank) peers_[static_cast<size_t>(rank)].connection.Close();
  }

  void RunFailed(Failure failure, bool told_by_hub = false) {
    if (failed()) return;
    failed_at_ = Clock::now();
    if (is_hub()) SendAll(MakeFrame(FrameType::kFailed, WriteFailure(failure)));
    const std::lock_guard lock(mutex_);
    failure_ = std::move(failure);
    told_by_hub_ = told_by_hub;
    failed_ = true;
    changed_.notify_all();
  }

  template <typename... Args>
  void EndRun(fmt::format_string<Args...> why, Args&&... args) {
    RunFailed({ExitCode::kRuntime, fmt::format(why, std::forward<Args>(args)...)});
  }

  bool MayEnd(SteadyTime now) const {
    if (!said_goodbye_) return false;
    const bool sent = std::none_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
      return peer.connection.wants_to_send();
    });
    if (failed()) return sent || now > failed_at_ + kLastWords;
    if (now > leave_limit_) return true;
    if (!sent) return false;
    return !is_hub() || std::all_of(peers_.begin() + 1, peers_.end(),
                                    [](const Peer& peer) { return peer.left; });
  }

  void EndIfStuck(SteadyTime now) const {
    if (options_.exit_when_stuck.count() <= 0 || !failed()) return;
    if (now - failed_at_ < options_.exit_when_stuck) return;
    LeaveFullScreenNow();
    const std::string text = MessageFor(
        STDERR_FILENO,
        fmt::format(
            "zeroplan: {}\nzeroplan: rank {} did not end within {} s of that and is ended now\n",
            NameFields(failure()), place_.rank, Seconds(options_.exit_when_stuck)));
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
    _exit(static_cast<int>(failure_code()));
  }

  const ProcessPlace place_;
  const TcpGroupOptions options_;
  const std::string host_address_, on_host_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Part> order_part_;                  // from Collective()
  std::optional<Failure> order_failure_;            // from Fail()
  std::optional<std::vector<std::string>> result_;  // to Collective()
  bool leaving_ = false;
  bool say_now_ = false;  // what this rank is at has changed
  Failure failure_;       // set before failed_
  bool told_by_hub_ = false;
  std::atomic<bool> failed_ = false;
  uint64_t next_number_ = 0;  // of this rank's next collective
  std::chrono::milliseconds limit_;
  std::string purpose_;
  std::string position_ = "before its first collective";
  SteadyTime progress_;  // of the caller: when it last did something here

  // The thread's own.
  std::vector<Peer> peers_;
  Poller poller_;
  std::vector<size_t> look_at_;             // peers to attend to, whatever the poller says
  std::vector<std::optional<Part>> parts_;  // rank 0: of the collective under way
  size_t came_ = 0;                         // how many of them
  size_t first_came_ = 0;                   // rank
  SteadyTime collective_began_;
  std::chrono::milliseconds collective_limit_{0};
  std::optional<Part> pending_;  // this rank's, on the others, without its bytes
  SteadyTime pending_since_;
  std::optional<Failure> own_failure_;  // told to rank 0, which has not answered
  SteadyTime own_failure_limit_, failed_at_, last_turn_, last_alive_, leave_limit_;
  bool said_goodbye_ = false;
  UniqueFd wake_;
  std::jthread thread_;  // last
};

TcpGroup::TcpGroup(const ProcessPlace& place, const TcpGroupOptions& options)
    : impl_(std::make_unique<Impl>(place, options,
                                   Meet(place, {options.meet_limit, options.stop_requested}))) {}
TcpGroup::~TcpGroup() = default;

const ProcessPlace& TcpGroup::place() const { return impl_->place(); }

void TcpGroup::Barrier() { impl_->Collective(CollectiveCall::kBarrier, {}, 0); }

void TcpGroup::Broadcast(std::span<std::byte> bytes) {
  const std::string_view mine(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::vector<std::string> all = impl_->Collective(
      CollectiveCall::kBroadcast, std::string(rank() == 0 ? mine : ""), bytes.size());
  if (!bytes.empty()) std::memcpy(bytes.data(), all[0].data(), bytes.size());
}

std::vector<std::string> TcpGroup::AllGather(const std::string& text) {
  return impl_->Collective(CollectiveCall::kAllGather, text, 0);
}

void TcpGroup::SetDeadline(std::chrono::seconds limit, const std::string& purpose) {
  impl_->SetDeadline(std::min<std::chrono::seconds>(limit, kLongestLimit), purpose);
}
void TcpGroup::Fail(const std::string& message) noexcept {
  impl_->Fail(ExitCode::kRuntime, message);
}
void TcpGroup::FailWith(ExitCode code, const std::string& message) noexcept {
  impl_->Fail(code, message);
}
bool TcpGroup::failed() const noexcept { return impl_->failed(); }
std::string TcpGroup::failure() const { return impl_->failure(); }
bool TcpGroup::rank_0_says_it() const noexcept { return impl_->rank_0_says_it(); }
ExitCode TcpGroup::failure_code() const noexcept { return impl_->failure_code(); }
std::string TcpGroup::host_address() const { return impl_->host_address(); }

}  // namespace zeroplan
