// A persistent thread for each rank.
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <type_traits>
#include <vector>

namespace zeroplan {

class RankThreads {
 public:
  // Throws Error(kRuntime) if a thread cannot be started.
  explicit RankThreads(int count);
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  int count() const { return static_cast<int>(threads_.size()); }

  // Calls fn(rank) on every rank's thread at once and returns when all have returned, with what
  // they wrote visible. REQUIRES: fn does not throw; one caller at a time.
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

}  // namespace zeroplan
