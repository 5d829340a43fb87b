#include "executor/engine/local_ranks.h"

#include "core/base/error.h"

namespace zeroplan {

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
