#include "executor/train/background_save.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/base/stop_signals.h"
#include "core/base/thread.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// Ranks meet as often as steps end, but not much more often than this: a meeting of short steps
// would cost a share of them.
constexpr double kMeetEvery = 0.1;
// How long one waits for its own writer before it tells the others, which may have failed.
constexpr std::chrono::milliseconds kSlice(200);

// What begins a rank's part. A number follows, of looks until the next meeting (rank 0's counts),
// then a blank and the part itself, once.
constexpr char kWriterBusy = '.';
constexpr char kWriterDone = '+';
constexpr char kWriterFailed = '!';

}  // namespace

// The thread, which does one thing at a time.
class BackgroundSave::Writer {
 public:
  Writer() {
    const StopSignalsBlocked blocked;  // they are the trainer's
    thread_ = StartThread("saves beside the steps", [this] { Serve(); });
  }
  ~Writer() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // REQUIRES: not busy.
  void Post(std::function<std::string()> work) {
    {
      const std::lock_guard lock(mutex_);
      work_ = std::move(work);
      busy_ = true;
      failed_transiently_ = false;
      failure_ = nullptr;
      text_.clear();
    }
    changed_.notify_all();
  }
  // Nothing to do: its part is empty.
  void Skip() {
    const std::lock_guard lock(mutex_);
    failed_transiently_ = false;
    failure_ = nullptr;
    text_.clear();
  }
  void Await(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, limit, [this] { return !busy_; });
  }
  // Throws what no other attempt can mend.
  void RethrowFailure() const {
    std::exception_ptr failure;
    {
      const std::lock_guard lock(mutex_);
      if (!busy_) failure = failure_;
    }
    if (failure) std::rethrow_exception(failure);
  }
  // What there is to tell the others: status, and this rank's part or the error that may pass. A
  // failure that no other attempt can mend is no part; it counts as busy until it is rethrown.
  std::pair<char, std::string> part() const {
    const std::lock_guard lock(mutex_);
    if (busy_ || failure_) return {kWriterBusy, ""};
    return {failed_transiently_ ? kWriterFailed : kWriterDone, text_};
  }

 private:
  void Serve() {
    // Steps come first, wherever both want a core. On Linux a thread has a niceness of its own.
    setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 19);
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stopping_ || busy_; });
      if (!busy_) return;
      const std::function<std::string()> work = std::move(work_);
      lock.unlock();
      std::string text;
      bool transiently = false;
      std::exception_ptr failure;
      try {
        text = work();
      } catch (const TransientIoError& error) {
        transiently = true;
        text = error.what();
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      text_ = std::move(text);
      failed_transiently_ = transiently;
      failure_ = failure;
      busy_ = false;
      changed_.notify_all();
    }
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::function<std::string()> work_;
  bool busy_ = false, stopping_ = false, failed_transiently_ = false;
  std::exception_ptr failure_;
  std::string text_;
  std::jthread thread_;  // last
};

// Counts what goes through it, and ends a save that is given up.
class BackgroundSave::Sink : public StateSink {
 public:
  Sink(BackgroundSave& save, StateSink& sink) : save_(save), sink_(sink) {}
  void Write(const TensorRange& range, std::span<const float> values) override {
    save_.ThrowIfGivenUp();
    sink_.Write(range, values);
    save_.moves_.fetch_add(1, std::memory_order_relaxed);
  }

 private:
  BackgroundSave& save_;
  StateSink& sink_;
};

BackgroundSave::BackgroundSave(ProcessGroup& group, const GroupSave& save, WriteCopy write)
    : group_(group), save_(save), write_(std::move(write)), writer_(std::make_unique<Writer>()) {}

BackgroundSave::~BackgroundSave() { GiveUp(); }

void BackgroundSave::GiveUp() {
  given_up_.store(true);
  writer_ = nullptr;
}

void BackgroundSave::ThrowIfGivenUp() const {
  if (given_up_.load()) ThrowRuntime("step {}: its save was given up", meta_.step);
}

// ---- the writer's thread ----

void BackgroundSave::SetDoing(std::string what) {
  const std::lock_guard lock(mutex_);
  doing_ = std::move(what);
  moves_.fetch_add(1, std::memory_order_relaxed);
}

std::string BackgroundSave::Doing() const {
  const std::lock_guard lock(mutex_);
  return doing_;
}

std::string BackgroundSave::Stage() {
  for (auto left = PauseBeforeSave(attempt_); left.count() > 0;) {
    ThrowIfGivenUp();
    const auto slice = std::min(left, kSlice);
    std::this_thread::sleep_for(slice);
    left -= slice;
  }
  SetDoing(fmt::format("saving step {}: rank 0 makes a folder in {}", meta_.step,
                       save_.save_dir.string()));
  staging_ = nullptr;  // removes what the attempt before has left
  staging_ = std::make_unique<Staging>(save_);
  return staging_->Make(meta_.step).string();
}

std::string BackgroundSave::Write() {
  SetDoing(fmt::format("saving step {}: rank {} writes its files in {}", meta_.step, group_.rank(),
                       folder_.string()));
  NeedShared(group_, folder_);
  return WriteShardFiles(save_, folder_, [this](std::span<StateSink* const> sinks) {
    for (size_t i = 0; i < sinks.size(); ++i) {
      Sink sink(*this, *sinks[i]);
      write_(static_cast<int>(i), sink);
    }
  });
}

std::string BackgroundSave::Commit(const std::vector<std::string>& descriptions) {
  ThrowIfGivenUp();
  SetDoing(fmt::format("saving step {}: rank 0 commits {}", meta_.step, folder_.string()));
  meta_.files = ReadDescriptions(descriptions);
  return staging_->Commit(group_, meta_).string();
}

// ---- the trainer's thread ----

void BackgroundSave::Begin(const CheckpointMeta& meta) {
  ZEROPLAN_CHECK(!under_way(), "step {} is still being saved", meta_.step);
  meta_ = meta;
  attempt_ = 1;
  looks_left_ = 1;
  Start(Phase::kStage);
}

void BackgroundSave::Start(Phase phase) {
  phase_ = phase;
  told_ = false;
  std::function<std::string()> work;
  if (phase == Phase::kWrite) work = [this] { return Write(); };
  if (phase == Phase::kStage && first()) work = [this] { return Stage(); };
  if (phase == Phase::kCommit && first()) {
    work = [this, descriptions = parts_] { return Commit(descriptions); };
  }
  // Alone there is nobody to tell in between.
  if (alone()) {
    phase_ = Phase::kCommit;
    work = [this] {
      folder_ = Stage();
      return Commit({Write()});
    };
  }
  if (!work) return writer_->Skip();
  writer_->Post([this, work = std::move(work)] {
    struct Idle {
      BackgroundSave& save;
      ~Idle() { save.SetDoing({}); }
    } idle{*this};
    return work();
  });
}

std::optional<fs::path> BackgroundSave::Look(double step_seconds) {
  if (!under_way()) return std::nullopt;
  try {
    writer_->RethrowFailure();
    if (--looks_left_ > 0) return std::nullopt;
    return Meet(step_seconds);
  } catch (...) {
    phase_ = Phase::kIdle;
    throw;
  }
}

fs::path BackgroundSave::Wait() {
  try {
    for (;;) {
      writer_->Await(kSlice);
      group_.ThrowIfFailed();
      writer_->RethrowFailure();
      if (const auto folder = Meet(0)) return *folder;
    }
  } catch (...) {
    phase_ = Phase::kIdle;
    throw;
  }
}

std::optional<fs::path> BackgroundSave::Meet(double step_seconds) {
  const auto [status, text] = writer_->part();
  const double looks = step_seconds > 0 ? std::ceil(kMeetEvery / step_seconds) : 1;
  const bool tells = status == kWriterFailed || (status == kWriterDone && !told_);
  told_ = told_ || tells;
  const std::vector<std::string> all = group_.AllGather(
      fmt::format("{}{:.0f} {}", status, std::clamp(looks, 1.0, 1000.0), tells ? text : ""));
  looks_left_ = std::max(1L, std::strtol(all[0].c_str() + 1, nullptr, 10));
  parts_.resize(all.size());
  std::string problem;
  bool settled = true;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::string part = all[rank].substr(all[rank].find(' ') + 1);
    const char of_rank = all[rank][0];
    settled = settled && of_rank != kWriterBusy;
    if (of_rank == kWriterDone && !part.empty()) parts_[rank] = part;
    if (of_rank != kWriterFailed || !problem.empty()) continue;
    problem = alone() ? part : fmt::format("rank {}: {}", rank, part);
  }
  if (!settled) return std::nullopt;
  if (!problem.empty()) {
    TryAgain(problem);
    return std::nullopt;
  }
  switch (phase_) {
    case Phase::kIdle:
      break;
    case Phase::kStage:
      folder_ = parts_[0];
      parts_.assign(parts_.size(), "");
      Start(Phase::kWrite);
      break;
    case Phase::kWrite:
      Start(Phase::kCommit);
      break;
    case Phase::kCommit:
      phase_ = Phase::kIdle;
      return parts_[0];
  }
  return std::nullopt;
}

void BackgroundSave::TryAgain(const std::string& problem) {
  if (attempt_ == kSaveAttempts) ThrowRuntime("{}", problem);
  ++attempt_;
  if (first()) WarnOfNewSave(meta_.step, problem, attempt_);
  parts_.assign(parts_.size(), "");
  Start(Phase::kStage);
}

}  // namespace zeroplan
