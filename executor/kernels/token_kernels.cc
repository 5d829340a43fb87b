// One more token beside the keys and values of those before it: its embedding, what is kept of it,
// and its attention. Legend: kernel_rows.inc's.
#include <algorithm>
#include <cmath>
#include <limits>

#include "executor/kernels/cpu_kernels.h"
#include "executor/kernels/kernel_util.h"
#include "executor/kernels/simd.h"

namespace zeroplan::cpu {
namespace {

using simd::Load;
using simd::Store;
using simd::VecF;

// Keys whose scores are worked on at a time.
constexpr int64_t kKeyBlock = 256;

int64_t PositionOf(const KernelArg& state, int64_t rows) {
  const int64_t position = state.as<const StepState>()->position;
  ZEROPLAN_CHECK(position >= 0 && position < rows, "position {} of {}", position, rows);
  return position;
}

struct Heads {
  int64_t T, H, G, D;

  explicit Heads(const KernelCall& call)
      : T(call.dims[0]), H(call.dims[1]), G(call.dims[2]), D(call.dims[3]) {
    ZEROPLAN_CHECK(G > 0 && H % G == 0, "{} heads of queries, {} of keys", H, G);
  }
  int64_t QkvRow() const { return (H + 2 * G) * D; }
  int64_t KeptRow() const { return 2 * G * D; }  // the end of a row of qkv
};

// Elements [from, + n) of one argument to [to, + n) of another.
void CopyElements(const KernelArg& source, int64_t from, const KernelArg& target, int64_t to,
                  int64_t n) {
  alignas(64) float buffer[kBlock];
  ForEachBlock(0, n, [&](int64_t first, int64_t count) {
    const float* x = ReadBlock(source, from + first, count, buffer);
    Narrow(target.dtype, x, count, ElementAt(target, to + first));
  });
}

float Dot(const float* a, const float* b, int64_t n) {
  VecF sum{};
  simd::VectorLoop(n, [&](int64_t i, auto part) {
    sum += simd::Keep(Load(a + i, part) * Load(b + i, part), part, VecF{});
  });
  return simd::Sum(sum);
}

// out_D = softmax(q * keys) * values over rows 0 .. last of the cache, block by block; earlier
// sums are scaled down where a block has a larger score.
void AttendHead(const KernelArg& cache, const Heads& s, int64_t g, int64_t last, const float* q_D,
                Scratch scratch, float* out_D) {
  float* scores = scratch.Floats(kKeyBlock);
  float *key_buffer = scratch.Floats(s.D), *value_buffer = scratch.Floats(s.D);
  const int64_t key = g * s.D, value = (s.G + g) * s.D;
  float max = -std::numeric_limits<float>::infinity(), sum = 0;
  std::fill(out_D, out_D + s.D, 0.0f);
  for (int64_t begin = 0; begin <= last; begin += kKeyBlock) {
    const int64_t count = std::min(kKeyBlock, last + 1 - begin);
    float block_max = max;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = (begin + i) * s.KeptRow();
      scores[i] = Dot(q_D, ReadBlock(cache, row + key, s.D, key_buffer), s.D);
      block_max = std::max(block_max, scores[i]);
    }
    if (block_max > max && sum > 0) {
      const float correction = std::exp(max - block_max);
      sum *= correction;
      simd::VectorLoop(s.D, [&](int64_t i, auto part) {
        Store(out_D + i, Load(out_D + i, part) * correction, part);
      });
    }
    max = block_max;
    VecF block_sum{};
    simd::VectorLoop(count, [&](int64_t i, auto part) {
      const VecF e = simd::Exp(Load(scores + i, part) - max);
      block_sum += simd::Keep(e, part, VecF{});
      Store(scores + i, e, part);
    });
    sum += simd::Sum(block_sum);
    for (int64_t i = 0; i < count; ++i) {
      const float weight = scores[i];
      const float* v_D = ReadBlock(cache, (begin + i) * s.KeptRow() + value, s.D, value_buffer);
      simd::VectorLoop(s.D, [&](int64_t d, auto part) {
        Store(out_D + d, Load(out_D + d, part) + Load(v_D + d, part) * weight, part);
      });
    }
  }
  for (int64_t d = 0; d < s.D; ++d) out_D[d] /= sum;
}

}  // namespace

void EmbedToken(const KernelCall& call) {
  const int64_t C = call.dims[0], V = call.dims[1];
  const int32_t token = *Arg(call, 0).as<const int32_t>();
  const KernelArg &wte_VpC = Arg(call, 1), &wpe_TC = Arg(call, 2), &x_1C = Arg(call, 4);
  ZEROPLAN_CHECK(token >= 0 && token < V, "token {}, vocabulary {}", token, V);
  int64_t position = 0;
  if (Present(wpe_TC)) {
    position =
        PositionOf(Arg(call, 3), static_cast<int64_t>(wpe_TC.bytes / DtypeBytes(wpe_TC.dtype)) / C);
  }
  alignas(64) float wte_buffer[kBlock], wpe_buffer[kBlock], x_buffer[kBlock];
  ForEachBlock(0, C, [&](int64_t first, int64_t count) {
    const float* wte = ReadBlock(wte_VpC, token * C + first, count, wte_buffer);
    float* x = WriteBlock(x_1C, first, x_buffer);
    if (Present(wpe_TC)) {
      const float* wpe = ReadBlock(wpe_TC, position * C + first, count, wpe_buffer);
      for (int64_t i = 0; i < count; ++i) x[i] = wte[i] + wpe[i];
    } else {
      std::copy(wte, wte + count, x);
    }
    CommitBlock(x_1C, first, count, x);
  });
}

void KeepKeysValues(const KernelCall& call) {
  const Heads s(call);
  const KernelArg &qkv_TN = Arg(call, 0), &cache_T2GD = Arg(call, 1);
  call.context.pool->ParallelFor(s.T, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      CopyElements(qkv_TN, t * s.QkvRow() + s.H * s.D, cache_T2GD, t * s.KeptRow(), s.KeptRow());
    }
  });
}

void AttendToken(const KernelCall& call) {
  const Heads s(call);
  const KernelArg &qkv_1N = Arg(call, 0), &cache_T2GD = Arg(call, 2), &out_1HD = Arg(call, 3);
  const int64_t position = PositionOf(Arg(call, 1), s.T);
  CopyElements(qkv_1N, s.H * s.D, cache_T2GD, position * s.KeptRow(), s.KeptRow());
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.D));
  ThreadPool& pool = *call.context.pool;
  pool.ParallelFor(s.H, 1, [&](int64_t begin, int64_t end, int worker) {
    Scratch scratch(pool, worker);
    float *q_buffer = scratch.Floats(s.D), *q_D = scratch.Floats(s.D);
    float* out_D = scratch.Floats(s.D);
    for (int64_t h = begin; h < end; ++h) {
      const float* query = ReadBlock(qkv_1N, h * s.D, s.D, q_buffer);
      for (int64_t d = 0; d < s.D; ++d) q_D[d] = query[d] * scale;
      AttendHead(cache_T2GD, s, h / (s.H / s.G), position, q_D, scratch, out_D);
      Narrow(out_1HD.dtype, out_D, s.D, ElementAt(out_1HD, h * s.D));
    }
  });
}

}  // namespace zeroplan::cpu
