// Stores of Pack (executor/kernels/cuda/device_util.cuh) that stay vectors.
#pragma once

#include <cstring>

#include "executor/kernels/cuda/device_util.cuh"

namespace zeroplan::cuda {

__device__ inline void StoreWords(void* to, uint4 words) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
               "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}
__device__ inline void StoreWords(void* to, uint2 words) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)), "r"(words.x),
               "r"(words.y)
               : "memory");
}

// By vectors: the compiler, left to itself, takes some packs apart.
template <typename T, int W>
__device__ inline void StorePack(T* data, const Pack<T, W>& pack) {
  if constexpr (sizeof(pack) % 16 == 0) {
    uint4 words[sizeof(pack) / 16];
    memcpy(words, &pack, sizeof(pack));
#pragma unroll
    for (size_t i = 0; i < sizeof(pack) / 16; ++i) {
      StoreWords(reinterpret_cast<uint4*>(data) + i, words[i]);
    }
  } else if constexpr (sizeof(pack) == 8) {
    uint2 words;
    memcpy(&words, &pack, sizeof(pack));
    StoreWords(data, words);
  } else {
    *reinterpret_cast<Pack<T, W>*>(data) = pack;
  }
}

}  // namespace zeroplan::cuda
