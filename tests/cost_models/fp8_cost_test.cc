// Products of eight bits against figures computed by hand.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "core/lowering/lower.h"
#include "cost_models/cost_model.h"
#include "cost_models/gemm_cost.h"
#include "cost_models/kernel_cost.h"
#include "cost_models/power_limit.h"
#include "cost_models/step_time.h"
#include "hwprofiles/loader.h"
#include "tests/core/lowering/matrix.h"
#include "tests/cost_models/plain_profile.h"
#include "tests/cost_models/tiny_program.h"

namespace zeroplan {
namespace {

using doctest::Approx;

constexpr GemmKind kAllKinds[] = {GemmKind::kForward, GemmKind::kData, GemmKind::kWeight};

TEST_CASE("eight bits: twice the FLOP/s, tiles as of 16, outputs of two bytes") {
  HardwareProfile profile = PlainProfile();
  profile.gpu.launch_overhead = Number(0);
  profile.gpu.hbm_bandwidth = Number(1e30);
  profile.gpu.reachable_peaks[Dtype::kBF16] = Number(100e12);
  profile.gpu.reachable_peaks[Dtype::kE4M3] = Number(200e12);
  // One wave of 100 tiles of 128 x 256. In contraction elements a start and end are 387 on
  // multiprocessors of 989.4 / 132 TFLOP/s, less in proportion on slower ones.
  const double ramp = 387 * 1e12 / (989.4e12 / 132);
  const Product product{1280, 2560, 512};
  const double wide = GemmCost(profile.gpu).Seconds(Dtype::kBF16, product);
  const double narrow = GemmCost(profile.gpu).Seconds(Dtype::kE4M3, product);
  CHECK(wide == Approx(2.0 * 128 * 256 * (512 + ramp) / 1e12));
  CHECK(narrow == Approx(wide / 2));
  // A flat product is held back by memory: a byte an operand, two an output; batches reach 0.63.
  profile.gpu.hbm_bandwidth = Number(1e9);
  CHECK(GemmCost(profile.gpu).Seconds(Dtype::kE4M3, Product{1280, 2560, 16}) ==
        Approx(((1280.0 + 2560) * 16 + 2 * 1280 * 2560) / 0.63e9).epsilon(1e-4));
}

TEST_CASE("eight bits without rows: the reachable peak, or 0.66 of the dense one") {
  HardwareProfile profile = PlainProfile();
  CHECK(GemmCost(profile.gpu).Sustained(Dtype::kE4M3) == Approx(0.66 * 200e12));
  profile.gpu.reachable_peaks[Dtype::kE4M3] = Number(150e12);
  const GemmCost gemm(profile.gpu);
  CHECK(gemm.Sustained(Dtype::kE5M2) == 150e12);
  CHECK(gemm.DensePeak(Dtype::kE5M2) == 200e12);
  for (const GemmKind kind : kAllKinds) {
    CHECK(gemm.Seconds(kind, Dtype::kE5M2, 4096, 2048, 1024) ==
          gemm.Seconds(kind, Dtype::kE4M3, 4096, 2048, 1024));
  }
}

TEST_CASE("eight bits never pass the peak, and larger products never take less") {
  for (const char* name : {"h100-80gb-sxm", "hgx-h200", "b200-180gb-sxm", "rtx4090", "l4"}) {
    CAPTURE(name);
    const GpuProfile gpu = LoadProfile(name).gpu;
    const GemmCost gemm(gpu);
    const double most = std::max(gpu.dense_peaks.at(Dtype::kE4M3).value,
                                 gpu.reachable_peaks.at(Dtype::kE4M3).value);
    for (const GemmKind kind : kAllKinds) {
      double before = 0;
      for (int64_t side = 64; side <= 32768; side *= 2) {
        CAPTURE(side);
        const double seconds = gemm.Seconds(kind, Dtype::kE4M3, side, side, side);
        CHECK(seconds >= 2 * std::pow(static_cast<double>(side), 3) / most);
        CHECK(seconds > gpu.launch_overhead.value);
        CHECK(seconds >= before);
        CHECK(gemm.SpeedOnShare(kind, Dtype::kE4M3, side, side, side, 0.9) <= 1);
        before = seconds;
      }
    }
    // A large product reaches what the profile says, a small one gains little over 16 bits.
    const auto gain = [&](int64_t side) {
      return gemm.Seconds(GemmKind::kForward, Dtype::kBF16, side, side, side) /
             gemm.Seconds(GemmKind::kForward, Dtype::kE4M3, side, side, side);
    };
    CHECK(gain(8192) > 1.6);
    CHECK(gain(8192) < 2.1);
    CHECK(gain(256) < gain(8192));
    CHECK(gain(256) >= 0.99);
  }
  const GpuProfile h100 = LoadProfile("h100-80gb-sxm").gpu;
  CHECK(GemmCost(h100).Seconds(GemmKind::kForward, Dtype::kE4M3, 8192, 8192, 8192) ==
        Approx(2 * std::pow(8192.0, 3) / 1304.5e12).epsilon(0.01));
}

// Products that others timed on Hopper GPUs, each beside the one of 8192 that the same program
// timed: torch._scaled_mm on an H100 (github.com/pytorch/pytorch/issues/143465), TileLang on an
// H800 (its benchmark/matmul_fp8). TFLOP/s.
TEST_CASE("without rows, products of 1,024 elements and more are within 8 % of what others timed") {
  struct Timed {
    int64_t m, k, n;
    double rate, of_8192;
  };
  const Timed timed[] = {{16384, 1280, 8192, 1239.4, 1304.5}, {16384, 8192, 1024, 1347.1, 1304.5},
                         {16384, 7168, 8192, 1332.3, 1304.5}, {16384, 8192, 3584, 1309.4, 1304.5},
                         {8192, 1024, 8192, 1129, 1507},      {8192, 2048, 8192, 1343, 1507},
                         {8192, 4096, 8192, 1467, 1507},      {8192, 16384, 8192, 1541, 1507}};
  for (const Timed& row : timed) {
    CAPTURE(row.m);
    CAPTURE(row.k);
    CAPTURE(row.n);
    GpuProfile gpu = LoadProfile("h100-80gb-sxm").gpu;
    std::erase_if(gpu.gemm->rows, [](const GemmRate& of) { return of.dtype == Dtype::kE4M3; });
    gpu.reachable_peaks[Dtype::kE4M3] = Number(row.of_8192 * 1e12);
    const double flops = 2.0 * static_cast<double>(row.m * row.k * row.n);
    const double seconds =
        GemmCost(gpu).Seconds(GemmKind::kForward, Dtype::kE4M3, row.m, row.k, row.n);
    CHECK(flops / seconds == Approx(row.rate * 1e12).epsilon(0.08));
  }
}

TEST_CASE("rows of eight bits: fast sums are fitted apart from full ones, a floor holds below") {
  HardwareProfile profile = PlainProfile();
  profile.gpu.gemm.emplace();
  const auto add = [&](GemmKind kind, int64_t m, int64_t k, int64_t n, double rate) {
    profile.gpu.gemm->rows.push_back({kind, Dtype::kE4M3, m, k, n, rate});
  };
  for (const int64_t m : {2048, 4096, 8192}) {
    add(GemmKind::kForward, m, 4096, 4096, 160e12);
    add(GemmKind::kData, m, 4096, 4096, 120e12);
    add(GemmKind::kWeight, m, 4096, 4096, 120e12);
  }
  add(GemmKind::kForward, 64, 64, 64, 2 * std::pow(64.0, 3) / 4e-6);
  add(GemmKind::kData, 64, 64, 64, 2 * std::pow(64.0, 3) / 4.5e-6);
  const GemmCost gemm(profile.gpu);
  const auto rate = [&](GemmKind kind, int64_t m, int64_t k, int64_t n) {
    return 2.0 * static_cast<double>(m * k * n) / gemm.Seconds(kind, Dtype::kE4M3, m, k, n);
  };
  const double fast = rate(GemmKind::kForward, 4096, 4096, 4096);
  const double full = rate(GemmKind::kData, 4096, 4096, 4096);
  CHECK(fast > 1.1 * full);
  CHECK(fast < 200e12);
  // The gradient of a weight is the same kernel as that of an input: by rows, columns and depth.
  CHECK(rate(GemmKind::kWeight, 1024, 2048, 4096) ==
        Approx(rate(GemmKind::kData, 2048, 4096, 1024)));
  CHECK(gemm.Seconds(GemmKind::kForward, Dtype::kE4M3, 16, 16, 16) >= 4e-6);
  CHECK(gemm.Seconds(GemmKind::kWeight, Dtype::kE4M3, 16, 16, 16) >= 4.5e-6);
  // They say nothing of 16 bits, nor those of them.
  CHECK(gemm.Sustained(Dtype::kBF16) == GemmCost(PlainProfile().gpu).Sustained(Dtype::kBF16));
  profile.gpu.gemm->rows = {{GemmKind::kForward, Dtype::kBF16, 8192, 8192, 8192, 50e12}};
  CHECK(GemmCost(profile.gpu).Sustained(Dtype::kE4M3) == Approx(0.66 * 200e12));
}

TEST_CASE("a launch of eight bits: bytes beyond the bare product come on top") {
  const KernelCost kernels(PlainProfile().gpu, 1);
  TinyProgram tiny(1, 1);
  for (const Dtype dtype : {Dtype::kE4M3, Dtype::kF32, Dtype::kBF16, Dtype::kE5M2}) {
    tiny.program.buffers[tiny.Add("any", 1 << 30, MemoryClass::kBuffers)].dtype = dtype;
  }
  constexpr BufferId kCodes = 0, kFloats = 1, kHalves = 2, kGradients = 3;
  constexpr uint64_t kM = 4096, kK = 1024, kN = 2048;
  const auto seconds = [&](int64_t fast, uint8_t flags, Ref a, Ref bias, Ref residual, Ref y) {
    const Ref scale{kFloats, 0, 4, 0}, b{kCodes, 0, kN * kK, 0};
    return kernels.Seconds(tiny.program,
                           tiny.MakeLaunch(KernelId::kFp8Matmul, {kM, kK, kN, 0, 0, fast},
                                           {a, scale, b, scale, bias, residual, y}, flags));
  };
  const Ref null{}, a{kCodes, 0, kM * kK, 0}, y{kHalves, 0, 2 * kM * kN, 0};
  const GemmCost& gemm = kernels.gemm();
  const double bandwidth = kernels.memory().BytesPerSecond();
  const double forward = gemm.Seconds(GemmKind::kForward, Dtype::kE4M3, kM, kK, kN);
  CHECK(seconds(1, 0, a, null, null, y) == Approx(forward + 8 / bandwidth));
  CHECK(seconds(1, 0, a, {kHalves, 0, 2 * kN, 0}, y, y) ==
        Approx(forward + (8.0 + 2 * kN + 2 * kM * kN) / bandwidth));
  // As a gradient: rows M and columns N over K. Added to one in fp32: read and written.
  const double gradient = gemm.Seconds(GemmKind::kData, Dtype::kE4M3, kM, kN, kK);
  CHECK(seconds(0, 0, {kGradients, 0, kM * kK, 0}, null, null, y) ==
        Approx(gradient + 8 / bandwidth));
  CHECK(seconds(0, kAccumulate, a, null, null, {kFloats, 0, 4 * kM * kN, 0}) ==
        Approx(gradient + (8.0 + 6 * kM * kN) / bandwidth));
}

TEST_CASE("copies of eight bits and largest magnitudes cost their bytes") {
  const HardwareProfile profile = PlainProfile();
  const KernelCost kernels(profile.gpu, 1);
  TinyProgram tiny(1, 1);
  for (const Dtype dtype : {Dtype::kE4M3, Dtype::kF32, Dtype::kBF16}) {
    tiny.program.buffers[tiny.Add("any", 1 << 30, MemoryClass::kBuffers)].dtype = dtype;
  }
  constexpr uint64_t kElements = uint64_t{1} << 24;
  const auto seconds = [&](KernelId kernel, const KernelDims& dims,
                           std::initializer_list<Ref> args) {
    return kernels.Seconds(tiny.program, tiny.MakeLaunch(kernel, dims, args));
  };
  const Ref x{2, 0, 2 * kElements, 0}, q{0, 0, kElements, 0}, scale{1, 0, 4, 0}, null{};
  const double bytes = static_cast<double>(kElements), bandwidth = 0.885e12;
  CHECK(seconds(KernelId::kLargestMagnitude, {kElements}, {x, scale}) ==
        Approx(1e-6 + (2 * bytes + 8) / bandwidth));
  CHECK(seconds(KernelId::kQuantize, {4096, 4096, 0}, {x, scale, q, scale, q, null}) ==
        Approx(1e-6 + (4 * bytes + 8) / bandwidth));
  CHECK(seconds(KernelId::kQuantize, {4096, 4096, 0}, {x, scale, null, null, q, scale}) ==
        Approx(1e-6 + (3 * bytes + 8) / bandwidth));
}

TEST_CASE("a FLOP of eight bits draws less than one of 16, as much as was measured") {
  HardwareProfile profile = LimitedProfile();
  const PowerLimit power(profile.gpu);
  CHECK(power.As16Bits(Dtype::kBF16, 1e12) == 1e12);
  CHECK(power.As16Bits(Dtype::kE4M3, 1e12) == Approx(kEightBitFlop * 1e12));
  CHECK(power.As16Bits(Dtype::kE5M2, 1e12) == Approx(kEightBitFlop * 1e12));
  profile.gpu.power->flop_e4m3 = Number(4e-12);  // 10 pJ in 16 bits
  CHECK(PowerLimit(profile.gpu).As16Bits(Dtype::kE4M3, 1e12) == Approx(0.4e12));
  // So the same work keeps a higher clock.
  const auto clock = [&](Dtype dtype) {
    return power.Clock(power.Product(1, power.As16Bits(dtype, 90e12), 0));
  };
  CHECK(clock(Dtype::kBF16) < clock(Dtype::kE4M3));
}

TEST_CASE("a GPU that does not multiply eight bits is named, with what to do") {
  const GpuProfile a100 = LoadProfile("a100-80gb-sxm").gpu;
  const GemmCost gemm(a100);
  for (const char* said : {"A100", "gpu.peaks.e4m3", "e4m3", "fp8", "8.9"}) {
    CHECK_THROWS_WITH_AS(gemm.Seconds(GemmKind::kForward, Dtype::kE5M2, 4096, 4096, 4096),
                         doctest::Contains(said), Error);
  }
  try {
    gemm.DensePeak(Dtype::kE4M3);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUsage);
  }
}

TEST_CASE("a step of wide layers is shorter in eight bits, one of narrow layers hardly") {
  LowerOptions options;
  options.backend = Backend::kCuda;
  const CostModel costs(LoadProfile("h100-80gb-sxm"), {1, 1});
  const auto step = [&](int64_t hidden, bool fp8) {
    ModelSpec spec = testing::TinyModel(4);
    spec.hidden = hidden;
    spec.heads = hidden / 128;
    spec.ffn = 4 * hidden;
    spec.positions = 2048;
    TrainSetup setup = testing::BaseSetup(0, 1, Dtype::kBF16, 1, kNoRecompute);
    setup.batch.seq_len = 2048;
    setup.batch.micro_batch = 4;
    setup.precision.fp8.enabled = fp8;
    const Program program = Lower(spec, setup, options);
    int products = 0;
    for (const Instruction& instruction : program.section(Section::kMicroStep)) {
      const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
      products += launch != nullptr && launch->kernel == KernelId::kFp8Matmul ? 1 : 0;
    }
    CHECK((products > 0) == fp8);
    return StepTimer(costs).Time(program).compute_seconds;
  };
  const double wide = step(8192, false) / step(8192, true);
  const double narrow = step(512, false) / step(512, true);
  CHECK(wide > 1.3);
  CHECK(wide < 1.8);
  CHECK(narrow < 1.1);
}

}  // namespace
}  // namespace zeroplan
