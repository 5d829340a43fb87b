// The ranks that this process runs, and how the first failure of one stops all of them.
#pragma once

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "core/program/program.h"
#include "executor/engine/engine.h"
#include "executor/engine/rank_runner.h"
#include "executor/engine/watch.h"

namespace zeroplan {

// A persistent thread for each rank.
class RankThreads {
 public:
  // Throws Error(kRuntime) if a thread cannot be started.
  explicit RankThreads(int count);
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  int count() const { return static_cast<int>(threads_.size()); }

  // Calls fn(rank) on every rank's thread at once and returns when all have returned, with their
  // writes visible. REQUIRES: fn does not throw; one caller at a time.
  template <typename Fn>
  void Run(Fn&& fn) {
    static_assert(std::is_nothrow_invocable_v<Fn&, int>);
    RunRaw([](void* f, int rank) { (*static_cast<std::remove_reference_t<Fn>*>(f))(rank); },
           const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  using RawFn = void (*)(void*, int);
  struct Start {
    RankThreads* group;
    int rank;
  };

  static void* Main(void* start);
  void RunRaw(RawFn fn, void* arg);
  void Serve(int rank);
  void Stop() noexcept;

  std::mutex mutex_;
  std::condition_variable posted_, finished_;
  RawFn fn_ = nullptr;
  void* arg_ = nullptr;
  uint64_t round_ = 0;
  int running_ = 0;
  bool stopping_ = false;
  std::vector<Start> starts_;
  std::vector<pthread_t> threads_;
};

class LocalRanks final : public Watched {
 public:
  enum class Threads : uint8_t {
    kOwn,      // each rank has one
    kCallers,  // one rank, which runs on the caller's thread
  };
  using MakeRank = std::function<std::unique_ptr<RankRunner>(int rank)>;

  // Makes ranks [first, first + count), each on its thread. Rethrows exceptions of `make`.
  LocalRanks(int first, int count, Threads threads, const MakeRank& make);
  LocalRanks(const LocalRanks&) = delete;
  LocalRanks& operator=(const LocalRanks&) = delete;

  int first() const { return first_; }
  int count() const { return static_cast<int>(ranks_.size()); }
  RankRunner& front() const { return *ranks_.front(); }
  // The rank of that number in the run. REQUIRES: it is one of this process's.
  RankRunner& of(int rank) const;
  const std::vector<std::unique_ptr<RankRunner>>& all() const { return ranks_; }

  // Calls fn(rank, index) for every rank at once, each on its thread; index counts from 0. The
  // first failure aborts its rank, and is rethrown by this call and by every later one, because the
  // ranks no longer agree. Allocates nothing.
  template <typename Fn>
  void OnEvery(Fn&& fn) {
    OnEveryThread([&](int index) {
      RankRunner& rank = *ranks_[static_cast<size_t>(index)];
      fn(rank, index);
      rank.Idle();
    });
  }

  // ---- for the watch: any thread, after construction ----

  std::vector<Standing> Standings() const override;
  void Moves(std::vector<uint64_t>& moves) const override;
  std::string Problem() const override;
  void Interrupt(const std::exception_ptr& cause) noexcept override;

 private:
  template <typename Fn>
  void OnEveryThread(Fn&& fn) {
    RethrowFailure();
    called_.store(true, std::memory_order_relaxed);
    const auto guarded = [&](int index) noexcept {
      try {
        fn(index);
      } catch (...) {
        Fail(index, std::current_exception());
      }
    };
    if (threads_) {
      threads_->Run(guarded);
    } else {
      guarded(0);
    }
    called_.store(false, std::memory_order_relaxed);
    RethrowFailure();
  }

  void RethrowFailure() const;
  void Fail(int index, const std::exception_ptr& cause) noexcept;

  const int first_;
  std::vector<std::unique_ptr<RankRunner>> ranks_;
  std::atomic<bool> called_{false};  // a call of the engine is running
  mutable std::mutex mutex_;
  std::exception_ptr failure_;  // the first; guarded by mutex_
  // last, because it must be joined before the members that it uses are destroyed
  std::optional<RankThreads> threads_;
};

// Without options.group, or if it has one process: all ranks of the program, as threads with
// collectives in process; else this process's rank. Throws Error(kUsage) naming what a build
// without Gloo lacks.
std::unique_ptr<LocalRanks> MakeCpuRanks(const Program& program, const EngineOptions& options);
// In a build with CUDA: this process's rank of options.group, on its GPU.
std::unique_ptr<LocalRanks> MakeCudaRanks(const Program& program, const EngineOptions& options);

}  // namespace zeroplan
