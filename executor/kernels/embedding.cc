// Token and position embedding, and their gradients.
//
// Legend: B micro-batch, T sequence, C hidden, V vocabulary, Vp padded vocabulary.
#include "executor/kernels/cpu_kernels.h"
#include "executor/kernels/kernel_util.h"

namespace zeroplan::cpu {
namespace {

using simd::Load;
using simd::Store;

constexpr int64_t kRowGrain = 16;
// Columns a thread takes at least: whole cache lines in every dtype.
constexpr int64_t kColumnUnit = 32;

void CheckTokens(const int32_t* tokens, int64_t n, int64_t V) {
  for (int64_t i = 0; i < n; ++i) {
    ZEROPLAN_CHECK(tokens[i] >= 0 && tokens[i] < V, "token {} at {}, vocabulary {}", tokens[i], i,
                   V);
  }
}

// sum_n += row elements from `first` on.
void AddTo(float* sum_n, const KernelArg& arg, int64_t first, int64_t n, float* buffer) {
  const float* row = ReadBlock(arg, first, n, buffer);
  simd::VectorLoop(n, [&](int64_t i, auto part) {
    Store(sum_n + i, Load(sum_n + i, part) + Load(row + i, part), part);
  });
}

// The positions of each token in order: first[token] and next[position], -1 ends.
struct TokenLists {
  int32_t* first;
  int32_t* next;
};

// Lists for the tokens [v0, v1).
void BuildLists(const int32_t* tokens, int64_t n, int64_t v0, int64_t v1, const TokenLists& lists) {
  std::fill(lists.first, lists.first + (v1 - v0), -1);
  for (int64_t i = n - 1; i >= 0; --i) {
    if (tokens[i] < v0 || tokens[i] >= v1) continue;
    int32_t& first = lists.first[tokens[i] - v0];
    lists.next[i] = first;
    first = static_cast<int32_t>(i);
  }
}

// fn(first, n) for blocks of the columns [begin, end) * kColumnUnit of C.
template <typename Fn>
void ForEachColumnBlock(int64_t begin, int64_t end, int64_t C, Fn&& fn) {
  ForEachBlock(begin * kColumnUnit, std::min(end * kColumnUnit, C), fn);
}

}  // namespace

void EmbedForward(const KernelCall& call) {
  const int64_t B = call.dims[0], T = call.dims[1], C = call.dims[2], V = call.dims[3];
  const auto* tokens_BT = Arg(call, 0).as<const int32_t>();
  const KernelArg &wte_VpC = Arg(call, 1), &wpe_TC = Arg(call, 2), &x_BTC = Arg(call, 3);
  CheckTokens(tokens_BT, B * T, V);
  call.context.pool->ParallelFor(B * T, kRowGrain, [&](int64_t begin, int64_t end, int) {
    alignas(64) float wte_buffer[kBlock], wpe_buffer[kBlock] = {}, x_buffer[kBlock];
    for (int64_t row = begin; row < end; ++row) {
      const int64_t wte_row = tokens_BT[row] * C, wpe_row = row % T * C;
      ForEachBlock(0, C, [&](int64_t first, int64_t count) {
        const float* wte = ReadBlock(wte_VpC, wte_row + first, count, wte_buffer);
        const float* wpe = Present(wpe_TC) ? ReadBlock(wpe_TC, wpe_row + first, count, wpe_buffer)
                                           : wpe_buffer;  // zeros
        float* x = WriteBlock(x_BTC, row * C + first, x_buffer);
        simd::VectorLoop(count, [&](int64_t i, auto part) {
          Store(x + i, Load(wte + i, part) + Load(wpe + i, part), part);
        });
        CommitBlock(x_BTC, row * C + first, count, x_buffer);
      });
    }
  });
}

// Each thread has its own columns of all rows, so sums need no locks and keep token order. A 16-bit
// dwte row is read and rounded once, however often its token comes.
void EmbedBackward(const KernelCall& call) {
  const int64_t B = call.dims[0], T = call.dims[1], C = call.dims[2], V = call.dims[3];
  const auto* tokens_BT = Arg(call, 0).as<const int32_t>();
  const KernelArg &dx_BTC = Arg(call, 1), &dwte_VpC = Arg(call, 2), &dwpe_TC = Arg(call, 3);
  const bool accumulate = call.has(kAccumulate);
  ThreadPool& pool = *call.context.pool;
  CheckTokens(tokens_BT, B * T, V);
  const int64_t column_units = (C + kColumnUnit - 1) / kColumnUnit;

  Scratch scratch(pool, 0);
  TokenLists lists;
  lists.next = static_cast<int32_t*>(scratch.Bytes(B * T * 4));
  const int64_t range = std::min(V, scratch.FloatsLeft());
  ZEROPLAN_CHECK(range > 0, "no scratch for {} tokens", B * T);
  lists.first = static_cast<int32_t*>(scratch.Bytes(range * 4));
  for (int64_t v0 = 0; v0 < V; v0 += range) {
    const int64_t v1 = std::min(V, v0 + range);
    BuildLists(tokens_BT, B * T, v0, v1, lists);
    pool.ParallelFor(column_units, 1, [&](int64_t begin, int64_t end, int) {
      alignas(64) float row_buffer[kBlock], sum_buffer[kBlock];
      for (int64_t v = v0; v < v1; ++v) {
        if (lists.first[v - v0] < 0) continue;
        ForEachColumnBlock(begin, end, C, [&](int64_t first, int64_t count) {
          float* sum = WriteBlock(dwte_VpC, v * C + first, sum_buffer);
          if (sum == sum_buffer) ReadBlock(dwte_VpC, v * C + first, count, sum_buffer);
          for (int64_t i = lists.first[v - v0]; i >= 0; i = lists.next[i]) {
            AddTo(sum, dx_BTC, i * C + first, count, row_buffer);
          }
          CommitBlock(dwte_VpC, v * C + first, count, sum_buffer);
        });
      }
    });
  }

  if (!Present(dwpe_TC)) return;
  pool.ParallelFor(T, kRowGrain, [&](int64_t begin, int64_t end, int) {
    alignas(64) float row_buffer[kBlock], sum_buffer[kBlock];
    for (int64_t t = begin; t < end; ++t) {
      ForEachBlock(0, C, [&](int64_t first, int64_t count) {
        float* sum = WriteBlock(dwpe_TC, t * C + first, sum_buffer);
        if (!accumulate) {
          std::fill(sum, sum + count, 0.0f);
        } else if (sum == sum_buffer) {
          ReadBlock(dwpe_TC, t * C + first, count, sum_buffer);
        }
        for (int64_t b = 0; b < B; ++b) {
          AddTo(sum, dx_BTC, (b * T + t) * C + first, count, row_buffer);
        }
        CommitBlock(dwpe_TC, t * C + first, count, sum_buffer);
      });
    }
  });
}

}  // namespace zeroplan::cpu
