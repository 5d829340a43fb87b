// Rotary positions: the table, the rotation of query and key heads, and the rotation after the norm
// of each head. Legend: kernel_rows.inc's.
#include "executor/kernels/cpu_kernels.h"
#include "executor/kernels/kernel_util.h"
#include "executor/kernels/rms_norm.h"
#include "executor/kernels/rotary_shape.h"

namespace zeroplan::cpu {
namespace {

using simd::Load;
using simd::Store;
using simd::VecF;

constexpr int64_t kRotaryRowGrain = 4;

struct Shape {
  int64_t M, T, H, G, D;

  explicit Shape(const KernelCall& call)
      : M(call.dims[0]), T(call.dims[1]), H(call.dims[2]), G(call.dims[3]), D(call.dims[4]) {
    ZEROPLAN_CHECK(D % 2 == 0 && H % G == 0, "H={} G={} D={}", H, G, D);
  }
  int64_t rotated() const { return H + G; }
  int64_t head(int64_t m, int64_t h) const { return (m * (H + 2 * G) + h) * D; }
};

// Where row m's position has its angles in table_TD; `starts_BT` may be absent.
class Positions {
 public:
  Positions(const KernelArg& starts_BT, const Shape& s)
      : starts_M_(Present(starts_BT) ? starts_BT.as<const int32_t>() : nullptr), T_(s.T), D_(s.D) {}
  int64_t Angles(int64_t m) const {
    return (m % T_ - (starts_M_ == nullptr ? 0 : starts_M_[m])) * D_;
  }

 private:
  const int32_t* starts_M_;
  int64_t T_, D_;
};

// y = x turned by the angles of `table_D` or, with sign -1, back. y may be x.
void Rotate(const float* x_D, const float* table_D, int64_t half, float sign, float* y_D) {
  simd::VectorLoop(half, [&](int64_t i, auto part) {
    const VecF cosine = Load(table_D + i, part), sine = Load(table_D + half + i, part) * sign;
    const VecF first = Load(x_D + i, part), second = Load(x_D + half + i, part);
    Store(y_D + i, first * cosine - second * sine, part);
    Store(y_D + half + i, second * cosine + first * sine, part);
  });
}

void RotateInPlace(const KernelCall& call, float sign) {
  const Shape s(call);
  const KernelArg& qkv_MN = Arg(call, 0);
  const auto* table_TD = Arg(call, 1).as<const float>();
  const Positions positions(Arg(call, 2), s);
  ThreadPool& pool = *call.context.pool;
  pool.ParallelFor(s.M, kRotaryRowGrain, [&](int64_t begin, int64_t end, int worker) {
    float* buffer = Scratch(pool, worker).Floats(s.D);
    for (int64_t m = begin; m < end; ++m) {
      for (int64_t h = 0; h < s.rotated(); ++h) {
        const float* x_D = ReadBlock(qkv_MN, s.head(m, h), s.D, buffer);
        float* y_D = WriteBlock(qkv_MN, s.head(m, h), buffer);
        Rotate(x_D, table_TD + positions.Angles(m), s.D / 2, sign, y_D);
        CommitBlock(qkv_MN, s.head(m, h), s.D, buffer);
      }
    }
  });
}

// Rows [begin, end) of the table, the first of them at `row_D`.
void FillRows(const RotaryShape& shape, double times, int64_t begin, int64_t end, Scratch scratch,
              float* row_D) {
  const int64_t half = shape.D / 2;
  auto* frequencies =
      static_cast<double*>(scratch.Bytes(half * static_cast<int64_t>(sizeof(double))));
  for (int64_t i = 0; i < half; ++i) frequencies[i] = RotaryFrequency(shape, i);
  for (int64_t t = begin; t < end; ++t, row_D += shape.D) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(t) * frequencies[i];
      row_D[i] = static_cast<float>(std::cos(angle) * times);
      row_D[half + i] = static_cast<float>(std::sin(angle) * times);
    }
  }
}

// One norm of the query heads and one of the key heads: what is normed, its weights in w_(H+G)D and
// its columns. `at` 0: queries, 1: keys.
struct WholeNorm {
  int64_t first_head, heads, columns, weights_at;
};
WholeNorm WholeNormOf(const Shape& s, int at) {
  if (at == 0) return {0, s.H, s.H * s.D, 0};
  return {s.H, s.G, s.G * s.D, s.H * s.D};
}

void WholeNormForward(const KernelCall& call, const Shape& s, const Positions& positions) {
  const KernelArg &qkv_MN = Arg(call, 0), &out_MN = Arg(call, 3);
  const auto* table_TD = Arg(call, 2).as<const float>();
  auto* rstd = Arg(call, 4).as<float>();
  ThreadPool& pool = *call.context.pool;
  const int64_t all = s.rotated() * s.D;
  pool.ParallelFor(s.M, kRotaryRowGrain, [&](int64_t begin, int64_t end, int worker) {
    Scratch scratch(pool, worker);
    const float* w = ReadBlock(Arg(call, 1), 0, all, scratch.Floats(all));
    float *x_buffer = scratch.Floats(s.H * s.D), *y = scratch.Floats(s.H * s.D);
    for (int64_t m = begin; m < end; ++m) {
      for (int at = 0; at < 2; ++at) {
        const WholeNorm norm = WholeNormOf(s, at);
        const int64_t first = s.head(m, norm.first_head);
        const float* x = ReadBlock(qkv_MN, first, norm.columns, x_buffer);
        const float inverse = InverseRms(x, norm.columns, call.scalars[0]);
        simd::VectorLoop(norm.columns, [&](int64_t i, auto part) {
          Store(y + i, Load(x + i, part) * inverse * Load(w + norm.weights_at + i, part), part);
        });
        for (int64_t h = 0; h < norm.heads; ++h) {
          Rotate(y + h * s.D, table_TD + positions.Angles(m), s.D / 2, 1.0f, y + h * s.D);
        }
        Narrow(out_MN.dtype, y, norm.columns, ElementAt(out_MN, first));
        rstd[2 * m + at] = inverse;
      }
      const int64_t values = s.head(m, s.rotated()), count = s.G * s.D;
      Narrow(out_MN.dtype, ReadBlock(qkv_MN, values, count, x_buffer), count,
             ElementAt(out_MN, values));
    }
  });
}

void WholeNormBackward(const KernelCall& call, const Shape& s, const Positions& positions) {
  const KernelArg &dqkv_MN = Arg(call, 0), &qkv_MN = Arg(call, 1);
  const auto* rstd = Arg(call, 3).as<const float>();
  const auto* table_TD = Arg(call, 4).as<const float>();
  ThreadPool& pool = *call.context.pool;
  const int64_t all = s.rotated() * s.D;
  const FixedCut cut = CutRows(pool, s.M, all);
  const int64_t partial_floats = PartialFloats(cut, all);
  float* partials = Scratch(pool, 0).Floats(partial_floats);
  pool.ParallelFor(cut.chunks, 1, [&](int64_t begin, int64_t end, int worker) {
    Scratch scratch(pool, worker);
    scratch.Floats(partial_floats);  // keep off the partial sums
    const float* w = ReadBlock(Arg(call, 2), 0, all, scratch.Floats(all));
    float *x_buffer = scratch.Floats(s.H * s.D), *d = scratch.Floats(s.H * s.D);
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      float* dw = partials + chunk * all;
      std::memset(dw, 0, static_cast<size_t>(all) * sizeof(float));
      for (int64_t m = cut.begin(chunk); m < cut.end(chunk); ++m) {
        for (int at = 0; at < 2; ++at) {
          const WholeNorm norm = WholeNormOf(s, at);
          const int64_t first = s.head(m, norm.first_head);
          const float* x = ReadBlock(qkv_MN, first, norm.columns, x_buffer);
          Widen(dqkv_MN.dtype, ElementAt(dqkv_MN, first), norm.columns, d);
          for (int64_t h = 0; h < norm.heads; ++h) {
            Rotate(d + h * s.D, table_TD + positions.Angles(m), s.D / 2, -1.0f, d + h * s.D);
          }
          RmsNormGradient(d, x, w + norm.weights_at, rstd[2 * m + at], norm.columns, d,
                          dw + norm.weights_at);
          Narrow(dqkv_MN.dtype, d, norm.columns, ElementAt(dqkv_MN, first));
        }
      }
    }
  });
  AddPartials(pool, partials, cut.chunks, all, all, Arg(call, 5), call.has(kAccumulate));
}

}  // namespace

void RotaryTable(const KernelCall& call) {
  const auto [T, D, scaling, original_positions] = FirstDims<4>(call.dims);
  const RotaryShape shape = RotaryShapeOf(call, D, scaling, original_positions);
  auto* table_TD = Arg(call, 0).as<float>();
  ThreadPool& pool = *call.context.pool;
  pool.ParallelFor(T, 64, [&](int64_t begin, int64_t end, int worker) {
    FillRows(shape, static_cast<double>(call.scalars[4]), begin, end, Scratch(pool, worker),
             table_TD + begin * shape.D);
  });
}

void RotaryRow(const KernelCall& call) {
  const auto [D, scaling, original_positions] = FirstDims<3>(call.dims);
  const int64_t position = Arg(call, 0).as<const StepState>()->position;
  FillRows(RotaryShapeOf(call, D, scaling, original_positions),
           static_cast<double>(call.scalars[4]), position, position + 1,
           Scratch(*call.context.pool, 0), Arg(call, 1).as<float>());
}

void RotaryForward(const KernelCall& call) { RotateInPlace(call, 1.0f); }
void RotaryBackward(const KernelCall& call) { RotateInPlace(call, -1.0f); }

void QkNormRotaryForward(const KernelCall& call) {
  const Shape s(call);
  const KernelArg &qkv_MN = Arg(call, 0), &out_MN = Arg(call, 3);
  const auto* table_TD = Arg(call, 2).as<const float>();
  auto* rstd = Arg(call, 4).as<float>();
  const Positions positions(Arg(call, 5), s);
  const float eps = call.scalars[0];
  ZEROPLAN_CHECK(eps > 0, "RMS norm without an epsilon");
  if (call.dims[5] != 0) return WholeNormForward(call, s, positions);
  ThreadPool& pool = *call.context.pool;
  pool.ParallelFor(s.M, kRotaryRowGrain, [&](int64_t begin, int64_t end, int worker) {
    Scratch scratch(pool, worker);
    const float* w_2D = ReadBlock(Arg(call, 1), 0, 2 * s.D, scratch.Floats(2 * s.D));
    float *x_buffer = scratch.Floats(s.D), *y_buffer = scratch.Floats(s.D);
    for (int64_t m = begin; m < end; ++m) {
      for (int64_t h = 0; h < s.rotated(); ++h) {
        const float* x_D = ReadBlock(qkv_MN, s.head(m, h), s.D, x_buffer);
        const float* w_D = w_2D + (h < s.H ? 0 : s.D);
        const float inverse = InverseRms(x_D, s.D, eps);
        float* y_D = WriteBlock(out_MN, s.head(m, h), y_buffer);
        simd::VectorLoop(s.D, [&](int64_t i, auto part) {
          Store(y_D + i, Load(x_D + i, part) * inverse * Load(w_D + i, part), part);
        });
        Rotate(y_D, table_TD + positions.Angles(m), s.D / 2, 1.0f, y_D);
        CommitBlock(out_MN, s.head(m, h), s.D, y_buffer);
        rstd[m * s.rotated() + h] = inverse;
      }
      for (int64_t h = s.rotated(); h < s.rotated() + s.G; ++h) {
        const float* x_D = ReadBlock(qkv_MN, s.head(m, h), s.D, x_buffer);
        Narrow(out_MN.dtype, x_D, s.D, ElementAt(out_MN, s.head(m, h)));
      }
    }
  });
}

void QkNormRotaryBackward(const KernelCall& call) {
  const Shape s(call);
  const KernelArg &dqkv_MN = Arg(call, 0), &qkv_MN = Arg(call, 1);
  const auto* rstd = Arg(call, 3).as<const float>();
  const auto* table_TD = Arg(call, 4).as<const float>();
  const Positions positions(Arg(call, 7), s);
  if (call.dims[5] != 0) return WholeNormBackward(call, s, positions);
  ThreadPool& pool = *call.context.pool;
  const FixedCut cut = CutRows(pool, s.M, 2 * s.D);
  const int64_t partial_floats = PartialFloats(cut, 2 * s.D);
  float* partials = Scratch(pool, 0).Floats(partial_floats);
  pool.ParallelFor(cut.chunks, 1, [&](int64_t begin, int64_t end, int worker) {
    Scratch scratch(pool, worker);
    scratch.Floats(partial_floats);  // keep off the partial sums
    const float* w_2D = ReadBlock(Arg(call, 2), 0, 2 * s.D, scratch.Floats(2 * s.D));
    float *x_buffer = scratch.Floats(s.D), *d_buffer = scratch.Floats(s.D);
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      float* dw_2D = partials + chunk * 2 * s.D;
      std::memset(dw_2D, 0, static_cast<size_t>(2 * s.D) * sizeof(float));
      for (int64_t m = cut.begin(chunk); m < cut.end(chunk); ++m) {
        for (int64_t h = 0; h < s.rotated(); ++h) {
          const int64_t w_at = h < s.H ? 0 : s.D;
          const float* x_D = ReadBlock(qkv_MN, s.head(m, h), s.D, x_buffer);
          const float* dy_D = ReadBlock(dqkv_MN, s.head(m, h), s.D, d_buffer);
          float* dx_D = WriteBlock(dqkv_MN, s.head(m, h), d_buffer);
          Rotate(dy_D, table_TD + positions.Angles(m), s.D / 2, -1.0f, dx_D);
          RmsNormGradient(dx_D, x_D, w_2D + w_at, rstd[m * s.rotated() + h], s.D, dx_D,
                          dw_2D + w_at);
          CommitBlock(dqkv_MN, s.head(m, h), s.D, d_buffer);
        }
      }
    }
  });
  AddPartials(pool, partials, cut.chunks, 2 * s.D, 2 * s.D, Arg(call, 5), call.has(kAccumulate));
}

}  // namespace zeroplan::cpu
