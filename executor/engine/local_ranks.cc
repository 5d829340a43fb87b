#include "executor/engine/local_ranks.h"

#include "core/base/error.h"
#include "core/base/thread.h"

namespace zeroplan {

namespace {

// Kernels keep tiles on the stack, and a batch callback is the caller's code: more than the 8 MB
// that limits may have been lowered to.
constexpr size_t kStackBytes = 16u << 20;

int StartRank(pthread_t* thread, void* (*main)(void*), void* arg) {
  pthread_attr_t attributes;
  if (const int error = pthread_attr_init(&attributes); error != 0) return error;
  int error = pthread_attr_setstacksize(&attributes, kStackBytes);
  if (error == 0) error = pthread_create(thread, &attributes, main, arg);
  pthread_attr_destroy(&attributes);
  return error;
}

}  // namespace

RankThreads::RankThreads(int count) {
  starts_.reserve(static_cast<size_t>(count));
  threads_.reserve(static_cast<size_t>(count));
  for (int rank = 0; rank < count; ++rank) {
    starts_.push_back({this, rank});
    pthread_t thread{};
    if (const int error = StartRank(&thread, &Main, &starts_.back()); error != 0) {
      Stop();
      ThrowNoThread(fmt::format("rank {} of {}", rank, count), error);
    }
    threads_.push_back(thread);
  }
}

RankThreads::~RankThreads() { Stop(); }

void RankThreads::Stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  posted_.notify_all();
  for (const pthread_t thread : threads_) pthread_join(thread, nullptr);
  threads_.clear();
}

void* RankThreads::Main(void* start) {
  const Start& self = *static_cast<Start*>(start);
  self.group->Serve(self.rank);
  return nullptr;
}

void RankThreads::Serve(int rank) {
  uint64_t served = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    posted_.wait(lock, [&] { return stopping_ || round_ != served; });
    if (round_ == served) return;
    served = round_;
    const RawFn fn = fn_;
    void* arg = arg_;
    lock.unlock();
    fn(arg, rank);
    lock.lock();
    if (--running_ == 0) finished_.notify_all();
  }
}

void RankThreads::RunRaw(RawFn fn, void* arg) {
  std::unique_lock lock(mutex_);
  fn_ = fn;
  arg_ = arg;
  running_ = count();
  ++round_;
  posted_.notify_all();
  finished_.wait(lock, [&] { return running_ == 0; });
}

LocalRanks::LocalRanks(int first, int count, Threads threads, const MakeRank& make)
    : first_(first), ranks_(static_cast<size_t>(count)) {
  ZEROPLAN_CHECK(threads == Threads::kOwn || count == 1, "{} ranks on one thread", count);
  if (threads == Threads::kOwn) threads_.emplace(count);
  // On the ranks' own threads, so that their pages come from memory near them.
  OnEveryThread([&](int index) { ranks_[static_cast<size_t>(index)] = make(first_ + index); });
}

RankRunner& LocalRanks::of(int rank) const {
  ZEROPLAN_CHECK(rank >= first_ && rank - first_ < count(), "rank {} is another process's", rank);
  return *ranks_[static_cast<size_t>(rank - first_)];
}

void LocalRanks::RethrowFailure() const {
  std::exception_ptr failure;
  {
    const std::lock_guard lock(mutex_);
    failure = failure_;
  }
  if (failure) std::rethrow_exception(failure);
}

std::vector<Standing> LocalRanks::Standings() const {
  std::vector<Standing> standings;
  for (const auto& rank : ranks_) {
    standings.push_back(rank->standing());
    if (called_.load(std::memory_order_relaxed)) continue;
    standings.back().doing = "is between two calls of the engine (progress, metrics, files)";
    standings.back().holds_up = standings.back().outside = true;
  }
  return standings;
}

void LocalRanks::Moves(std::vector<uint64_t>& moves) const {
  moves.clear();
  for (const auto& rank : ranks_) moves.push_back(rank->moves());
}

std::string LocalRanks::Problem() const {
  for (const auto& rank : ranks_) {
    if (std::string problem = rank->Problem(); !problem.empty()) return problem;
  }
  return {};
}

void LocalRanks::Interrupt(const std::exception_ptr& cause) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = cause;
  }
  for (const auto& rank : ranks_) rank->Interrupt(cause);
}

void LocalRanks::Fail(int index, const std::exception_ptr& cause) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;  // most often this one was let go because of it
    failure_ = cause;
  }
  // Null: it failed while it was made, when nobody waits for it yet.
  if (RankRunner* rank = ranks_[static_cast<size_t>(index)].get()) rank->Abort(cause);
}

}  // namespace zeroplan
