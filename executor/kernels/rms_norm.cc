// RMS norm over the channels of each row: y = x * rstd * w, rstd = 1/sqrt(mean(x^2) + eps).
//
// Legend: M rows (tokens), C channels.
#include "executor/kernels/rms_norm.h"

#include "executor/kernels/column_sums.h"
#include "executor/kernels/cpu_kernels.h"

namespace zeroplan::cpu {
namespace {

using simd::Load;
using simd::Store;
using simd::VecF;

constexpr int64_t kRowGrain = 8;

}  // namespace

void RmsNormForward(const KernelCall& call) {
  const int64_t M = call.dims[0], C = call.dims[1];
  const KernelArg &x_MC = Arg(call, 0), &y_MC = Arg(call, 2);
  const float eps = call.scalars[0];
  ZEROPLAN_CHECK(eps > 0, "RMS norm without an epsilon");
  auto* rstd_M = Arg(call, 3).as<float>();
  ThreadPool& pool = *call.context.pool;
  pool.ParallelFor(M, kRowGrain, [&](int64_t begin, int64_t end, int worker) {
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
}

}  // namespace zeroplan::cpu
