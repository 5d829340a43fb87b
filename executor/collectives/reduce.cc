#include "executor/collectives/reduce.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/base/error.h"
#include "executor/kernels/convert.h"

namespace zeroplan {
namespace {

// Elements summed at a time: source block, sums and result stay in the first-level cache.
constexpr uint64_t kSumBlock = 1024;

void AddInto(float* sum, const float* more, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) sum[i] += more[i];
}

// Calls sum_block(offset, n, out) for blocks of [0, count), which leaves n rounded elements in
// `out`, then copies them to all targets: by then every source of the block has been read, so that
// a target may be one of them.
template <typename SumBlock>
void ForEachBlock(Dtype dtype, std::span<std::byte* const> targets, uint64_t target_begin,
                  uint64_t count, SumBlock&& sum_block) {
  const uint64_t bytes = DtypeBytes(dtype);
  alignas(64) std::array<std::byte, kSumBlock * sizeof(double)> out;
  for (uint64_t at = 0; at < count; at += kSumBlock) {
    const uint64_t n = std::min(kSumBlock, count - at);
    sum_block(at, n, out.data());
    for (std::byte* target : targets) {
      std::memcpy(target + (target_begin + at) * bytes, out.data(), n * bytes);
    }
  }
}

}  // namespace

void SumElements(Dtype dtype, std::span<const std::byte* const> sources, uint64_t source_begin,
                 std::span<std::byte* const> targets, uint64_t target_begin, uint64_t count) {
  if (dtype == Dtype::kF64) {
    ForEachBlock(dtype, targets, target_begin, count, [&](uint64_t at, uint64_t n, std::byte* out) {
      auto* sum = reinterpret_cast<double*>(out);
      std::fill(sum, sum + n, -0.0);  // what leaves a first summand of -0.0 as it is
      for (const std::byte* source : sources) {
        const double* from = reinterpret_cast<const double*>(source) + source_begin + at;
        for (uint64_t i = 0; i < n; ++i) sum[i] += from[i];
      }
    });
    return;
  }
  ZEROPLAN_CHECK(dtype == Dtype::kF32 || dtype == Dtype::kBF16 || dtype == Dtype::kF16,
                 "sum of {} elements", DtypeName(dtype));
  const uint64_t bytes = DtypeBytes(dtype);
  alignas(64) std::array<float, kSumBlock> sum, wide;
  ForEachBlock(dtype, targets, target_begin, count, [&](uint64_t at, uint64_t n, std::byte* out) {
    const auto elements = static_cast<int64_t>(n);
    for (size_t r = 0; r < sources.size(); ++r) {
      const std::byte* from = sources[r] + (source_begin + at) * bytes;
      Widen(dtype, from, elements, r == 0 ? sum.data() : wide.data());
      if (r > 0) AddInto(sum.data(), wide.data(), n);
    }
    Narrow(dtype, sum.data(), elements, out);
  });
}

}  // namespace zeroplan
