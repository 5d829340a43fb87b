// The same work for many things, on several threads.
#pragma once

#include <cstddef>
#include <functional>

namespace zeroplan {

// Calls work(i) for each i in [0, count), the small ones first, on `threads` threads (0: one a
// processor), of which the caller is one. Once a call has thrown no other starts; what the one with
// the smallest i threw reaches the caller.
void ParallelEach(size_t count, int threads, const std::function<void(size_t)>& work);

}  // namespace zeroplan
