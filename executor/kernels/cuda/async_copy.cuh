// Copies from global into shared memory that pass no registers and that a thread does not wait for
// before it says so (cp.async; compute capability 8.0 or later).
//
// A thread's copies since its last CommitCopies make up a group. What a group brought is seen by
// the thread that asked for it; other threads need a barrier after its WaitForCopies.
#pragma once

#include <cstdint>

namespace zeroplan::cuda {

// 16 bytes. REQUIRES: both addresses are multiples of 16.
__device__ inline void CopyAsync16(void* shared, const void* global) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}

// The same where `there`, else 16 bytes of 0; `global` is an address in any case.
__device__ inline void CopyAsync16OrZero(void* shared, const void* global, bool there) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global),
               "r"(there ? 16 : 0)
               : "memory");
}

__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int kPending>
__device__ inline void WaitForCopiesBut() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Waits until all groups but the last `pending` are there. REQUIRES: 0 <= pending <= 3.
__device__ inline void WaitForCopies(int pending) {
  switch (pending) {
    case 0:
      return WaitForCopiesBut<0>();
    case 1:
      return WaitForCopiesBut<1>();
    case 2:
      return WaitForCopiesBut<2>();
    default:
      return WaitForCopiesBut<3>();
  }
}

}  // namespace zeroplan::cuda
