// The threads of one rank, and a scratch block for each: kernels allocate nothing while a step
// runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace zeroplan {

class ThreadPool {
 public:
  // `threads` >= 1 counts the caller: starts threads - 1, or, with a warning, as many as the system
  // allows. Each worker owns `scratch_bytes`.
  explicit ThreadPool(int threads, size_t scratch_bytes = 8u << 20);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;  // the caller and the started threads
  // 64-byte aligned scratch of `worker` (0 .. threads-1).
  void* scratch(int worker);
  size_t scratch_bytes() const;

  // Calls fn(begin, end, worker) over [0, n) split into chunks of at least `grain`; returns when
  // all are done. The split depends on n, grain and threads() only; one worker processes a whole
  // chunk. Allocates nothing. An exception of fn reaches the caller. Not reentrant.
  template <typename Fn>
  void ParallelFor(int64_t n, int64_t grain, Fn&& fn) {
    Run(
        n, grain,
        [](void* f, int64_t b, int64_t e, int w) {
          (*static_cast<std::remove_reference_t<Fn>*>(f))(b, e, w);
        },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  using RawFn = void (*)(void*, int64_t, int64_t, int);
  void Run(int64_t n, int64_t grain, RawFn fn, void* arg);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zeroplan
