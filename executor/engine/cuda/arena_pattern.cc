#include "executor/engine/cuda/arena_pattern.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "executor/device/arena.h"
#include "executor/device/cuda/cuda_handles.h"

namespace zeroplan {
namespace {

constexpr uint64_t kPatternBlock = uint64_t{16} << 20;

// Calls visit(space, memory, at, bytes) for each block, `at` bytes into its arena.
template <typename Visit>
void ForEachBlock(const Program& program, const ArenaBases& bases, Visit&& visit) {
  for (const Space space : {Space::kDevice, Space::kPinned, Space::kPageable}) {
    const auto s = static_cast<size_t>(space);
    const uint64_t bytes = program.arena_bytes[s];
    for (uint64_t at = 0; at < bytes; at += kPatternBlock) {
      visit(s, bases[s] + at, at, std::min(kPatternBlock, bytes - at));
    }
  }
}

}  // namespace

void FillArenas(const Program& program, const ArenaBases& bases, const SwapFile& file) {
  std::vector<std::byte> block(kPatternBlock);
  ForEachBlock(program, bases, [&](size_t, std::byte* memory, uint64_t at, uint64_t bytes) {
    FillPattern({block.data(), bytes}, at);
    ZEROPLAN_CUDA(cudaMemcpy(memory, block.data(), bytes, cudaMemcpyDefault));
  });
  if (program.arena_bytes[static_cast<size_t>(Space::kFile)] > 0) file.FillWithPattern();
}

std::array<uint64_t, kSpaces> ArenaPatternEnds(const Program& program, const ArenaBases& bases,
                                               const SwapFile& file) {
  std::array<uint64_t, kSpaces> ends{};
  std::vector<std::byte> block(kPatternBlock);
  ZEROPLAN_CUDA(cudaDeviceSynchronize());
  ForEachBlock(program, bases, [&](size_t space, std::byte* memory, uint64_t at, uint64_t bytes) {
    ZEROPLAN_CUDA(cudaMemcpy(block.data(), memory, bytes, cudaMemcpyDefault));
    const uint64_t end = PatternEnd({block.data(), bytes}, at);
    if (end > 0) ends[space] = at + end;
  });
  ends[static_cast<size_t>(Space::kFile)] = file.PatternHighWater();
  return ends;
}

}  // namespace zeroplan
