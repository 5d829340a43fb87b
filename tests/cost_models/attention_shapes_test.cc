// Attention of training shapes on an H200 beside what its measured profile predicts. The profile
// has none of these shapes: its heads are 64 or 128 channels, none of keys shared, and its
// sequences multiples of 128.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <iterator>

#include "cost_models/attention_cost.h"
#include "hwprofiles/loader.h"
#include "hwprofiles/sanity.h"
#include "tests/attention_rows.h"
#include "tests/cost_models/plain_profile.h"
#include "tests/paths.h"

namespace zeroplan {
namespace {

HardwareProfile MeasuredAttention() {
  return LoadProfile(SourcePath("benchmarks/measure/results/hw_measure_4x_h200.json"));
}

AttentionShape ShapeOf(const KernelDims& dims) {
  return {dims[0], dims[1], dims[2], dims[4], dims[3]};
}

// Below 10 us a row of the profile measures a call, not a kernel (docs/cost-model.md, floors).
bool IsACall(double ms) { return ms < 0.030; }

TEST_CASE("attention shapes: shared heads, odd lengths and head sizes, within 11 %") {
  const HardwareProfile profile = MeasuredAttention();
  const AttentionCost cost(profile.gpu, GemmCost(profile.gpu));
  double forward_sum = 0, backward_sum = 0, rows = 0;
  for (const testing::AttentionRow& row : testing::kAttentionRows) {
    CAPTURE(FormatDims(KernelId::kAttentionBackward, row.dims, {}));
    if (IsACall(row.backward_ms)) continue;
    const AttentionShape shape = ShapeOf(row.dims);
    const double forward = cost.ForwardSeconds(shape) * 1e3 / row.forward_ms - 1;
    const double backward = cost.BackwardSeconds(shape) * 1e3 / row.backward_ms - 1;
    CAPTURE(forward);
    CAPTURE(backward);
    const bool large_heads = row.dims[4] == 256, longest = row.dims[1] == 32768;
    if (large_heads) {  // known: forward up to 22 % too long, backward up to 14 % too short
      CHECK((forward > 0.15 && forward < 0.22));
      CHECK((backward < -0.08 && backward > -0.14));
      continue;
    }
    CHECK(std::abs(forward) < 0.11);
    if (longest) {  // known: 17 % too long
      CHECK((backward > 0.15 && backward < 0.18));
      continue;
    }
    CHECK(std::abs(backward) < 0.095);
    forward_sum += forward;
    backward_sum += backward;
    ++rows;
  }
  CHECK(rows >= 15);
  CHECK(std::abs(forward_sum / rows) < 0.06);
  CHECK(std::abs(backward_sum / rows) < 0.02);
}

TEST_CASE(
    "attention shapes: another run's shapes, a kernel or a call with its padding, within 11 %") {
  const HardwareProfile profile = MeasuredAttention();
  const AttentionCost cost(profile.gpu, GemmCost(profile.gpu));
  for (const testing::AttentionRow& row : testing::kBenchmarkAttentionRows) {
    CAPTURE(FormatDims(KernelId::kAttentionBackward, row.dims, {}));
    const AttentionShape shape = ShapeOf(row.dims);
    CHECK(std::abs(cost.ForwardSeconds(shape) * 1e3 / row.forward_ms - 1) < 0.11);
    CHECK(std::abs(cost.BackwardSeconds(shape) * 1e3 / row.backward_ms - 1) < 0.09);
  }
}

TEST_CASE("attention shapes: deterministic, in one call or in parts, within 12 %") {
  const HardwareProfile profile = MeasuredAttention();
  const AttentionCost cost(profile.gpu, GemmCost(profile.gpu));
  double squares = 0, rows = 0;
  const auto check = [&](const testing::AttentionRow& row, uint64_t workspace_bytes) {
    CAPTURE(FormatDims(KernelId::kAttentionBackward, row.dims, {}));
    if (IsACall(row.backward_ms)) return;
    const AttentionLaunch launch{.dims = row.dims,
                                 .backward = true,
                                 .deterministic = true,
                                 .workspace_bytes = workspace_bytes};
    const double error = cost.Seconds(launch) * 1e3 / row.backward_ms - 1;
    CAPTURE(error);
    CHECK(std::abs(error) < 0.12);
    squares += error * error;
    ++rows;
  };
  for (const testing::AttentionRow& row : testing::kOrderedAttentionRows) {
    check(row, row.backward_bytes);
  }
  for (const testing::AttentionRow& row : testing::kOrderedInPartsRows) {
    check(row, FusedAttentionBackwardBytes(row.dims, false));
  }
  CHECK(rows == 20);
  CHECK(std::sqrt(squares / rows) < 0.06);
}

TEST_CASE("attention shapes: plain kernels, within 12 %") {
  const HardwareProfile profile = MeasuredAttention();
  const AttentionCost cost(profile.gpu, GemmCost(profile.gpu));
  for (const testing::PlainAttentionRow& row : testing::kPlainAttentionRows) {
    CAPTURE(DtypeName(row.dtype));
    CAPTURE(FormatDims(KernelId::kAttentionBackward, row.dims, {}));
    AttentionLaunch launch{.dims = row.dims, .dtype = row.dtype};
    const double forward = cost.Seconds(launch) * 1e3 / row.forward_ms - 1;
    launch.backward = true;
    const double backward = cost.Seconds(launch) * 1e3 / row.backward_ms - 1;
    CAPTURE(forward);
    CAPTURE(backward);
    CHECK(std::abs(forward) < 0.12);
    CHECK(std::abs(backward) < 0.12);
  }
}

// 100 multiprocessors, 100 TFLOP/s, 1 us a launch.
HardwareProfile PlainWithFp32() {
  HardwareProfile profile = PlainProfile();
  profile.gpu.dense_peaks[Dtype::kF32] = Number(10e12);
  return profile;
}

TEST_CASE("attention shapes: lengths are padded to blocks of 128") {
  const HardwareProfile profile = PlainProfile();
  const AttentionCost cost(profile.gpu, GemmCost(profile.gpu));
  for (bool backward : {false, true}) {
    const auto seconds = [&](int64_t seq) {
      return cost.Seconds({.dims = {2, seq, 8, 8, 128}, .backward = backward});
    };
    CHECK(seconds(1000) == seconds(1024));
    CHECK(seconds(1025) == seconds(1152));
    CHECK(seconds(1025) > seconds(1024));
  }
}

TEST_CASE("attention shapes: heads of keys that are shared add their gradients up") {
  const HardwareProfile profile = PlainProfile();
  const AttentionCost cost(profile.gpu, GemmCost(profile.gpu));
  const MemoryCost memory(profile.gpu);
  const AttentionShape own{2, 1024, 8, 128, 8}, shared{2, 1024, 8, 128, 2};
  CHECK(cost.ForwardSeconds(own) == cost.ForwardSeconds(shared));
  CHECK(cost.BackwardSeconds(own) == cost.BackwardSeconds({2, 1024, 8, 128}));
  // dK and dV of 8 heads are read, of 2 written: 2 * 2 B * 2 * 1024 * (8 + 2) * 128.
  const double bytes = 2.0 * 2 * 2 * 1024 * (8 + 2) * 128;
  CHECK(cost.BackwardSeconds(shared) - cost.BackwardSeconds(own) ==
        doctest::Approx(1e-6 + bytes / memory.BytesPerSecond()));
}

TEST_CASE("attention shapes: parts cost a call each; a call costs more than its share") {
  const HardwareProfile profile = PlainProfile();
  const AttentionCost cost(profile.gpu, GemmCost(profile.gpu));
  const KernelDims dims = {8, 2048, 32, 8, 64};
  AttentionLaunch launch{.dims = dims, .backward = true};
  const double usual = cost.Seconds(launch);
  CHECK(usual == cost.BackwardSeconds(ShapeOf(dims)));
  launch.deterministic = true;
  launch.workspace_bytes = FusedAttentionBackwardBytes(dims, true);
  const double whole = cost.Seconds(launch);
  launch.workspace_bytes = AttentionWorkspaceBytes(dims, true);  // 16 calls
  const double parts = cost.Seconds(launch);
  launch.dims = {1, 2048, 16, 4, 64};
  launch.workspace_bytes = FusedAttentionBackwardBytes(launch.dims, true);
  CHECK(parts == doctest::Approx(16 * cost.Seconds(launch)));
  CHECK(whole > usual);
  CHECK(parts > whole);
}

// PlainProfile sustains 71 of its 100 TFLOP/s.
TEST_CASE("attention shapes: own kernels at a share of what matmuls sustain") {
  HardwareProfile profile = PlainProfile();
  // 16 sequences of one token, in blocks of 128; 2 heads of 72 channels, padded to 96.
  const AttentionLaunch launch{.dims = {16, 1, 2, 2, 72}, .workspace_bytes = uint64_t{1} << 30};
  const double work = 2.0 * 16 * 128 * (128 + 551) * 2 * 96;
  const double hopper = 361e12 / 695e12 * 71e12;
  CHECK(AttentionCost(profile.gpu, GemmCost(profile.gpu)).Seconds(launch) ==
        doctest::Approx(24e-6 + work / hopper));
  // mma.sync reaches all of the peak before Hopper; a margin is taken off.
  profile.gpu.architecture = "ampere";
  CHECK(AttentionCost(profile.gpu, GemmCost(profile.gpu)).Seconds(launch) ==
        doctest::Approx(24e-6 + work / (hopper / 0.62 / 1.15)));
}

TEST_CASE("attention shapes: own kernels as measured on an H200, whole rows and documents") {
  const HardwareProfile profile = MeasuredAttention();
  const AttentionCost cost(profile.gpu, GemmCost(profile.gpu));
  std::array<double, 3> sums{};
  for (const testing::OwnAttentionRow& row : testing::kOwnAttentionRows) {
    AttentionShape shape = ShapeOf(row.dims);
    shape.visible_keys = row.visible_keys;
    const std::array<double, 3> times = {cost.OwnSeconds(shape, false),
                                         cost.OwnSeconds(shape, true),
                                         cost.OwnSeconds(shape, true, true)};
    const std::array<double, 3> measured = {row.forward_ms, row.backward_ms, row.ordered_ms};
    for (size_t i = 0; i < times.size(); ++i) {
      CAPTURE(i);
      CAPTURE(FormatDims(KernelId::kAttentionBackward, row.dims, {}));
      CAPTURE(row.visible_keys);
      const double off = std::abs(std::log(times[i] * 1e3 / measured[i]));
      CHECK(off < 0.32);
      sums[i] += off / static_cast<double>(std::size(testing::kOwnAttentionRows));
    }
  }
  CHECK(sums[0] < 0.08);
  CHECK(sums[1] < 0.07);
  CHECK(sums[2] < 0.11);
}

TEST_CASE("attention shapes: the choice of kernels and their time agree") {
  HardwareProfile profile = PlainWithFp32();
  for (const char* architecture : {"turing", "ampere", "ada", "hopper", "blackwell"}) {
    CAPTURE(architecture);
    profile.gpu.architecture = architecture;
    const AttentionCost cost(profile.gpu, GemmCost(profile.gpu));
    for (const bool backward : {false, true}) {
      for (const bool documents : {false, true}) {
        for (const int64_t head : {60, 72, 128, 256}) {
          AttentionLaunch launch{.dims = {4, 1024, 8, 8, head},
                                 .backward = backward,
                                 .compute_capability = ComputeCapability(architecture),
                                 .workspace_bytes = uint64_t{1} << 40,
                                 .documents = documents};
          const AttentionShape shape = ShapeOf(launch.dims);
          const double seconds = cost.Seconds(launch);
          const double library =
              backward ? cost.BackwardSeconds(shape) : cost.ForwardSeconds(shape);
          switch (AttentionPathOf(launch).kernels) {
            case AttentionKernels::kLibrary:
              CHECK(seconds >= library);
              CHECK(seconds <= 1.13 * library);
              break;
            case AttentionKernels::kOwn:
              CHECK(seconds == cost.OwnSeconds(shape, backward));
              CHECK(seconds < cost.PlainSeconds(shape, launch.dtype, backward));
              break;
            case AttentionKernels::kPlain:
              CHECK(seconds == cost.PlainSeconds(shape, launch.dtype, backward));
              break;
          }
        }
      }
    }
  }
}

TEST_CASE("attention shapes: within documents the time rises with the keys that a token sees") {
  HardwareProfile profile = PlainWithFp32();
  for (const char* architecture : {"turing", "ada", "hopper"}) {  // plain, own and cuDNN's kernels
    CAPTURE(architecture);
    profile.gpu.architecture = architecture;
    const AttentionCost cost(profile.gpu, GemmCost(profile.gpu));
    for (const bool backward : {false, true}) {
      for (const int64_t seq : {4096, 4000}) {
        AttentionLaunch launch{.dims = {4, seq, 8, 8, 64}, .backward = backward, .documents = true};
        const double whole = cost.Seconds(launch);
        double before = 0;
        for (const double keys : {1.0, 20.0, 200.0, 1000.0}) {
          const double seconds = cost.Seconds(launch, keys);
          CHECK(seconds > before);
          before = seconds;
        }
        CHECK(before < whole);
        CHECK(cost.Seconds(launch, static_cast<double>(seq + 1) / 2) == doctest::Approx(whole));
        CHECK(cost.Seconds(launch, 1e6) == doctest::Approx(whole));
        launch.documents = false;
        CHECK(cost.Seconds(launch, 20) == cost.Seconds(launch));
      }
    }
  }
}

TEST_CASE("attention shapes: plain kernels at a share of the fp32 peak") {
  const HardwareProfile profile = PlainWithFp32();
  const AttentionCost cost(profile.gpu, GemmCost(profile.gpu));
  AttentionLaunch launch{.dims = {1, 128, 2, 1, 62}, .dtype = Dtype::kF32};
  // 2 heads of 3 of 4 tiles of 64 x 64, and 4 for each of 2 rows of tiles; 2 FLOPs an element and
  // channel: of scores 64, of the other products the tile's 64.
  const double squares = 2.0 * (3 + 4 * 2) * 64 * 64 * 2;
  CHECK(cost.Seconds(launch) == doctest::Approx(1e-6 + squares * (64 + 64) / (0.30 * 10e12)));
  launch.backward = true;
  CHECK(cost.Seconds(launch) ==
        doctest::Approx(2e-6 + squares * (4 * 64 + 3 * 64) / (0.36 * 10e12)));
  launch.dims[4] = 80;
  CHECK(cost.Seconds(launch) ==
        doctest::Approx(2e-6 + squares * (4 * 80 + 3 * 128) / (0.225 * 10e12)));
  // Heads of 60 channels take many times what fused ones of 64 would.
  AttentionLaunch odd{.dims = {8, 1024, 12, 12, 60}, .backward = true};
  AttentionLaunch even = odd;
  even.dims[4] = 64;
  CHECK(cost.Seconds(odd) > 5 * cost.Seconds(even));
  even.dtype = Dtype::kF32;
  CHECK(cost.Seconds(odd) < cost.Seconds(even));  // fp32 is read at twice the bytes
}

}  // namespace
}  // namespace zeroplan
