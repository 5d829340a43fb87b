// Launches of the adapters' kernels (core/model/lora.h) at the shapes of Llama 3.1 8B: rank 16 on
// all linears, a micro-batch of 4096 tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "core/program/kernel.h"

namespace zeroplan {

struct AdapterProduct {
  const char* name;
  int64_t K, widths[3];
};
inline constexpr AdapterProduct kAdapterProducts[] = {{"qkv", 4096, {4096, 1024, 1024}},
                                                      {"o", 4096, {4096, 0, 0}},
                                                      {"gate and up", 4096, {14336, 14336, 0}},
                                                      {"down", 14336, {4096, 0, 0}}};

// row(note, id, dims, elements of each argument, 0 where it is absent; flags).
template <typename RowFn>
void ForEachAdapterRow(RowFn&& row) {
  constexpr int64_t M = 4096, r = 16;
  using enum KernelId;
  for (const AdapterProduct& p : kAdapterProducts) {
    int64_t N = 0, mask = 0, R = 0;
    for (int i = 0; i < 3; ++i) {
      if (p.widths[i] == 0) continue;
      N += p.widths[i];
      mask |= 1 << i;
      R += r;
    }
    const int64_t K = p.K;
    const KernelDims down = {M, K, R}, up = {M, r, N, p.widths[0], p.widths[0] + p.widths[1], mask};
    const bool residual = N == 4096;  // the products whose sums go on to the next layer
    row(p.name, kLoraDown, down, std::vector<int64_t>{M * K, R * K, M * R}, 0);
    row(p.name, kLoraUp, up, std::vector<int64_t>{M * R, N * r, residual ? M * N : 0, M * N}, 0);
    row(p.name, kLoraUpBackward, up, std::vector<int64_t>{M * N, M * R, N * r, M * R, N * r}, 0);
    row(p.name, kLoraDownBackward, down, std::vector<int64_t>{M * K, M * R, R * K, M * K, R * K},
        0);
  }
}

}  // namespace zeroplan
