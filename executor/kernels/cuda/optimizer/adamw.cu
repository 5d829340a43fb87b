// AdamW over every kind of states. One function has the update's arithmetic, in the roundings of
// executor/kernels/adamw_update.cc; kinds differ in how they load and store. So the bits of a
// result are the CPU's, and depend neither on how a unit is cut into launches and vectors nor on
// the kind that an element's other states are.
#include "core/base/split_master.h"
#include "core/program/step_state.h"
#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/dynamic8.cuh"
#include "executor/kernels/cuda/optimizer/optimizer.h"
#include "executor/kernels/cuda/store_pack.cuh"
#include "executor/kernels/stochastic_rounding.h"

namespace zeroplan::cuda {
namespace {

constexpr int kAdamThreads = 256;  // as Dynamic8Table has it

// x rounded to T by the lower 16 bits of `random`.
template <typename T>
__device__ inline T RoundedBy(float x, uint32_t random) {
  if constexpr (__is_same(T, Bf16)) {
    return __ushort_as_bfloat16(RoundedBf16(__float_as_uint(x), random & 0xffffu));
  } else {
    return __float2half_rn(RoundedF16(x, random & 0xffffu));
  }
}

// How masters are kept. Store's words are those of core/program/kernel_rows.inc, an element each;
// StoreParam writes what becomes of the parameter where the master stays as it is.

struct WholeMaster {
  static constexpr bool kRounds = false;
  template <int W>
  using Loaded = Pack<float, W>;

  float* master_n;
  FloatArray param_n;

  explicit WholeMaster(const AdamArrays& arrays)
      : master_n(static_cast<float*>(arrays.master_n.data)), param_n(arrays.param_n) {}

  template <int W>
  __device__ Loaded<W> Load(int64_t i) const {
    return LoadPack<float, W>(master_n + i);
  }
  template <int W>
  __device__ static void Read(const Loaded<W>& loaded, float (&p)[W]) {
    Widen(loaded, p);
  }
  template <int W>
  __device__ void Store(int64_t i, const float (&p)[W], const uint32_t (&)[W]) const {
    StorePack(master_n + i, Narrow<float>(p));
    StoreParam(i, p);
  }
  template <int W>
  __device__ void StoreParam(int64_t i, const float (&p)[W]) const {
    if (param_n.data == nullptr) return;
    if (param_n.dtype == Dtype::kF32) {
      StorePack(static_cast<float*>(param_n.data) + i, Narrow<float>(p));
    } else if (param_n.dtype == Dtype::kF16) {
      StorePack(static_cast<Half*>(param_n.data) + i, Narrow<Half>(p));
    } else {
      Pack<uint16_t, W> halves;
#pragma unroll
      for (int e = 0; e < W; ++e) halves.v[e] = SplitBits(__float_as_uint(p[e])).param;
      StorePack(static_cast<uint16_t*>(param_n.data) + i, halves);
    }
  }
};

struct HalvedMaster {
  static constexpr bool kRounds = false;
  template <int W>
  struct Loaded {
    Pack<uint16_t, W> param;
    Pack<int16_t, W> rest;
  };

  uint16_t* param_n;
  int16_t* rest_n;

  explicit HalvedMaster(const AdamArrays& arrays)
      : param_n(static_cast<uint16_t*>(arrays.param_n.data)),
        rest_n(static_cast<int16_t*>(arrays.master_n.data)) {}

  template <int W>
  __device__ Loaded<W> Load(int64_t i) const {
    return {LoadPack<uint16_t, W>(param_n + i), LoadPack<int16_t, W>(rest_n + i)};
  }
  template <int W>
  __device__ static void Read(const Loaded<W>& loaded, float (&p)[W]) {
#pragma unroll
    for (int e = 0; e < W; ++e) {
      p[e] = __uint_as_float(JoinBits({loaded.param.v[e], loaded.rest.v[e]}));
    }
  }
  template <int W>
  __device__ void Store(int64_t i, const float (&p)[W], const uint32_t (&)[W]) const {
    Loaded<W> halves;
#pragma unroll
    for (int e = 0; e < W; ++e) {
      const auto [param, rest] = SplitBits(__float_as_uint(p[e]));
      halves.param.v[e] = param;
      halves.rest.v[e] = rest;
    }
    StorePack(param_n + i, halves.param);
    StorePack(rest_n + i, halves.rest);
  }
  template <int W>
  __device__ void StoreParam(int64_t, const float (&)[W]) const {}
};

template <typename T>
struct ParamMaster {
  static constexpr bool kRounds = true;
  template <int W>
  using Loaded = Pack<T, W>;

  T *master_n, *copy_n;

  explicit ParamMaster(const AdamArrays& arrays)
      : master_n(static_cast<T*>(arrays.master_n.data)),
        copy_n(static_cast<T*>(arrays.param_n.data)) {}

  template <int W>
  __device__ Loaded<W> Load(int64_t i) const {
    return LoadPack<T, W>(master_n + i);
  }
  template <int W>
  __device__ static void Read(const Loaded<W>& loaded, float (&p)[W]) {
    Widen(loaded, p);
  }
  template <int W>
  __device__ void Store(int64_t i, const float (&p)[W], const uint32_t (&words)[W]) const {
    Loaded<W> rounded;
#pragma unroll
    for (int e = 0; e < W; ++e) rounded.v[e] = RoundedBy<T>(p[e], words[e]);
    StorePack(master_n + i, rounded);
    if (copy_n != nullptr) StorePack(copy_n + i, rounded);
  }
  template <int W>
  __device__ void StoreParam(int64_t i, const float (&p)[W]) const {
    if (copy_n != nullptr) StorePack(copy_n + i, Narrow<T>(p));
  }
};

// How moments are kept.

struct NoTables {
  __device__ void Fill() {}
};

template <typename T>
struct PlainMoments {
  static constexpr bool kRounds = sizeof(T) == 2;
  static constexpr bool kInGroups = false;
  static constexpr int kWidth = sizeof(T) == 2 ? 8 : 4;  // elements a thread: 16 bytes of a moment
  using Tables = NoTables;
  template <int W>
  struct Loaded {
    Pack<T, W> m, v;
  };

  T *m_n, *v_n;

  explicit PlainMoments(const AdamArrays& arrays)
      : m_n(static_cast<T*>(arrays.m_n.data)), v_n(static_cast<T*>(arrays.v_n.data)) {}

  template <int W>
  __device__ Loaded<W> Load(int64_t i) const {
    return {LoadPack<T, W>(m_n + i), LoadPack<T, W>(v_n + i)};
  }
  template <int W>
  __device__ static void Read(const Tables&, const Loaded<W>& loaded, float (&m)[W],
                              float (&v)[W]) {
    Widen(loaded.m, m);
    Widen(loaded.v, v);
  }
  template <int W>
  __device__ void Store(const Tables&, int64_t i, const float (&m)[W], const float (&v)[W],
                        const uint32_t (&words)[W]) const {
    StorePack(m_n + i, Narrow<T>(m));
    Pack<T, W> rounded;
    if constexpr (kRounds) {
#pragma unroll
      for (int e = 0; e < W; ++e) rounded.v[e] = RoundedBy<T>(v[e], words[e] >> 16);
    } else {
      rounded = Narrow<T>(v);
    }
    StorePack(v_n + i, rounded);
  }
};

struct GroupedMoments {
  static constexpr bool kRounds = false;
  static constexpr bool kInGroups = true;
  static constexpr int kWidth = kVector;  // a warp has a group
  struct Tables {
    Dynamic8Table<true> m;
    Dynamic8Table<false> v;
    __device__ void Fill() {
      m.Fill();
      v.Fill();
    }
  };
  template <int W>
  struct Loaded {
    Dynamic8Lane m, v;
  };

  Dynamic8Block *m_n, *v_n;

  explicit GroupedMoments(const AdamArrays& arrays)
      : m_n(static_cast<Dynamic8Block*>(arrays.m_n.data)),
        v_n(static_cast<Dynamic8Block*>(arrays.v_n.data)) {}

  template <int W>
  __device__ Loaded<W> Load(int64_t i) const {
    return {LoadDynamic8(m_n, i), LoadDynamic8(v_n, i)};
  }
  template <int W>
  __device__ static void Read(const Tables& tables, const Loaded<W>& loaded, float (&m)[W],
                              float (&v)[W]) {
    ReadDynamic8(tables.m, loaded.m, m);
    ReadDynamic8(tables.v, loaded.v, v);
  }
  template <int W>
  __device__ void Store(const Tables& tables, int64_t i, const float (&m)[W], const float (&v)[W],
                        const uint32_t (&)[W]) const {
    StoreDynamic8(tables.m, m, m_n, i);
    StoreDynamic8(tables.v, v, v_n, i);
  }
};

template <typename G, typename Masters, typename Moments>
struct AdamKind {
  static constexpr bool kRounds = Masters::kRounds || Moments::kRounds;
  template <int W>
  struct Loaded {
    Pack<G, W> grad;
    typename Masters::template Loaded<W> master;
    typename Moments::template Loaded<W> moments;
  };

  const G* grad_n;
  Masters master;
  Moments moments;

  explicit AdamKind(const AdamArrays& arrays)
      : grad_n(static_cast<const G*>(arrays.grad_n.data)), master(arrays), moments(arrays) {}

  template <int W>
  __device__ Loaded<W> Load(int64_t i) const {
    return {LoadPack<G, W>(grad_n + i), master.template Load<W>(i), moments.template Load<W>(i)};
  }
};

// What a step is made of beside its elements.
struct AdamStep {
  bool skip;
  float grad_factor, lr1, inverse_sqrt_correction2;
  float beta1, beta2, rest1, rest2, eps;
  float decay, l2;  // where a tensor decays: by AdamW, or added to the gradient

  __device__ AdamStep(const StepState& state, const AdamSettings& settings)
      : skip(state.skip != 0),
        grad_factor(state.grad_factor),
        lr1(state.lr * (1.0f / state.bias_correction1)),
        inverse_sqrt_correction2(1.0f / sqrtf(state.bias_correction2)),
        beta1(settings.beta1),
        beta2(settings.beta2),
        rest1(settings.rest1),
        rest2(settings.rest2),
        eps(settings.eps),
        decay(settings.decoupled ? state.lr * settings.weight_decay : 0.0f),
        l2(settings.decoupled ? 0.0f : settings.weight_decay) {}
};

__device__ inline void Update(const AdamStep& step, float decay, float l2, float grad, float& p,
                              float& m, float& v) {
  const float gradient = __fadd_rn(__fmul_rn(grad, step.grad_factor), __fmul_rn(p, l2));
  m = __fadd_rn(__fmul_rn(m, step.beta1), __fmul_rn(gradient, step.rest1));
  const float square = __fmul_rn(gradient, gradient);
  v = __fadd_rn(__fmul_rn(v, step.beta2), __fmul_rn(square, step.rest2));
  const float root = __fmul_rn(__fsqrt_rn(v), step.inverse_sqrt_correction2);
  const float change = __fdiv_rn(__fmul_rn(m, step.lr1), __fadd_rn(root, step.eps));
  p = __fsub_rn(p, __fadd_rn(change, __fmul_rn(p, decay)));
}

// The piece of element i: the first that does not end before it.
__device__ inline int PieceOf(const AdamPieces& pieces, int64_t i) {
  static_assert(AdamPieces::kMost == 64);
  int at = 0;
#pragma unroll
  for (int half = 32; half > 0; half /= 2) {
    if (at + half < pieces.count && i >= pieces.all[at + half - 1].end) at += half;
  }
  return at;
}

// What the threads of a block share. One thread computes the step, so that the others neither load
// nor divide; the loads of all are under way meanwhile.
template <typename Tables>
struct AdamShared {
  AdamStep step;
  uint64_t keys[AdamPieces::kMost];  // RoundingKey, by piece
  Tables tables;
};

// Elements [i, i + W): of one tensor, then padding.
template <int W, typename Kind, typename Moments, typename Tables>
__device__ inline void UpdateRun(const Kind& kind, const Moments& moments,
                                 const typename Kind::template Loaded<W>& loaded, int64_t i,
                                 const AdamPieces& pieces, const AdamShared<Tables>& shared) {
  const AdamStep& step = shared.step;
  const int at = PieceOf(pieces, i);
  const AdamPiece& piece = pieces.all[at];
  const int64_t left = piece.tensor == kPaddingPiece ? 0 : piece.end - i;
  const int live = left < W ? static_cast<int>(left) : W;

  float g[W], p[W], m[W], v[W];
  kind.master.Read(loaded.master, p);
  const bool all_padding = Moments::kInGroups ? !__any_sync(0xffffffffu, live > 0) : live == 0;
  if (step.skip || all_padding) {
    kind.master.StoreParam(i, p);
    return;
  }
  Widen(loaded.grad, g);
  moments.Read(shared.tables, loaded.moments, m, v);
  const float decay = piece.decays ? step.decay : 0.0f, l2 = piece.decays ? step.l2 : 0.0f;
#pragma unroll
  for (int e = 0; e < W; ++e) Update(step, decay, l2, g[e], p[e], m[e], v[e]);

  uint32_t words[W] = {};
  if constexpr (Kind::kRounds) {
    const auto element = static_cast<uint32_t>(i) - piece.origin;
#pragma unroll
    for (int e = 0; e < W; ++e) words[e] = RoundingWord(shared.keys[at], element + e);
  }
  if (live < W) {  // few threads: they load again what they leave alone
    const auto old = kind.template Load<W>(i);
    float old_p[W], old_m[W], old_v[W];
    kind.master.Read(old.master, old_p);
    moments.Read(shared.tables, old.moments, old_m, old_v);
#pragma unroll
    for (int e = 0; e < W; ++e) {
      if (e < live) continue;
      p[e] = old_p[e];
      m[e] = Moments::kInGroups ? 0.0f : old_m[e];
      v[e] = Moments::kInGroups ? 0.0f : old_v[e];
    }
  }
  kind.master.Store(i, p, words);
  moments.Store(shared.tables, i, m, v, words);
}

// All of a thread's loads are in flight at once: 56 bytes and more.
template <typename G, typename Masters, typename Moments>
__global__ void __launch_bounds__(kAdamThreads)
    AdamWKernel(const AdamKind<G, Masters, Moments> kind, const StepState* state, int64_t first,
                int64_t end, const __grid_constant__ AdamPieces pieces,
                const __grid_constant__ AdamSettings settings, bool vectors) {
  constexpr int W = Moments::kWidth;
  using Kind = AdamKind<G, Masters, Moments>;
  const int64_t i = first + (static_cast<int64_t>(blockIdx.x) * kAdamThreads + threadIdx.x) * W;
  const bool whole = (vectors || Moments::kInGroups) && i + W <= end;
  typename Kind::template Loaded<W> loaded;
  if (whole) loaded = kind.template Load<W>(i);

  __shared__ alignas(16) char storage[sizeof(AdamShared<typename Moments::Tables>)];
  auto& shared = *reinterpret_cast<AdamShared<typename Moments::Tables>*>(storage);
  shared.tables.Fill();
  if constexpr (Kind::kRounds) {
    const int at = static_cast<int>(threadIdx.x);
    if (at < pieces.count) {
      const auto tensor = static_cast<uint32_t>(pieces.all[at].tensor);
      shared.keys[at] = RoundingKey(settings.seed, tensor, state->step);
    }
  }
  if (threadIdx.x == kAdamThreads - 1) shared.step = AdamStep(*state, settings);
  __syncthreads();

  if (whole) {
    UpdateRun<W>(kind, kind.moments, loaded, i, pieces, shared);
  } else if constexpr (!Moments::kInGroups) {
    for (int64_t j = i; j < end && j < i + W; ++j) {
      UpdateRun<1>(kind, kind.moments, kind.template Load<1>(j), j, pieces, shared);
    }
  }
}

// Whether vectors are aligned in memory, and no tensor starts within one.
bool VectorsFit(const AdamArrays& arrays, int64_t first, const AdamPieces& pieces) {
  bool fit = Aligned(arrays.grad_n.data) && Aligned(arrays.master_n.data) &&
             Aligned(arrays.m_n.data) && Aligned(arrays.v_n.data) && Aligned(arrays.param_n.data);
  int64_t begin = first;
  for (int at = 0; at < pieces.count; ++at) {
    if (at == 0 || pieces.all[at].tensor != kPaddingPiece) fit = fit && begin % kVector == 0;
    begin = pieces.all[at].end;
  }
  return fit;
}

template <typename Fn>
void WithMaster(Dtype master, Fn&& fn) {
  if (master == Dtype::kI16) {
    fn(TypeTag<HalvedMaster>{});
  } else if (master == Dtype::kBF16) {
    fn(TypeTag<ParamMaster<Bf16>>{});
  } else if (master == Dtype::kF16) {
    fn(TypeTag<ParamMaster<Half>>{});
  } else {
    fn(TypeTag<WholeMaster>{});
  }
}

template <typename Fn>
void WithMoments(Dtype m, Fn&& fn) {
  if (m == Dtype::kDynamic8) {
    fn(TypeTag<GroupedMoments>{});
  } else if (m == Dtype::kBF16) {
    fn(TypeTag<PlainMoments<Bf16>>{});
  } else {
    fn(TypeTag<PlainMoments<float>>{});
  }
}

}  // namespace

void LaunchAdamW(const AdamArrays& arrays, const StepState* state, int64_t first,
                 const AdamPieces& pieces, const AdamSettings& settings, cudaStream_t stream) {
  const int64_t end = pieces.count == 0 ? first : pieces.all[pieces.count - 1].end;
  if (end <= first) return;
  const bool vectors = VectorsFit(arrays, first, pieces);
  WithFloatType(arrays.grad_n.dtype, [&](auto grad) {
    WithMaster(arrays.master_n.dtype, [&](auto master) {
      WithMoments(arrays.m_n.dtype, [&](auto moments) {
        using G = typename decltype(grad)::type;
        using Masters = typename decltype(master)::type;
        using Moments = typename decltype(moments)::type;
        const unsigned grid = GridOf(end - first, kAdamThreads * Moments::kWidth);
        AdamWKernel<G, Masters, Moments><<<grid, kAdamThreads, 0, stream>>>(
            AdamKind<G, Masters, Moments>(arrays), state, first, end, pieces, settings, vectors);
      });
    });
  });
}

}  // namespace zeroplan::cuda
