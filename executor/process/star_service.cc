#include "executor/process/star_service.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/error.h"

namespace zeroplan {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kTurn(200);            // the thread looks around at least so often
constexpr milliseconds kAliveEvery(1'000);    // a word to every peer
constexpr milliseconds kVerdictLimit(2'000);  // for rank 0 to say who failed first
constexpr milliseconds kLastWords(2'000);     // to get a failure sent before leaving

int64_t Seconds(Clock::duration time) {
  return std::chrono::duration_cast<std::chrono::seconds>(time).count();
}

template <typename T>
void Append(std::string& text, const T& value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename T>
T TakeFront(std::string_view& text) {
  ZEROPLAN_CHECK(text.size() >= sizeof(T), "{} bytes left of a frame", text.size());
  T value;
  std::memcpy(&value, text.data(), sizeof value);
  text.remove_prefix(sizeof value);
  return value;
}

constexpr const char* kCallNames[] = {"barrier", "broadcast", "all-gather"};

}  // namespace

std::string PackTexts(const std::vector<std::string>& texts) {
  std::string packed;
  for (const std::string& text : texts) {
    Append(packed, static_cast<uint64_t>(text.size()));
    packed += text;
  }
  return packed;
}

std::vector<std::string> UnpackTexts(std::string_view packed) {
  std::vector<std::string> texts;
  while (!packed.empty()) {
    const auto bytes = TakeFront<uint64_t>(packed);
    ZEROPLAN_CHECK(bytes <= packed.size(), "{} bytes of {}", bytes, packed.size());
    texts.emplace_back(packed.substr(0, bytes));
    packed.remove_prefix(bytes);
  }
  return texts;
}

StarService::StarService(const ProcessPlace& place, const TcpGroupOptions& options,
                         std::vector<Connection> peers)
    : place_(place),
      options_(options),
      peers_(std::move(peers)),
      left_(peers_.size()),
      parts_(static_cast<size_t>(place.world_size)),
      last_turn_(Clock::now()),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_) ThrowRuntime("cannot make an event: {}", std::strerror(errno));
  for (Connection& peer : peers_) peer.set_heard(last_turn_);
  thread_ = std::thread([this] { Serve(); });
}

StarService::~StarService() {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  Wake();
  thread_.join();
}

void StarService::Wake() noexcept {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
}

std::string StarService::Collective(CollectiveCall call, std::string part) {
  std::unique_lock lock(mutex_);
  if (!failed_) {
    order_part_ = Part{next_number_++, call, std::move(part)};
    result_.reset();
    Wake();
    changed_.wait(lock, [this] { return result_.has_value() || failed_; });
    if (result_) return *std::exchange(result_, std::nullopt);
  }
  throw Error(failure_.code, failure_.message);
}

void StarService::Fail(ExitCode code, const std::string& message) noexcept {
  try {
    std::unique_lock lock(mutex_);
    if (failed_ || order_failure_) return;
    order_failure_ = Failure{code, message};
    Wake();
    changed_.wait_for(lock, 2 * kVerdictLimit, [this] { return failed_.load(); });
  } catch (...) {  // out of memory: closing the connection will tell
  }
}

std::string StarService::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_.message;
}

ExitCode StarService::failure_code() const noexcept {
  const std::lock_guard lock(mutex_);
  return failure_.code;
}

void StarService::Serve() {
  for (;;) {
    Poll();
    const SteadyTime now = Clock::now();
    // A process that was stopped (Ctrl-Z, a debugger) has not listened: nobody was silent.
    if (now - last_turn_ > 5 * kTurn) {
      for (Connection& peer : peers_) peer.set_heard(now);
    }
    last_turn_ = now;
    try {
      TakeOrders(now);
      CheckPeers(now);
    } catch (const std::exception& error) {  // a peer of another mind about frames, or no memory
      RunFailed(ExitCode::kRuntime, fmt::format("rank {}: {}", place_.rank, error.what()));
    }
    for (Connection& peer : peers_) peer.Pump();
    EndIfStuck(now);
    if (MayEnd(now)) return;
  }
}

void StarService::Poll() {
  std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}};
  for (const Connection& peer : peers_) {
    if (!peer.open()) continue;
    const int events = peer.wants_to_send() ? POLLIN | POLLOUT : POLLIN;
    polled.push_back({peer.fd(), static_cast<short>(events), 0});
  }
  poll(polled.data(), polled.size(), static_cast<int>(kTurn.count()));
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(wake_.get(), &count, sizeof count);
}

void StarService::TakeOrders(SteadyTime now) {
  std::optional<Part> part;
  std::optional<Failure> failure;
  bool leaving = false;
  {
    const std::lock_guard lock(mutex_);
    part = std::exchange(order_part_, std::nullopt);
    // Kept in place, so that only the first counts.
    if (order_failure_ && !own_failure_) failure = order_failure_;
    leaving = leaving_;
  }
  if (failure && !RunHasFailed()) {
    own_failure_ = failure;
    own_failure_limit_ = now + kVerdictLimit;
    if (is_hub()) {
      RunFailed(failure->code, "rank 0: " + failure->message);
    } else {
      peers_[0].Queue(FrameType::kFailed, static_cast<char>(failure->code) + failure->message);
    }
  }
  if (part && !RunHasFailed()) {
    if (is_hub()) {
      TakePart(0, *std::move(part));
    } else {
      std::string payload;
      Append(payload, part->number);
      Append(payload, part->call);
      peers_[0].Queue(FrameType::kPart, payload + part->bytes);
      if (left_[0]) {
        RunFailed(ExitCode::kRuntime, "rank 0: left the run while others still needed it");
      }
    }
  }
  if (leaving && !said_goodbye_) {
    said_goodbye_ = true;
    leave_limit_ = now + options_.leave_limit;
    if (!RunHasFailed()) {
      for (Connection& peer : peers_) peer.Queue(FrameType::kGoodbye);
    }
  }
  if (now - last_alive_ > kAliveEvery) {
    last_alive_ = now;
    // One word is enough for a peer that does not take it.
    for (Connection& peer : peers_) {
      if (!peer.wants_to_send()) peer.Queue(FrameType::kAlive);
    }
  }
}

void StarService::CheckPeers(SteadyTime now) {
  for (size_t r = 0; r < peers_.size(); ++r) {
    Connection& peer = peers_[r];
    const bool was_open = peer.open();
    peer.Pump();
    while (auto frame = peer.Next()) Handle(static_cast<int>(r), *std::move(frame));
    const bool counts = static_cast<int>(r) != place_.rank && (is_hub() || r == 0);
    if (!counts || left_[r] || RunHasFailed()) continue;
    if (!was_open || !peer.open()) {
      // What this rank had to say itself was first, if rank 0 did not live to tell.
      if (own_failure_) {
        RunFailed(own_failure_->code,
                  fmt::format("rank {}: {}", place_.rank, own_failure_->message));
      } else {
        RunFailed(ExitCode::kRuntime, fmt::format("rank {}: lost (connection closed)", r));
      }
    } else if (now - peer.heard() > options_.silence_limit) {
      RunFailed(ExitCode::kRuntime,
                fmt::format("rank {}: lost (no word for {} s)", r, Seconds(now - peer.heard())));
    }
  }
  if (own_failure_ && !RunHasFailed() && now > own_failure_limit_) {
    RunFailed(own_failure_->code, fmt::format("rank {}: {}", place_.rank, own_failure_->message));
  }
}

void StarService::Handle(int rank, Frame frame) {
  switch (frame.type) {
    case FrameType::kPart: {
      std::string_view payload = frame.payload;
      Part part;
      part.number = TakeFront<uint64_t>(payload);
      part.call = TakeFront<CollectiveCall>(payload);
      part.bytes = payload;
      if (!RunHasFailed()) TakePart(rank, std::move(part));
      break;
    }
    case FrameType::kResult:
      Deliver(std::move(frame.payload));
      break;
    case FrameType::kFailed:
      HandleFailed(rank, frame.payload);
      break;
    case FrameType::kGoodbye:
      left_[static_cast<size_t>(rank)] = true;
      if (is_hub() && !RunHasFailed()) CompleteIfAllCame();
      break;
    case FrameType::kAlive:
    case FrameType::kStart:
    case FrameType::kHello:
    case FrameType::kJoined:
    case FrameType::kRefused:
      break;
  }
}

void StarService::HandleFailed(int rank, const std::string& payload) {
  const ExitCode code =
      payload.empty() ? ExitCode::kRuntime : static_cast<ExitCode>(payload.front());
  const std::string message = payload.empty() ? "failed" : payload.substr(1);
  RunFailed(code, is_hub() ? fmt::format("rank {}: {}", rank, message) : message);
}

void StarService::TakePart(int rank, Part part) {
  for (size_t r = 0; r < parts_.size(); ++r) {
    const std::optional<Part>& other = parts_[r];
    if (!other || (other->number == part.number && other->call == part.call)) continue;
    return RunFailed(
        ExitCode::kRuntime,
        fmt::format("rank {}: at {} {} where rank {} is at {} {} (a bug in zeroplan)", rank,
                    kCallNames[static_cast<size_t>(part.call) % 3], part.number, r,
                    kCallNames[static_cast<size_t>(other->call) % 3], other->number));
  }
  parts_[static_cast<size_t>(rank)] = std::move(part);
  CompleteIfAllCame();
}

void StarService::CompleteIfAllCame() {
  const bool waiting = std::any_of(parts_.begin(), parts_.end(), [](const auto& p) { return !!p; });
  bool all = true;
  for (size_t r = 0; r < parts_.size(); ++r) {
    if (parts_[r]) continue;
    all = false;
    const bool gone = static_cast<int>(r) == place_.rank ? said_goodbye_ : left_[r];
    if (!waiting || !gone) continue;
    return RunFailed(ExitCode::kRuntime,
                     fmt::format("rank {}: left the run while others still needed it", r));
  }
  if (!all) return;
  std::string result;
  if (parts_[0]->call == CollectiveCall::kBroadcast) result = std::move(parts_[0]->bytes);
  if (parts_[0]->call == CollectiveCall::kAllGather) {
    std::vector<std::string> texts;
    for (auto& part : parts_) texts.push_back(std::move(part->bytes));
    result = PackTexts(texts);
  }
  for (auto& part : parts_) part.reset();
  for (Connection& peer : peers_) peer.Queue(FrameType::kResult, result);
  Deliver(std::move(result));
}

void StarService::Deliver(std::string result) {
  const std::lock_guard lock(mutex_);
  result_ = std::move(result);
  changed_.notify_all();
}

void StarService::RunFailed(ExitCode code, const std::string& message) {
  if (RunHasFailed()) return;
  failed_at_ = Clock::now();
  if (is_hub()) {
    for (Connection& peer : peers_) {
      peer.Queue(FrameType::kFailed, static_cast<char>(code) + message);
      peer.Pump();
    }
  }
  const std::lock_guard lock(mutex_);
  failure_ = {code, message};
  failed_ = true;
  changed_.notify_all();
}

bool StarService::MayEnd(SteadyTime now) const {
  if (!said_goodbye_) return false;
  const bool sent = std::none_of(peers_.begin(), peers_.end(), [](const Connection& peer) {
    return peer.open() && peer.wants_to_send();
  });
  if (RunHasFailed()) return sent || now > failed_at_ + kLastWords;
  if (now > leave_limit_) return true;
  if (!sent) return false;
  for (size_t r = 1; is_hub() && r < peers_.size(); ++r) {
    if (!left_[r]) return false;
  }
  return true;
}

void StarService::EndIfStuck(SteadyTime now) const {
  if (options_.exit_when_stuck.count() <= 0 || !RunHasFailed()) return;
  if (now - failed_at_ < options_.exit_when_stuck) return;
  const std::string text = fmt::format(
      "zeroplan: {}\nzeroplan: rank {} did not end within {} s of that and is ended now\n",
      failure(), place_.rank, Seconds(options_.exit_when_stuck));
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
  _exit(static_cast<int>(ExitCode::kRuntime));
}

}  // namespace zeroplan
