#include "executor/kernels/dropout.h"

#include <algorithm>

#include "executor/kernels/cpu_kernels.h"
#include "executor/kernels/kernel_util.h"

namespace zeroplan::cpu {

void Dropout(const KernelCall& call) {
  const auto [M, K, T, tensor] = FirstDims<4>(call.dims);
  const KernelArg &x_MK = Arg(call, 0), &y_MK = Arg(call, 2);
  const uint64_t first_sequence = SequenceNumber(Arg(call, 1).as<const int32_t>());
  const DropRule rule = DropRuleOf(call.scalars[0]);
  const bool add = call.has(kAccumulate);
  const auto words = [&, T = T, tensor = tensor](int64_t m, int64_t c) {
    return DropWords(call.context.seed, first_sequence + static_cast<uint64_t>(m / T),
                     static_cast<uint32_t>(m % T), static_cast<uint32_t>(tensor),
                     static_cast<uint32_t>(c / kDropColumns));
  };
  call.context.pool->ParallelFor(M * K, kElementGrain, [&, K = K](int64_t begin, int64_t end, int) {
    alignas(64) float x_buffer[kBlock], y_buffer[kBlock];
    ForEachBlock(begin, end, [&](int64_t first, int64_t count) {
      const float* x = ReadBlock(x_MK, first, count, x_buffer);
      const float* old = add ? ReadBlock(y_MK, first, count, y_buffer) : nullptr;
      float* y = WriteBlock(y_MK, first, y_buffer);
      for (int64_t i = 0; i < count;) {
        const int64_t m = (first + i) / K, c = (first + i) % K;
        const PhiloxBlock random = words(m, c);
        int64_t in_group = c % kDropColumns;
        const int64_t stop = std::min({count, i + kDropColumns - in_group, i + K - c});
        for (; i < stop; ++i, ++in_group) {
          const float kept = Keeps(rule, random, in_group) ? x[i] * rule.scale : 0.0f;
          y[i] = add ? old[i] + kept : kept;
        }
      }
      CommitBlock(y_MK, first, count, y_buffer);
    });
  });
}

}  // namespace zeroplan::cpu
