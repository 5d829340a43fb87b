// Heads of a rank's rows into the parts that ranks exchange, and back. Legend: kernel_rows.inc's.
#include "executor/kernels/head_exchange.h"

#include <limits>

#include "executor/kernels/cpu_kernels.h"
#include "executor/kernels/kernel_util.h"

namespace zeroplan {

HeadExchange ExchangeOf(const KernelCall& call) {
  const auto [B, T, H, G, D, S] = call.dims;
  ZEROPLAN_CHECK((H + 2 * G) * D < std::numeric_limits<int32_t>::max() / S, "{} x {} columns",
                 H + 2 * G, D);
  ZEROPLAN_CHECK(H % S == 0 && (G % S == 0 || S % G == 0), "{} and {} heads over {} ranks", H, G,
                 S);
  ZEROPLAN_CHECK(Arg(call, 0).dtype == Arg(call, 1).dtype, "{} to {}",
                 DtypeName(Arg(call, 0).dtype), DtypeName(Arg(call, 1).dtype));
  return {B, T, H, G, D, S};
}

namespace cpu {
namespace {

int64_t RowGrain(int64_t columns) { return std::max<int64_t>(1, 4 * kBlock / columns); }

}  // namespace

void PackHeads(const KernelCall& call) {
  const HeadExchange s = ExchangeOf(call);
  const KernelArg &x_BTN = Arg(call, 0), &parts_BSTn = Arg(call, 1);
  const size_t head_bytes = static_cast<size_t>(s.D) * DtypeBytes(x_BTN.dtype);
  const int columns = s.part_columns();
  call.context.pool->ParallelFor(
      s.B * s.T, RowGrain(s.S * columns), [&](int64_t begin, int64_t end, int) {
        for (int64_t m = begin; m < end; ++m) {
          for (int r = 0; r < s.S; ++r) {
            const int64_t part = s.part_row(m / s.T, r, m % s.T);
            for (int c = 0; c < columns; c += s.D) {
              std::memcpy(ElementAt(parts_BSTn, part + c),
                          ElementAt(x_BTN, m * s.row_columns() + s.RowColumn(r, c)), head_bytes);
            }
          }
        }
      });
}

void UnpackHeads(const KernelCall& call) {
  const HeadExchange s = ExchangeOf(call);
  const KernelArg &parts_BSTn = Arg(call, 0), &x_BTN = Arg(call, 1);
  const size_t head_bytes = static_cast<size_t>(s.D) * DtypeBytes(x_BTN.dtype);
  call.context.pool->ParallelFor(
      s.B * s.T, RowGrain(s.row_columns()), [&](int64_t begin, int64_t end, int) {
        alignas(64) float part_buffer[kBlock], sum_buffer[kBlock];
        for (int64_t m = begin; m < end; ++m) {
          const int64_t row = m * s.row_columns();
          for (int c = 0; c < s.row_columns(); c += s.D) {
            const HeadExchange::Parts parts = s.PartsOf(c);
            const auto at = [&](int p) {
              return s.part_row(m / s.T, parts.first + p, m % s.T) + parts.column;
            };
            if (parts.count == 1) {
              std::memcpy(ElementAt(x_BTN, row + c), ElementAt(parts_BSTn, at(0)), head_bytes);
              continue;
            }
            ForEachBlock(0, s.D, [&](int64_t first, int64_t count) {
              float* sum = WriteBlock(x_BTN, row + c + first, sum_buffer);
              std::fill(sum, sum + count, 0.0f);
              for (int p = 0; p < parts.count; ++p) {
                const float* part = ReadBlock(parts_BSTn, at(p) + first, count, part_buffer);
                for (int64_t i = 0; i < count; ++i) sum[i] += part[i];
              }
              CommitBlock(x_BTN, row + c + first, count, sum);
            });
          }
        }
      });
}

}  // namespace cpu
}  // namespace zeroplan
