// Host memory to measure with.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "core/base/dtype.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "executor/kernels/kernel_call.h"
#include "executor/kernels/thread_pool.h"

namespace zeroplan {

// An array whose pages the pool's threads touch first, so that on several memory controllers each
// thread's part is near it.
template <typename T>
class HostArray {
 public:
  HostArray(ThreadPool& pool, int64_t n, T value) {
    const uint64_t bytes = AlignUp(static_cast<uint64_t>(n) * sizeof(T), kPage);
    data_.reset(static_cast<T*>(std::aligned_alloc(kPage, bytes)));
    if (!data_) ThrowRuntime("no memory for {} to measure the host with", FormatBytes(bytes));
    madvise(data_.get(), bytes, MADV_HUGEPAGE);
    constexpr int64_t kGrain = 1 << 14;
    pool.ParallelFor(n, kGrain, [&](int64_t begin, int64_t end, int) {
      std::fill(data_.get() + begin, data_.get() + end, value);
    });
  }
  T* data() const { return data_.get(); }
  KernelArg arg(Dtype dtype, int64_t begin, int64_t n) const {
    return {data_.get() + begin, static_cast<uint64_t>(n) * sizeof(T), dtype};
  }

 private:
  static constexpr uint64_t kPage = uint64_t{2} << 20;
  struct Free {
    void operator()(void* memory) const noexcept { std::free(memory); }
  };
  std::unique_ptr<T, Free> data_;
};

}  // namespace zeroplan
