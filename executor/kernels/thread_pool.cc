// Workers sleep on a condition variable after a short spin. A job is published by one atomic word
// that holds its number and how many workers it wants; a worker that is not wanted never reads the
// job, so the caller need not wait for it.
#include "executor/kernels/thread_pool.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <vector>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/thread.h"
#include "executor/kernels/simd.h"

namespace zeroplan {
namespace {

// Kernels of a step follow each other within microseconds; this many pauses bridge that.
constexpr int kSpins = 400;
// Chunks for each thread, so that one that is held up by others on the machine gets fewer.
constexpr int64_t kChunksPerThread = 4;
// Libraries that pack operands on the stack (Eigen) may do so.
constexpr size_t kStackBytes = 16u << 20;
constexpr size_t kAlignment = 64;
constexpr uint64_t kWantedBits = 16;

void Pause() {
#if defined(__SSE2__)
  _mm_pause();
#endif
}

}  // namespace

struct ThreadPool::Impl {
  int threads;
  size_t scratch_bytes;
  std::vector<void*> scratch;
  std::vector<pthread_t> workers;

  // Written by the caller before `published` changes, read by wanted workers after they saw it.
  RawFn fn = nullptr;
  void* arg = nullptr;
  int64_t n = 0, chunks = 0;

  std::atomic<uint64_t> published{0};  // job number << kWantedBits | workers wanted
  std::atomic<int64_t> next_chunk{0};
  std::atomic<int> busy{0};  // wanted workers that have not finished
  std::atomic<bool> failed{false};
  bool stop = false;  // under `mutex`, published like a job
  std::exception_ptr error;
  std::mutex mutex;
  std::condition_variable wake, done;

  struct Start {
    Impl* impl;
    int worker;
  };
  std::vector<Start> starts;

  void RunChunks(int worker) {
    for (;;) {
      const int64_t chunk = next_chunk.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= chunks) return;
      if (failed.load(std::memory_order_relaxed)) continue;
      try {
        fn(arg, chunk * n / chunks, (chunk + 1) * n / chunks, worker);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failed.exchange(true)) error = std::current_exception();
      }
    }
  }

  // Waits until `published` is not `seen`.
  uint64_t NextJob(uint64_t seen) {
    for (int i = 0; i < kSpins; ++i) {
      const uint64_t now = published.load(std::memory_order_acquire);
      if (now != seen) return now;
      Pause();
    }
    std::unique_lock lock(mutex);
    wake.wait(lock, [&] { return published.load(std::memory_order_acquire) != seen; });
    return published.load(std::memory_order_acquire);
  }

  void Publish(uint64_t wanted) {
    {
      const std::lock_guard lock(mutex);
      const uint64_t job = (published.load(std::memory_order_relaxed) >> kWantedBits) + 1;
      published.store(job << kWantedBits | wanted, std::memory_order_release);
    }
    wake.notify_all();
  }

  void WaitForWorkers() {
    for (int i = 0; i < kSpins; ++i) {
      if (busy.load(std::memory_order_acquire) == 0) return;
      Pause();
    }
    std::unique_lock lock(mutex);
    done.wait(lock, [&] { return busy.load(std::memory_order_acquire) == 0; });
  }

  void Loop(int worker) {
    uint64_t seen = 0;
    for (;;) {
      seen = NextJob(seen);
      const uint64_t wanted = seen & ((uint64_t{1} << kWantedBits) - 1);
      if (static_cast<uint64_t>(worker) > wanted) continue;
      if (stop) return;
      RunChunks(worker);
      if (busy.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        // The lock keeps this between the caller's test and its sleep from going unheard.
        const std::lock_guard lock(mutex);
        done.notify_one();
      }
    }
  }

  static void* Main(void* raw) {
    const Start start = *static_cast<Start*>(raw);
#if defined(__linux__)
    char name[16] = {};  // Linux's limit, the final 0 included
    fmt::format_to_n(name, sizeof(name) - 1, "zp-worker-{}", start.worker);
    pthread_setname_np(pthread_self(), name);
#endif
    start.impl->Loop(start.worker);
    return nullptr;
  }

  void StopWorkers() {
    if (!workers.empty()) {
      {
        const std::lock_guard lock(mutex);
        stop = true;
      }
      Publish(workers.size());
    }
    for (pthread_t worker : workers) pthread_join(worker, nullptr);
    for (void* block : scratch) std::free(block);
  }
};

ThreadPool::ThreadPool(int threads, size_t scratch_bytes) : impl_(std::make_unique<Impl>()) {
  ZEROPLAN_CHECK(threads >= 1 && threads < (1 << kWantedBits), "{} threads", threads);
  Impl& impl = *impl_;
  impl.threads = threads;
  impl.scratch_bytes = (scratch_bytes + kAlignment - 1) / kAlignment * kAlignment;
  const auto count = static_cast<size_t>(threads);
  impl.scratch.reserve(count);
  impl.workers.reserve(count);
  impl.starts.reserve(count);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  bool has_memory = true;
  int refused = 0;  // why there is no further thread
  for (int worker = 0; worker < threads && refused == 0; ++worker) {
    void* block = std::aligned_alloc(kAlignment, std::max(impl.scratch_bytes, kAlignment));
    has_memory = block != nullptr;
    if (!has_memory) break;
    impl.scratch.push_back(block);
    if (worker == 0) continue;
    impl.starts.push_back({&impl, worker});
    pthread_t thread;
    refused = pthread_create(&thread, &attributes, Impl::Main, &impl.starts.back());
    if (refused == 0) impl.workers.push_back(thread);
  }
  pthread_attr_destroy(&attributes);
  if (!has_memory) {
    impl.StopWorkers();
    ThrowRuntime("cannot start {} threads with {} bytes of scratch each: use fewer threads",
                 threads, scratch_bytes);
  }
  if (refused == 0) return;
  // Results do not depend on how many there are.
  impl.threads = static_cast<int>(impl.workers.size()) + 1;
  LogWarning("{} of {} threads compute, since no other can be started: {}", impl.threads, threads,
             WhyNoThread(refused));
}

ThreadPool::~ThreadPool() { impl_->StopWorkers(); }

int ThreadPool::threads() const { return impl_->threads; }
void* ThreadPool::scratch(int worker) { return impl_->scratch[static_cast<size_t>(worker)]; }
size_t ThreadPool::scratch_bytes() const { return impl_->scratch_bytes; }

void ThreadPool::Run(int64_t n, int64_t grain, RawFn fn, void* arg) {
  if (n <= 0) return;
  Impl& impl = *impl_;
  const int64_t chunks =
      std::clamp<int64_t>(n / std::max<int64_t>(grain, 1), 1, impl.threads * kChunksPerThread);
  if (chunks == 1 || impl.threads == 1) {
    for (int64_t c = 0; c < chunks; ++c) fn(arg, c * n / chunks, (c + 1) * n / chunks, 0);
    return;
  }
  impl.fn = fn;
  impl.arg = arg;
  impl.n = n;
  impl.chunks = chunks;
  impl.next_chunk.store(0, std::memory_order_relaxed);
  impl.failed.store(false, std::memory_order_relaxed);
  const auto wanted = static_cast<int>(std::min<int64_t>(impl.threads, chunks)) - 1;
  impl.busy.store(wanted, std::memory_order_relaxed);
  impl.Publish(static_cast<uint64_t>(wanted));
  impl.RunChunks(0);
  impl.WaitForWorkers();
  if (impl.failed.load(std::memory_order_relaxed)) {
    std::exception_ptr error = std::move(impl.error);
    impl.error = nullptr;
    std::rethrow_exception(error);
  }
}

}  // namespace zeroplan
