// AdamW on the host for each way to keep master weights and moments, beside a loop that is shaped
// like it: the same streams with the same bytes of an element, read and written in the same order
// by the same threads, and next to no arithmetic.
//
//   adamw_benchmark [threads [million elements [rounds]]]
//
// Gradients are bf16. Rates count what is read and written, a parameter that is only written once.
// The two take turns; rates and their ratio are medians over the rounds.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "core/base/timing.h"
#include "executor/kernels/simd.h"
#include "executor/measure/measure_host.h"

namespace zeroplan {
namespace {

template <typename Fn>
double SecondsOf(Fn&& fn) {
  const auto before = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
}

// Bytes of an element in each of the streams; param 0: there is none.
struct Streams {
  char *grad, *master, *m, *v, *param;
};

template <int kBytes>
ZEROPLAN_INLINE void AddOne(char* stream, int64_t i) {
  for (int at = 0; at < 64 * kBytes; at += simd::kVectorBytes) {
    char* p = stream + i * kBytes + at;
    simd::Store(reinterpret_cast<float*>(p), simd::Load(reinterpret_cast<float*>(p)) + 1.0f);
  }
}

template <int kMaster, int kMoment, int kParam, bool kReadsParam>
void ShapedLike(const Streams& s, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += 64) {
    simd::VecF grad{};
    for (int at = 0; at < 128; at += simd::kVectorBytes) {
      grad += simd::Load(reinterpret_cast<float*>(s.grad + i * 2 + at));
    }
    AddOne<kMaster>(s.master, i);
    AddOne<kMoment>(s.m, i);
    AddOne<kMoment>(s.v, i);
    if (kReadsParam) {
      AddOne<kParam>(s.param, i);
      continue;
    }
    for (int at = 0; at < 64 * kParam; at += simd::kVectorBytes) {
      simd::Store(reinterpret_cast<float*>(s.param + i * kParam + at), grad);
    }
  }
}

using ShapeFn = void (*)(const Streams&, int64_t, int64_t);

template <int kMaster, int kParam, bool kReadsParam>
ShapeFn ShapeFor(int moment) {
  if (moment == 4) return ShapedLike<kMaster, 4, kParam, kReadsParam>;
  if (moment == 2) return ShapedLike<kMaster, 2, kParam, kReadsParam>;
  return ShapedLike<kMaster, 1, kParam, kReadsParam>;
}

struct Masters {
  const char* name;
  Dtype master, param;
  int param_bytes, bytes;  // of master weight and parameter together: that move
  ShapeFn (*shape)(int moment);
};

constexpr Masters kMasters[] = {
    {"fp32", Dtype::kF32, Dtype::kBF16, 2, 10, ShapeFor<4, 2, false>},
    {"split", Dtype::kI16, Dtype::kBF16, 2, 8, ShapeFor<2, 2, true>},
    {"param bf16", Dtype::kBF16, Dtype::kBF16, 0, 4, ShapeFor<2, 0, false>},
    {"param fp16", Dtype::kF16, Dtype::kF16, 0, 4, ShapeFor<2, 0, false>},
};

struct Kept {
  const char* name;
  Dtype m, v;
  int bytes;
};
constexpr Kept kMoments[] = {{"fp32", Dtype::kF32, Dtype::kF32, 4},
                             {"bf16", Dtype::kBF16, Dtype::kBF16, 2},
                             {"8 bits", Dtype::kDynamic8, Dtype::kUnsignedDynamic8, 1}};

void RunAll(int threads, int64_t n, int rounds) {
  ThreadPool pool(threads);
  const HostArray<uint16_t> grad(pool, n, 0x3f80), param(pool, n, 0x3f80);
  // 1.0 as fp32, and as what is shorter no odd number, either.
  const HostArray<float> master(pool, n, 1.0f), m(pool, n, 1.0f), v(pool, n, 1.0f);
  const Program program = AdamProgram(n);
  StepState state;
  state.lr = 1e-6f;
  KernelContext context;
  context.program = &program;
  context.pool = &pool;
  fmt::print("{} threads, {} million elements, {} rounds\n", threads, n >> 20, rounds);
  fmt::print("{:<12}{:<8}{:>8}{:>14}{:>14}{:>8}{:>12}\n", "masters", "moments", "bytes",
             "AdamW GB/s", "shaped GB/s", "ratio", "ns/element");
  for (const Masters& masters : kMasters) {
    for (const Kept& kept : kMoments) {
      const auto arg = [&](auto* data, Dtype dtype) {
        return KernelArg{data, StoredBytes(dtype, static_cast<uint64_t>(n)), dtype};
      };
      const std::vector<KernelArg> args = {
          arg(grad.data(), Dtype::kBF16),
          {&state, sizeof state, Dtype::kU8},
          arg(master.data(), masters.master),
          arg(m.data(), kept.m),
          arg(v.data(), kept.v),
          masters.param_bytes == 0 ? KernelArg{} : arg(param.data(), masters.param)};
      const int flags = masters.master == Dtype::kI16 ? kAccumulate : kNoFlags;
      const auto adamw = [&] {
        CpuKernels().rows[static_cast<size_t>(KernelId::kAdamW)](
            {KernelId::kAdamW, static_cast<uint8_t>(flags), {n, 0, 0}, args, context});
      };
      const auto bytes_of = [](auto* data) { return reinterpret_cast<char*>(data); };
      const Streams streams{bytes_of(grad.data()), bytes_of(master.data()), bytes_of(m.data()),
                            bytes_of(v.data()), bytes_of(param.data())};
      const ShapeFn shape = masters.shape(kept.bytes);
      const auto shaped = [&] {
        pool.ParallelFor(n / 64, 256, [&](int64_t begin, int64_t end, int) {
          shape(streams, begin * 64, end * 64);
        });
      };
      const double shaped_bytes = static_cast<double>((2 + masters.bytes + 4 * kept.bytes) * n);
      const double bytes = static_cast<double>((2 + masters.bytes) * n) +
                           4 * static_cast<double>(StoredBytes(kept.m, static_cast<uint64_t>(n)));
      // Numbers that states have: each of the first rounds makes them of whatever was there.
      const auto reset = [&] {
        pool.ParallelFor(n, 1 << 14, [&](int64_t begin, int64_t end, int) {
          for (HostArray<float> const* array : {&master, &m, &v}) {
            std::fill(array->data() + begin, array->data() + end, 0.0f);
          }
          std::fill(param.data() + begin, param.data() + end, 0);
        });
      };
      std::vector<double> ours, theirs, ratios;
      for (int round = -1; round < rounds; ++round) {
        reset();
        adamw();
        const double a = bytes / SecondsOf(adamw) * 1e-9;
        const double s = shaped_bytes / SecondsOf(shaped) * 1e-9;
        if (round < 0) continue;
        ours.push_back(a);
        theirs.push_back(s);
        ratios.push_back(a / s);
      }
      const double rate = Median(std::move(ours));
      fmt::print("{:<12}{:<8}{:>8.1f}{:>14.1f}{:>14.1f}{:>8.2f}{:>12.3f}\n", masters.name,
                 kept.name, bytes / static_cast<double>(n), rate, Median(std::move(theirs)),
                 Median(std::move(ratios)), bytes / static_cast<double>(n) / rate);
    }
  }
}

}  // namespace
}  // namespace zeroplan

int main(int argc, char** argv) {
  const auto number = [&](int i, int otherwise) {
    return argc > i ? std::max(1, std::atoi(argv[i])) : otherwise;
  };
  const auto cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  zeroplan::RunAll(number(1, cores), int64_t{number(2, 64)} << 20, number(3, 9));
}
