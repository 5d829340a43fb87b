// Token and position embedding, and their gradients.
//
// Legend: B micro-batch, T sequence, C hidden, V vocabulary, Vp padded vocabulary.
#include "executor/kernels/cpu_kernels.h"
#include "executor/kernels/kernel_util.h"

namespace zeroplan::cpu {
namespace {

using simd::Load;
using simd::Store;

constexpr int64_t kEmbeddingRowGrain = 16;
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

// Which rows of x are of each row of a table, in order: first[table row] and next[row of x], -1
// ends.
struct RowLists {
  int32_t* first;
  int32_t* next;
};

// Lists for the table's rows [v0, v1), where row i of n is of table row row_of(i).
template <typename RowOf>
void BuildLists(int64_t n, int64_t v0, int64_t v1, const RowLists& lists, RowOf&& row_of) {
  std::fill(lists.first, lists.first + (v1 - v0), -1);
  for (int64_t i = n - 1; i >= 0; --i) {
    const int64_t v = row_of(i);
    if (v < v0 || v >= v1) continue;
    int32_t& first = lists.first[v - v0];
    lists.next[i] = first;
    first = static_cast<int32_t>(i);
  }
}

// fn(first, n) for blocks of the columns [begin, end) * kColumnUnit of C.
template <typename Fn>
void ForEachColumnBlock(int64_t begin, int64_t end, int64_t C, Fn&& fn) {
  ForEachBlock(begin * kColumnUnit, std::min(end * kColumnUnit, C), fn);
}

// dtable_VC (+)= the rows of dx_NC that are of each of its rows. Each thread has its own columns of
// all rows, so sums need no locks and keep the order of rows. A 16-bit row is read and rounded
// once, however many are added. Without `add` rows that have none become 0; with it they stay.
template <typename RowOf>
void AddRows(ThreadPool& pool, int64_t N, int64_t C, int64_t V, const KernelArg& dx_NC,
             const KernelArg& dtable_VC, bool add, RowOf&& row_of) {
  const int64_t column_units = (C + kColumnUnit - 1) / kColumnUnit;
  Scratch scratch(pool, 0);
  RowLists lists;
  lists.next = static_cast<int32_t*>(scratch.Bytes(N * 4));
  const int64_t range = std::min(V, scratch.FloatsLeft());
  ZEROPLAN_CHECK(range > 0, "no scratch for {} rows", N);
  lists.first = static_cast<int32_t*>(scratch.Bytes(range * 4));
  for (int64_t v0 = 0; v0 < V; v0 += range) {
    const int64_t v1 = std::min(V, v0 + range);
    BuildLists(N, v0, v1, lists, row_of);
    pool.ParallelFor(column_units, 1, [&](int64_t begin, int64_t end, int) {
      alignas(64) float row_buffer[kBlock], sum_buffer[kBlock];
      for (int64_t v = v0; v < v1; ++v) {
        if (add && lists.first[v - v0] < 0) continue;
        ForEachColumnBlock(begin, end, C, [&](int64_t first, int64_t count) {
          float* sum = WriteBlock(dtable_VC, v * C + first, sum_buffer);
          if (!add) {
            std::fill(sum, sum + count, 0.0f);
          } else if (sum == sum_buffer) {
            ReadBlock(dtable_VC, v * C + first, count, sum_buffer);
          }
          for (int64_t i = lists.first[v - v0]; i >= 0; i = lists.next[i]) {
            AddTo(sum, dx_NC, i * C + first, count, row_buffer);
          }
          CommitBlock(dtable_VC, v * C + first, count, sum_buffer);
        });
      }
    });
  }
}

// The position in its document of row `row` of x.
int64_t PositionOf(int64_t row, int64_t T, const int32_t* starts_BT) {
  return row % T - (starts_BT == nullptr ? 0 : starts_BT[row]);
}

// Writes rows of x_MC: rows of a table, plus those of positions if there are any.
struct RowPutter {
  const KernelArg &table_VC, &wpe_TC, &x_MC;
  const int64_t C;
  alignas(64) float table_buffer[kBlock] = {}, wpe_buffer[kBlock] = {}, x_buffer[kBlock] = {};

  void Put(int64_t row, int64_t table_row, int64_t position) {
    ForEachBlock(0, C, [&](int64_t first, int64_t count) {
      const float* table = ReadBlock(table_VC, table_row * C + first, count, table_buffer);
      const float* wpe = Present(wpe_TC)
                             ? ReadBlock(wpe_TC, position * C + first, count, wpe_buffer)
                             : wpe_buffer;  // zeros
      float* x = WriteBlock(x_MC, row * C + first, x_buffer);
      simd::VectorLoop(count, [&](int64_t i, auto part) {
        Store(x + i, Load(table + i, part) + Load(wpe + i, part), part);
      });
      CommitBlock(x_MC, row * C + first, count, x_buffer);
    });
  }
};

// One element of any float dtype.
float Get(const KernelArg& arg, int64_t at) {
  float value = 0;
  return *ReadBlock(arg, at, 1, &value);
}
void Set(const KernelArg& arg, int64_t at, float value) {
  *WriteBlock(arg, at, &value) = value;
  CommitBlock(arg, at, 1, &value);
}

}  // namespace

void EmbedForward(const KernelCall& call) {
  const int64_t B = call.dims[0], T = call.dims[1], C = call.dims[2], V = call.dims[3];
  const auto* tokens_BT = Arg(call, 0).as<const int32_t>();
  const KernelArg &wte_VpC = Arg(call, 1), &wpe_TC = Arg(call, 2), &x_BTC = Arg(call, 3);
  const KernelArg& starts = Arg(call, 4);
  const auto* starts_BT = Present(starts) ? starts.as<const int32_t>() : nullptr;
  CheckTokens(tokens_BT, B * T, V);
  call.context.pool->ParallelFor(B * T, kEmbeddingRowGrain, [&](int64_t begin, int64_t end, int) {
    RowPutter putter{wte_VpC, wpe_TC, x_BTC, C};
    for (int64_t row = begin; row < end; ++row) {
      putter.Put(row, tokens_BT[row], PositionOf(row, T, starts_BT));
    }
  });
}

void EmbedRows(const KernelCall& call) {
  const int64_t B = call.dims[0], T = call.dims[1], C = call.dims[2], n = call.dims[3];
  const auto* places_BT = Arg(call, 0).as<const int32_t>();
  const KernelArg &rows_nC = Arg(call, 1), &wpe_TC = Arg(call, 2), &x_BTC = Arg(call, 3);
  const KernelArg& starts = Arg(call, 4);
  const auto* starts_BT = Present(starts) ? starts.as<const int32_t>() : nullptr;
  call.context.pool->ParallelFor(B * T, kEmbeddingRowGrain, [&](int64_t begin, int64_t end, int) {
    RowPutter putter{rows_nC, wpe_TC, x_BTC, C};
    for (int64_t row = begin; row < end; ++row) {
      if (places_BT[row] < n) putter.Put(row, places_BT[row], PositionOf(row, T, starts_BT));
    }
  });
}

void SwapColumns(const KernelCall& call) {
  const int64_t R = call.dims[0], n = call.dims[1], Vp = call.dims[2];
  const auto* columns_n = Arg(call, 0).as<const int32_t>();
  const KernelArg &narrow_Rn = Arg(call, 1), &wide_RVp = Arg(call, 2);
  call.context.pool->ParallelFor(R, kEmbeddingRowGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t j = 0; j < n; ++j) {
        if (columns_n[j] < 0) continue;
        const int64_t narrow = r * n + j, wide = r * Vp + columns_n[j];
        const float value = Get(narrow_Rn, narrow);
        Set(narrow_Rn, narrow, Get(wide_RVp, wide));
        Set(wide_RVp, wide, value);
      }
    }
  });
}

void EmbedBackward(const KernelCall& call) {
  const int64_t B = call.dims[0], T = call.dims[1], C = call.dims[2], V = call.dims[3];
  const auto* tokens_BT = Arg(call, 0).as<const int32_t>();
  const KernelArg &dx_BTC = Arg(call, 1), &dwte_VpC = Arg(call, 2), &dwpe_TC = Arg(call, 3);
  const bool accumulate = call.has(kAccumulate);
  ThreadPool& pool = *call.context.pool;
  CheckTokens(tokens_BT, B * T, V);
  AddRows(pool, B * T, C, V, dx_BTC, dwte_VpC, true, [&](int64_t i) { return tokens_BT[i]; });

  if (!Present(dwpe_TC)) return;
  if (const KernelArg& starts = Arg(call, 5); Present(starts)) {
    const auto* starts_BT = starts.as<const int32_t>();
    AddRows(pool, B * T, C, T, dx_BTC, dwpe_TC, accumulate,
            [&](int64_t i) { return i % T - starts_BT[i]; });
    return;
  }
  pool.ParallelFor(T, kEmbeddingRowGrain, [&](int64_t begin, int64_t end, int) {
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
