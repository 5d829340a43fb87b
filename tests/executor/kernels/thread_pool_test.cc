#include "executor/kernels/thread_pool.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

namespace zeroplan {
namespace {

TEST_CASE("every index is worked on once, whatever n, grain and threads") {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads, 1024);
    for (int64_t n : {0, 1, 2, 7, 100, 1001}) {
      for (int64_t grain : {1, 3, 64, 5000}) {
        std::vector<int> seen(static_cast<size_t>(n));
        std::atomic<int> chunks{0}, small{0};
        pool.ParallelFor(n, grain, [&](int64_t begin, int64_t end, int worker) {
          ++chunks;
          if (end - begin < grain) ++small;
          CHECK(worker >= 0);
          CHECK(worker < threads);
          for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
        });
        CHECK(std::all_of(seen.begin(), seen.end(), [](int count) { return count == 1; }));
        CHECK(small <= (n < grain ? 1 : 0));
        CHECK((chunks > 0) == (n > 0));
      }
    }
  }
}

TEST_CASE("no worker runs twice at once, and each has its own aligned scratch") {
  ThreadPool pool(4, 1000);
  CHECK(pool.scratch_bytes() >= 1000);
  std::atomic<int> inside[4] = {};
  pool.ParallelFor(200, 1, [&](int64_t, int64_t, int worker) {
    CHECK(inside[worker].fetch_add(1) == 0);
    CHECK(reinterpret_cast<uintptr_t>(pool.scratch(worker)) % 64 == 0);
    std::memset(pool.scratch(worker), worker, pool.scratch_bytes());
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    inside[worker].fetch_sub(1);
  });
  for (int w = 0; w < 4; ++w) {
    for (int v = w + 1; v < 4; ++v) CHECK(pool.scratch(w) != pool.scratch(v));
  }
}

TEST_CASE("many short jobs, with pauses that let workers fall asleep") {
  ThreadPool pool(3);
  std::vector<int64_t> data(3000);  // plain memory: a race would show under TSan
  for (int job = 0; job < 2000; ++job) {
    pool.ParallelFor(static_cast<int64_t>(data.size()), 100, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) data[static_cast<size_t>(i)] += i;
    });
    if (job % 400 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  for (size_t i = 0; i < data.size(); ++i) REQUIRE(data[i] == static_cast<int64_t>(2000 * i));
}

TEST_CASE("an exception reaches the caller, and the pool goes on") {
  for (int threads : {1, 4}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 20; ++round) {
      CHECK_THROWS_AS(
          pool.ParallelFor(100, 1,
                           [](int64_t, int64_t, int) { throw std::runtime_error("broken"); }),
          std::runtime_error);
      std::atomic<int64_t> sum{0};
      pool.ParallelFor(100, 1, [&](int64_t begin, int64_t end, int) { sum += end - begin; });
      CHECK(sum == 100);
    }
  }
}

}  // namespace
}  // namespace zeroplan
