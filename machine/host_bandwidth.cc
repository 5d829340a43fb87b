#include "machine/host_bandwidth.h"

#include <sys/mman.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/base/timing.h"
#include "core/base/units.h"
#include "machine/memory_info.h"

namespace zeroplan {
namespace {

constexpr uint64_t kMib = uint64_t{1} << 20;
constexpr int kRounds = 5;

struct FreeMemory {
  void operator()(float* memory) const noexcept { std::free(memory); }
};
using Array = std::unique_ptr<float, FreeMemory>;

Array Allocate(size_t elements) {
  const uint64_t bytes = AlignUp(elements * sizeof(float), 2 * kMib);
  Array array(static_cast<float*>(std::aligned_alloc(2 * kMib, bytes)));
  if (array) madvise(array.get(), bytes, MADV_HUGEPAGE);
  return array;
}

struct Triad {
  float* a;
  float* b;
  float* c;
  size_t elements;

  void Fill() const {
    std::fill_n(a, elements, 0.0f);
    std::fill_n(b, elements, 1.0f);
    std::fill_n(c, elements, 2.0f);
  }
  void Run(float scale) const {
    float* __restrict out = a;
    const float* __restrict x = b;
    const float* __restrict y = c;
    for (size_t i = 0; i < elements; ++i) out[i] = x[i] + scale * y[i];
  }
};

}  // namespace

double MeasureTriad(uint64_t bytes, int threads) {
  ZEROPLAN_CHECK(bytes >= kMib && threads >= 1);
  const size_t share = bytes / (3 * sizeof(float)) / static_cast<size_t>(threads);
  const size_t elements = share * static_cast<size_t>(threads);
  const Array a = Allocate(elements), b = Allocate(elements), c = Allocate(elements);
  if (!a || !b || !c) return 0;

  // The first round warms up. Thread 0 is this one, and holds the watch.
  std::barrier sync(threads);
  const auto work = [&](int thread) {
    const size_t begin = share * static_cast<size_t>(thread);
    const Triad part = {a.get() + begin, b.get() + begin, c.get() + begin, share};
    part.Fill();
    std::vector<double> seconds;
    for (int round = 0; round <= kRounds; ++round) {
      sync.arrive_and_wait();
      const auto start = std::chrono::steady_clock::now();
      part.Run(static_cast<float>(round));
      sync.arrive_and_wait();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      if (round > 0) seconds.push_back(took.count());
    }
    return seconds;
  };
  std::vector<std::jthread> others;
  bool complete = true;
  for (int thread = 1; thread < threads; ++thread) {
    try {
      others.emplace_back([&work, thread] { work(thread); });
    } catch (const std::system_error&) {
      complete = false;
      sync.arrive_and_drop();  // nobody waits for a thread that is not there
    }
  }
  const double median = Median(work(0));
  others.clear();
  // Read back: the loop is no dead store.
  if (!complete || a.get()[0] != 1.0f + kRounds * 2.0f) return 0;
  return static_cast<double>(elements) * 3 * sizeof(float) / median;
}

uint64_t TriadBytes(int threads) {
  // 16 MiB a core: servers have 2 to 5 MB of cache for each.
  const uint64_t wanted =
      std::clamp<uint64_t>(static_cast<uint64_t>(threads) * 16 * kMib, 192 * kMib, 1536 * kMib);
  if (const auto available = MemoryInfo("MemAvailable")) {
    return std::max(kMib, std::min(wanted, *available / 8));
  }
  return wanted;
}

}  // namespace zeroplan
