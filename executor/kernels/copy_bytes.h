// Copies within host memory that are worth more than one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "executor/kernels/thread_pool.h"

namespace zeroplan {

// REQUIRES: the ranges do not overlap, and the pool runs nothing else.
inline void CopyBytes(ThreadPool& pool, std::byte* to, const std::byte* from, uint64_t bytes) {
  constexpr int64_t kGrain = 1 << 20;
  pool.ParallelFor(static_cast<int64_t>(bytes), kGrain, [&](int64_t begin, int64_t end, int) {
    std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
  });
}

}  // namespace zeroplan
