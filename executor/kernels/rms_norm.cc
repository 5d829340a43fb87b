
#include "executor/kernels/rms_norm.h"

#include <cmath>

#include "executor/kernels/cpu_kernels.h"
#include "executor/kernels/kernel_util.h"

namespace zeroplan::cpu {
namespace {

using simd::Load;
using simd::Splat;
using simd::Store;
using simd::VecF;

// RMS norm over the channels of each row: y = x * rstd * w, rstd = 1/sqrt(mean(x^2) + eps).
//
// Legend: M rows (tokens), C channels.

constexpr int64_t kNormRowGrain = 8;

}  // namespace

void RmsNormForward(const KernelCall& call) {
  const int64_t M = call.dims[0], C = call.dims[1];
  const KernelArg &x_MC = Arg(call, 0), &y_MC = Arg(call, 2);
  const float eps = call.scalars[0];
  ZEROPLAN_CHECK(eps > 0, "RMS norm without an epsilon");
  auto* rstd_M = Arg(call, 3).as<float>();
  ThreadPool& pool = *call.context.pool;
  pool.ParallelFor(M, kNormRowGrain, [&](int64_t begin, int64_t end, int worker) {
    Scratch scratch(pool, worker);
    const float* w_C = ReadBlock(Arg(call, 1), 0, C, scratch.Floats(C));
    float *x_buffer = scratch.Floats(C), *y_buffer = scratch.Floats(C);
    for (int64_t m = begin; m < end; ++m) {
      const float* x_C = ReadBlock(x_MC, m * C, C, x_buffer);
      const float rstd = InverseRms(x_C, C, eps);
      float* y_C = WriteBlock(y_MC, m * C, y_buffer);
      simd::VectorLoop(C, [&](int64_t i, auto part) {
        Store(y_C + i, Load(x_C + i, part) * rstd * Load(w_C + i, part), part);
      });
      CommitBlock(y_MC, m * C, C, y_buffer);
      rstd_M[m] = rstd;
    }
  });
  RaiseMagnitude(pool, y_MC, M * C, Arg(call, 4));
}

// With n = x * rstd and d = dy * w: dx = (d - n * mean(d * n)) * rstd, dw = sum_M dy * n.
void RmsNormBackward(const KernelCall& call) {
  const int64_t M = call.dims[0], C = call.dims[1];
  const KernelArg &dy_MC = Arg(call, 0), &x_MC = Arg(call, 1), &dx_MC = Arg(call, 4);
  const auto* rstd_M = Arg(call, 3).as<const float>();
  const bool add = call.has(kAddToOutput);
  ThreadPool& pool = *call.context.pool;
  const FixedCut cut = CutRows(pool, M, C);
  const int64_t partial_floats = PartialFloats(cut, C);
  float* partials = Scratch(pool, 0).Floats(partial_floats);

  pool.ParallelFor(cut.chunks, 1, [&](int64_t begin, int64_t end, int worker) {
    Scratch scratch(pool, worker);
    scratch.Floats(partial_floats);  // keep off the partial sums
    const float* w_C = ReadBlock(Arg(call, 2), 0, C, scratch.Floats(C));
    float *dy_buffer = scratch.Floats(C), *x_buffer = scratch.Floats(C);
    float *dx_buffer = scratch.Floats(C), *fresh_C = scratch.Floats(C);
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      float* dw_C = partials + chunk * C;
      std::memset(dw_C, 0, static_cast<size_t>(C) * sizeof(float));
      for (int64_t m = cut.begin(chunk); m < cut.end(chunk); ++m) {
        const float* dy_C = ReadBlock(dy_MC, m * C, C, dy_buffer);
        const float* x_C = ReadBlock(x_MC, m * C, C, x_buffer);
        float* dx_C = WriteBlock(dx_MC, m * C, dx_buffer);
        if (!add) {
          RmsNormGradient(dy_C, x_C, w_C, rstd_M[m], C, dx_C, dw_C);
        } else {
          if (dx_C == dx_buffer) ReadBlock(dx_MC, m * C, C, dx_buffer);
          RmsNormGradient(dy_C, x_C, w_C, rstd_M[m], C, fresh_C, dw_C);
          simd::VectorLoop(C, [&](int64_t i, auto part) {
            Store(dx_C + i, Load(dx_C + i, part) + Load(fresh_C + i, part), part);
          });
        }
        CommitBlock(dx_MC, m * C, C, dx_buffer);
      }
    }
  });
  AddPartials(pool, partials, cut.chunks, C, C, Arg(call, 5), call.has(kAccumulate));
  RaiseMagnitude(pool, dx_MC, M * C, Arg(call, 7));
}

// Layer norm over the channels of each row: y = (x - mean) / std * w + b.
//
// Legend: M rows (tokens), C channels.

namespace {

struct RowStats {
  float mean, inverse_std;
};

RowStats Stats(const float* x_C, int64_t C, float eps) {
  VecF sum{};
  simd::VectorLoop(C, [&](int64_t i, auto part) { sum += Load(x_C + i, part); });
  const float mean = simd::Sum(sum) / static_cast<float>(C);
  VecF squares{};
  simd::VectorLoop(C, [&](int64_t i, auto part) {
    const VecF d = simd::Keep(Load(x_C + i, part) - mean, part, VecF{});
    squares += d * d;
  });
  const float variance = simd::Sum(squares) / static_cast<float>(C);
  return {mean, 1.0f / std::sqrt(variance + eps)};
}

// Lanes of one of `row`'s inputs, as fp32 in `buffer` unless they are fp32 already.
const float* Row(const KernelArg& arg, int64_t row, int64_t C, float* buffer) {
  return ReadBlock(arg, row * C, C, buffer);
}

}  // namespace

void LayerNormForward(const KernelCall& call) {
  const int64_t M = call.dims[0], C = call.dims[1];
  const KernelArg &x_MC = Arg(call, 0), &y_MC = Arg(call, 3);
  const float eps = call.scalars[0];
  ZEROPLAN_CHECK(eps > 0, "layer norm without an epsilon");
  auto* stats_M2 = Arg(call, 4).as<float>();
  ThreadPool& pool = *call.context.pool;
  pool.ParallelFor(M, kNormRowGrain, [&](int64_t begin, int64_t end, int worker) {
    Scratch scratch(pool, worker);
    const float* w_C = ReadBlock(Arg(call, 1), 0, C, scratch.Floats(C));
    const float* b_C = ReadBlock(Arg(call, 2), 0, C, scratch.Floats(C));
    float *x_buffer = scratch.Floats(C), *y_buffer = scratch.Floats(C);
    for (int64_t m = begin; m < end; ++m) {
      const float* x_C = Row(x_MC, m, C, x_buffer);
      const RowStats stats = Stats(x_C, C, eps);
      float* y_C = WriteBlock(y_MC, m * C, y_buffer);
      simd::VectorLoop(C, [&](int64_t i, auto part) {
        const VecF normal = (Load(x_C + i, part) - stats.mean) * stats.inverse_std;
        Store(y_C + i, normal * Load(w_C + i, part) + Load(b_C + i, part), part);
      });
      CommitBlock(y_MC, m * C, C, y_buffer);
      stats_M2[2 * m] = stats.mean;
      stats_M2[2 * m + 1] = stats.inverse_std;
    }
  });
  RaiseMagnitude(pool, y_MC, M * C, Arg(call, 5));
}

// With n = (x - mean) / std and d = dy * w: dx = (d - mean(d) - n * mean(d * n)) / std,
// dw = sum_M dy * n, db = sum_M dy.
void LayerNormBackward(const KernelCall& call) {
  const int64_t M = call.dims[0], C = call.dims[1];
  const KernelArg &dy_MC = Arg(call, 0), &x_MC = Arg(call, 1), &dx_MC = Arg(call, 4);
  const auto* stats_M2 = Arg(call, 3).as<const float>();
  const bool add = call.has(kAddToOutput);
  ThreadPool& pool = *call.context.pool;
  const FixedCut cut = CutRows(pool, M, 2 * C);
  const int64_t partial_floats = PartialFloats(cut, 2 * C);
  float* partials = Scratch(pool, 0).Floats(partial_floats);

  pool.ParallelFor(cut.chunks, 1, [&](int64_t begin, int64_t end, int worker) {
    Scratch scratch(pool, worker);
    scratch.Floats(partial_floats);  // keep off the partial sums
    const float* w_C = ReadBlock(Arg(call, 2), 0, C, scratch.Floats(C));
    float *dy_buffer = scratch.Floats(C), *x_buffer = scratch.Floats(C);
    float* dx_buffer = scratch.Floats(C);
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      float* dw_C = partials + chunk * 2 * C;
      float* db_C = dw_C + C;
      std::memset(dw_C, 0, static_cast<size_t>(2 * C) * sizeof(float));
      for (int64_t m = cut.begin(chunk); m < cut.end(chunk); ++m) {
        const float* dy_C = Row(dy_MC, m, C, dy_buffer);
        const float* x_C = Row(x_MC, m, C, x_buffer);
        const float mean = stats_M2[2 * m], inverse_std = stats_M2[2 * m + 1];
        VecF sum_d{}, sum_dn{};
        simd::VectorLoop(C, [&](int64_t i, auto part) {
          const VecF dy = Load(dy_C + i, part);  // 0 past the end, and so all below
          const VecF n = (Load(x_C + i, part) - mean) * inverse_std;
          const VecF d = dy * Load(w_C + i, part), dyn = dy * n;
          sum_d += d;
          sum_dn += d * n;
          Store(dw_C + i, Load(dw_C + i, part) + dyn, part);
          Store(db_C + i, Load(db_C + i, part) + dy, part);
        });
        const float mean_d = simd::Sum(sum_d) / static_cast<float>(C);
        const float mean_dn = simd::Sum(sum_dn) / static_cast<float>(C);
        float* dx_C = WriteBlock(dx_MC, m * C, dx_buffer);
        if (add && dx_C == dx_buffer) ReadBlock(dx_MC, m * C, C, dx_buffer);
        simd::VectorLoop(C, [&](int64_t i, auto part) {
          const VecF n = (Load(x_C + i, part) - mean) * inverse_std;
          const VecF d = Load(dy_C + i, part) * Load(w_C + i, part);
          VecF dx = (d - mean_d - n * mean_dn) * inverse_std;
          if (add) dx += Load(dx_C + i, part);
          Store(dx_C + i, dx, part);
        });
        CommitBlock(dx_MC, m * C, C, dx_buffer);
      }
    }
  });
  const bool accumulate = call.has(kAccumulate);
  AddPartials(pool, partials, cut.chunks, 2 * C, C, Arg(call, 5), accumulate);
  AddPartials(pool, partials + C, cut.chunks, 2 * C, C, Arg(call, 6), accumulate);
  RaiseMagnitude(pool, dx_MC, M * C, Arg(call, 8));
}

}  // namespace zeroplan::cpu
