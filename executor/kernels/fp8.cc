// Products of eight bits. Legend: M, K, N as the rows' (core/program/kernel_rows.inc).
#include "core/base/fp8.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "executor/kernels/cpu_kernels.h"
#include "executor/kernels/gemm.h"
#include "executor/kernels/kernel_util.h"
#include "executor/kernels/unit_segments.h"

namespace zeroplan {

void RaiseMagnitude(ThreadPool& pool, const KernelArg& x_n, int64_t n, const KernelArg& amax) {
  if (!Present(amax)) return;
  pool.ParallelFor(n, kElementGrain, [&](int64_t begin, int64_t end, int) {
    alignas(64) float buffer[kBlock];
    uint32_t largest = 0;
    ForEachBlock(begin, end, [&](int64_t first, int64_t count) {
      const float* x = ReadBlock(x_n, first, count, buffer);
      for (int64_t i = 0; i < count; ++i) largest = std::max(largest, MagnitudeBits(x[i]));
    });
    const std::atomic_ref<uint32_t> known(*amax.as<uint32_t>());
    uint32_t before = known.load(std::memory_order_relaxed);
    while (before < largest &&
           !known.compare_exchange_weak(before, largest, std::memory_order_relaxed)) {
    }
  });
}

namespace cpu {
namespace {

bool IsE5M2(const KernelArg& copy) { return copy.dtype == Dtype::kE5M2; }
float LargestOf(const KernelArg& copy) { return IsE5M2(copy) ? kLargestE5M2 : kLargestE4M3; }
uint8_t Encode(bool e5m2, float x) { return e5m2 ? ToE5M2(x) : ToE4M3(x); }

// The scales of a copy: that of its element (row, column).
struct Scales {
  const float* values;
  int64_t block_rows, rows, cols;  // block_rows 0: one for all

  int64_t At(int64_t row, int64_t col) const {
    if (block_rows == 0) return 0;
    const int64_t across = col / kFp8Block;
    if (block_rows == 1) return across * rows + row;
    return row / block_rows * Fp8BlockScalesRow(cols) + across;
  }
};

// A copy with scales of blocks: element (row, column) is that of read(row, column), in fp32.
template <typename Read>
void QuantizeBlocks(const KernelCall& call, const KernelArg& copy, const KernelArg& scale,
                    int64_t rows, int64_t cols, int64_t block_rows, const Read& read) {
  const bool e5m2 = IsE5M2(copy);
  const float most = LargestOf(copy);
  auto* codes = copy.as<uint8_t>();
  auto* scales = scale.as<float>();
  const Scales place = {scales, block_rows, rows, cols};
  call.context.pool->ParallelFor(rows / block_rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t block = begin; block < end; ++block) {
      for (int64_t left = 0; left < cols; left += kFp8Block) {
        uint32_t largest = 0;
        const auto each = [&](auto&& fn) {
          for (int64_t row = block * block_rows; row < (block + 1) * block_rows; ++row) {
            for (int64_t col = left; col < left + kFp8Block; ++col) fn(row, col);
          }
        };
        each([&](int64_t row, int64_t col) {
          largest = std::max(largest, MagnitudeBits(read(row, col)));
        });
        const auto amax = std::bit_cast<float>(largest);
        const float inverse = Fp8InverseScale(amax, most);
        scales[place.At(block * block_rows, left)] = Fp8Scale(amax, most);
        each([&](int64_t row, int64_t col) {
          codes[row * cols + col] = Encode(e5m2, read(row, col) * inverse);
        });
      }
    }
  });
}

// Rows [begin, end) of a copy of x_MK, and columns of the transposed one.
void QuantizeRows(const KernelCall& call, int64_t begin, int64_t end, float inverse) {
  const int64_t M = call.dims[0], K = call.dims[1];
  const KernelArg &x_MK = Arg(call, 0), &qt_KM = Arg(call, 2), &q_MK = Arg(call, 4);
  const bool e5m2 = IsE5M2(Present(q_MK) ? q_MK : qt_KM);
  const bool codes = DtypeBytes(x_MK.dtype) == 1;
  alignas(64) float buffer[kBlock];
  for (int64_t m = begin; m < end; ++m) {
    ForEachBlock(0, K, [&](int64_t first, int64_t count) {
      const float* x = codes ? nullptr : ReadBlock(x_MK, m * K + first, count, buffer);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t k = first + i;
        const uint8_t code = codes ? x_MK.as<uint8_t>()[m * K + k] : Encode(e5m2, x[i] * inverse);
        if (Present(q_MK)) q_MK.as<uint8_t>()[m * K + k] = code;
        if (Present(qt_KM)) qt_KM.as<uint8_t>()[k * M + m] = code;
      }
    });
  }
}

}  // namespace

void LargestMagnitude(const KernelCall& call) {
  RaiseMagnitude(*call.context.pool, Arg(call, 0), call.dims[0], Arg(call, 1));
}

void Quantize(const KernelCall& call) {
  const int64_t M = call.dims[0], K = call.dims[1], rows = call.dims[2];
  const KernelArg &x_MK = Arg(call, 0), &amax = Arg(call, 1), &qt_KM = Arg(call, 2);
  const KernelArg &scale_t = Arg(call, 3), &q_MK = Arg(call, 4), &scale = Arg(call, 5);
  if (rows > 0) {
    const auto read = [&](int64_t m, int64_t k) {
      return ReadScalar(x_MK.dtype, x_MK.data, m * K + k);
    };
    if (Present(q_MK)) QuantizeBlocks(call, q_MK, scale, M, K, rows, read);
    if (Present(qt_KM)) {
      QuantizeBlocks(call, qt_KM, scale_t, K, M, rows,
                     [&](int64_t k, int64_t m) { return read(m, k); });
    }
    return;
  }
  float inverse = 1;
  if (Present(amax)) {
    const float largest = *amax.as<float>(), most = LargestOf(Present(q_MK) ? q_MK : qt_KM);
    inverse = Fp8InverseScale(largest, most);
    for (const KernelArg* one : {&scale_t, &scale}) {
      if (Present(*one)) *one->as<float>() = Fp8Scale(largest, most);
    }
  }
  const int64_t grain = std::max<int64_t>(1, kElementGrain / std::max<int64_t>(K, 1));
  call.context.pool->ParallelFor(
      M, grain, [&](int64_t begin, int64_t end, int) { QuantizeRows(call, begin, end, inverse); });
}

// Blocks' scales are multiplied in before the product, so that its sums are those of the numbers.
void Fp8Matmul(const KernelCall& call) {
  const int64_t M = call.dims[0], K = call.dims[1], N = call.dims[2];
  const int64_t rows_a = call.dims[3], rows_b = call.dims[4];
  const KernelArg &a_MK = Arg(call, 0), &scale_a = Arg(call, 1), &b_NK = Arg(call, 2);
  const KernelArg &scale_b = Arg(call, 3), &y_MN = Arg(call, 6);
  ThreadPool& pool = *call.context.pool;
  GemmStart start{
      .accumulate = call.has(kAccumulate), .bias = Arg(call, 4), .residual = Arg(call, 5)};
  if (rows_a == 0) {
    start.scale = *scale_a.as<float>() * *scale_b.as<float>();
    ParallelGemm(pool, M, N, K, {a_MK, K}, {b_NK, K, true}, y_MN, start);
    return;
  }
  // Slices of kFp8Block along the contraction, each times its scales, summed in order.
  const Scales a_scales = {scale_a.as<const float>(), rows_a, M, K};
  const Scales b_scales = {scale_b.as<const float>(), rows_b, N, K};
  pool.ParallelFor(M, 1, [&](int64_t begin, int64_t end, int worker) {
    Scratch scratch(pool, worker);
    float *a = scratch.Floats(K), *b = scratch.Floats(K), *row = scratch.Floats(N);
    for (int64_t m = begin; m < end; ++m) {
      Widen(a_MK.dtype, ElementAt(a_MK, m * K), K, a);
      for (int64_t n = 0; n < N; ++n) {
        Widen(b_NK.dtype, ElementAt(b_NK, n * K), K, b);
        float sum = 0;
        for (int64_t left = 0; left < K; left += kFp8Block) {
          float part = 0;
          for (int64_t k = left; k < left + kFp8Block; ++k) part += a[k] * b[k];
          sum += part *
                 (a_scales.values[a_scales.At(m, left)] * b_scales.values[b_scales.At(n, left)]);
        }
        row[n] = sum;
      }
      for (int64_t n = 0; n < N; ++n) {
        if (start.accumulate) row[n] += ReadScalar(y_MN.dtype, y_MN.data, m * N + n);
        if (Present(start.bias)) row[n] += ReadScalar(start.bias.dtype, start.bias.data, n);
        if (Present(start.residual)) {
          row[n] += ReadScalar(start.residual.dtype, start.residual.data, m * N + n);
        }
      }
      Narrow(y_MN.dtype, row, N, ElementAt(y_MN, m * N));
    }
  });
}

void ShardMagnitudes(const KernelCall& call) {
  const KernelArg& x_n = Arg(call, 0);
  ForEachShardPiece(call, Arg(call, 1), [&](char* slot, int64_t first, int64_t count) {
    if (slot == nullptr) return;
    const auto bytes = static_cast<uint64_t>(count) * DtypeBytes(x_n.dtype);
    RaiseMagnitude(*call.context.pool, {ElementAt(x_n, first), bytes, x_n.dtype}, count,
                   {slot + kFp8AmaxAt, 4, Dtype::kF32});
  });
}

void LargestOfParts(const KernelCall& call) {
  const auto [n, P] = FirstDims<2>(call.dims);
  const auto* parts_Pn = Arg(call, 0).as<const float>();
  auto* dst_n = Arg(call, 1).as<float>();
  for (int64_t i = 0; i < n; ++i) {
    uint32_t largest = 0;
    for (int64_t part = 0; part < P; ++part) {
      largest = std::max(largest, MagnitudeBits(parts_Pn[part * n + i]));
    }
    dst_n[i] = std::bit_cast<float>(largest);
  }
}

void QuantizeShard(const KernelCall& call) {
  const KernelArg &x_n = Arg(call, 0), &q_n = Arg(call, 1);
  ForEachShardPiece(call, Arg(call, 2), [&](char* slot, int64_t first, int64_t count) {
    if (slot == nullptr) {
      std::memset(q_n.as<uint8_t>() + first, 0, static_cast<size_t>(count));
      return;
    }
    const float inverse =
        Fp8InverseScale(*reinterpret_cast<const float*>(slot + kFp8AmaxAt), kLargestE4M3);
    call.context.pool->ParallelFor(count, kElementGrain, [&](int64_t begin, int64_t end, int) {
      alignas(64) float buffer[kBlock];
      ForEachBlock(first + begin, first + end, [&](int64_t at, int64_t some) {
        const float* x = ReadBlock(x_n, at, some, buffer);
        for (int64_t i = 0; i < some; ++i) q_n.as<uint8_t>()[at + i] = ToE4M3(x[i] * inverse);
      });
    });
  });
  // Of all tensors of the unit, also of those that this rank has no part of.
  const size_t tensors = ShardUnit(call).slots.size();
  for (size_t i = 0; i < tensors; ++i) {
    auto* slot = Arg(call, 2).as<char>() + i * kFp8SlotBytes;
    *reinterpret_cast<float*>(slot + kFp8ScaleAt) =
        Fp8Scale(*reinterpret_cast<const float*>(slot + kFp8AmaxAt), kLargestE4M3);
  }
}

void BiasBackward(const KernelCall& call) {
  zeroplan::ColumnSums(*call.context.pool, call.dims[0], call.dims[1], Arg(call, 0), Arg(call, 1),
                       call.has(kAccumulate));
}

}  // namespace cpu
}  // namespace zeroplan
