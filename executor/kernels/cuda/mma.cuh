// Tensor cores' product of 16 x 16 by 16 x 8 elements of 16 bit, fp32 sums (mma.m16n8k16), and what
// feeds it from shared memory (ldmatrix). Compute capability 8.0 or later.
//
// Of a warp's lane, g = lane / 4 and t = lane % 4. A has in a[0] (row g, columns 2t and 2t + 1), in
// a[1] row g + 8, in a[2] and a[3] the same rows 8 columns on; B in b0 (rows 2t and 2t + 1, column
// g), in b1 8 rows down; C in c[0] and c[1] (row g, columns 2t and 2t + 1), in c[2] and c[3] row
// g + 8.
#pragma once

#include <cstdint>

#include "executor/kernels/cuda/device_util.cuh"

namespace zeroplan::cuda {

// Four matrices of 8 x 8: lane l gives the address of row l % 8 of matrix l / 8, of 16 bytes. A
// lane gets of matrix i in m[i] the elements 2t and 2t + 1 of row g, or, kTransposed, of column g.
template <bool kTransposed>
__device__ inline void LoadMatrices(const void* row, uint32_t (&m)[4]) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(address));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(address));
  }
}

// c += a * b.
template <typename T>
__device__ inline void MultiplyAdd(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                   uint32_t b1) {
  if constexpr (__is_same(T, Bf16)) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

}  // namespace zeroplan::cuda
