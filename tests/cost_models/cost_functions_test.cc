// Each cost function against a figure computed by hand.
#include <doctest/doctest.h>

#include <cmath>

#include "core/base/error.h"
#include "cost_models/attention_cost.h"
#include "cost_models/calibration.h"
#include "cost_models/collective_cost.h"
#include "cost_models/gemm_cost.h"
#include "cost_models/host_cost.h"
#include "cost_models/memory_cost.h"
#include "hwprofiles/loader.h"
#include "tests/cost_models/plain_profile.h"

namespace zeroplan {
namespace {

using doctest::Approx;

TEST_CASE("relative least squares finds the line, and leaves out what would be negative") {
  const auto line = FitRelative({{{1, 10}, 12}, {{1, 100}, 102}, {{1, 1000}, 1002}});
  CHECK(line[0] == Approx(2));
  CHECK(line[1] == Approx(1));
  // 3x - 1: the constant is left out. Of 2/1, 29/10: c minimises (c/2-1)^2 + (10c/29-1)^2.
  const auto positive = FitRelative({{{1, 1}, 2}, {{1, 10}, 29}});
  CHECK(positive[0] == 0);
  CHECK(positive[1] == Approx((0.5 + 10.0 / 29) / (0.25 + 100.0 / 841)));
  const auto known = FitRelative({{{1}, 12, 10}, {{1}, 22, 20}});
  CHECK(known[0] == Approx(2));
  CHECK(FitRelative({}).empty());
}

TEST_CASE("a local correction is whole at its point only beside the prior, and 1 far away") {
  LocalCorrection correction;
  CHECK(correction.Factor({0, 0, 0}) == 1);
  correction.Add({10, 10, 10}, std::exp(0.2));
  CHECK(correction.Factor({10, 10, 10}) == Approx(std::exp(0.1)));  // weight 1 beside a prior of 1
  const double near = std::exp(-1.0);
  CHECK(correction.Factor({11, 10, 10}) == Approx(std::exp(0.2 * near / (1 + near))));
  CHECK(correction.Factor({20, 10, 10}) == 1);
}

TEST_CASE("which of M, K, N are output and contraction") {
  const Product forward = LayerProduct(GemmKind::kForward, 2, 3, 5);
  CHECK((forward.rows == 2 && forward.columns == 5 && forward.depth == 3));
  const Product data = LayerProduct(GemmKind::kData, 2, 3, 5);
  CHECK((data.rows == 2 && data.columns == 3 && data.depth == 5));
  const Product weight = LayerProduct(GemmKind::kWeight, 2, 3, 5);
  CHECK((weight.rows == 3 && weight.columns == 5 && weight.depth == 2));
  CHECK(forward.flops() == 60);
  CHECK(forward.elements() == 31);
}

// 100 multiprocessors of 1e12 FLOP/s; memory and power that never bind.
GemmMachine WideMachine() {
  GemmMachine machine;
  machine.multiprocessors = 100;
  machine.dense_peak = 100e12;
  machine.sustained = 1e30;
  machine.memory_bandwidth = 1e30;
  return machine;
}

TEST_CASE("a product takes whole waves of tiles") {
  // 1280 x 2560: 100 tiles of 128 x 256, one wave of 2 * 32768 * (4096 + 387) FLOPs each.
  const double one_wave = 2.0 * 32768 * (4096 + 387) / 1e12;
  CHECK(TiledProductSeconds(WideMachine(), {1280, 2560, 4096}) == Approx(one_wave));
  // A tenth more rows: 110 tiles of 128 x 256 are two waves; 440 of 64 x 128 are five of a quarter,
  // which is less, though small tiles cost 4^0.0735 more.
  CHECK(TiledProductSeconds(WideMachine(), {1408, 2560, 4096}) ==
        Approx(5 * 2.0 * 8192 * (4096 + 387) / 1e12 * 1.1073));
  // Ten products of a tenth of the rows are one wave again.
  CHECK(TiledProductSeconds(WideMachine(), {128, 2560, 4096, 10}) == Approx(one_wave));
}

TEST_CASE("a large product is held back by power, a flat one by memory") {
  GemmMachine machine = WideMachine();
  machine.sustained = 10e12;  // a tenth of the waves' rate: its fifth power leaves nothing else
  CHECK(TiledProductSeconds(machine, {12800, 12800, 12800}) ==
        Approx(2.0 * 12800 * 12800 * 12800 / 10e12).epsilon(1e-4));
  machine = WideMachine();
  machine.memory_bandwidth = 1e9;
  CHECK(TiledProductSeconds(machine, {1280, 2560, 1}) ==
        Approx((1280.0 * 2560 + 1280 + 2560) * 2 / 0.378e9).epsilon(1e-4));
  machine.launch_seconds = 1;
  CHECK(TiledProductSeconds(machine, {1, 1, 1}) == Approx(1).epsilon(1e-3));
}

TEST_CASE("few tiles over a long contraction are split") {
  // 128 x 256 outputs: one tile, 1 % of the multiprocessors. Split: 1/0.95 of the ideal time, five
  // times an fp32 write and read of the outputs (free here), and two starts.
  const double flops = 2.0 * 128 * 256 * 1e6;
  CHECK(TiledProductSeconds(WideMachine(), {128, 256, 1e6}) ==
        Approx(flops / 100e12 / 0.95 + 2 * 32768.0 * 387 / 1e12));
}

TEST_CASE("a tile's start and end are a time, so slower multiprocessors lose less by them") {
  // 100 tiles of 128 x 256 on 100 multiprocessors: one wave. Power and memory far away.
  HardwareProfile profile = PlainProfile();
  profile.gpu.launch_overhead = Number(0);
  profile.gpu.hbm_bandwidth = Number(1e30);
  const auto ramp_of = [&](double rate) {
    profile.gpu.dense_peaks[Dtype::kBF16] = Number(100 * rate);
    profile.gpu.reachable_peaks[Dtype::kBF16] = Number(100 * rate);
    const double seconds = GemmCost(profile.gpu).Seconds(Dtype::kBF16, Product{1280, 2560, 512});
    return seconds * rate / (2.0 * 128 * 256) - 512;
  };
  const double h200 = 989.4e12 / 132;
  CHECK(ramp_of(h200) == Approx(387));
  CHECK(ramp_of(h200 / 4) == Approx(387.0 / 4));
  CHECK(ramp_of(2 * h200) == Approx(387));  // taken to hide as large a share
  // fp32 tiles start and end as the 16-bit ones of the same GPU do.
  profile.gpu.dense_peaks[Dtype::kF32] = Number(100 * h200 / 16);
  profile.gpu.reachable_peaks[Dtype::kF32] = Number(100 * h200 / 16);
  CHECK(GemmCost(profile.gpu).Seconds(Dtype::kF32, Product{1280, 2560, 512}) ==
        Approx((512 + 387) * 2.0 * 128 * 256 / (h200 / 16)));
}

TEST_CASE(
    "a large product takes what the profile says that it reaches, where nothing else is slower") {
  HardwareProfile profile = PlainProfile();
  profile.gpu.launch_overhead = Number(0);
  profile.gpu.hbm_bandwidth = Number(1e30);
  const double dense = 100e12;
  profile.gpu.dense_peaks[Dtype::kBF16] = Number(dense);
  const auto rate_of = [&](double reachable) {
    profile.gpu.reachable_peaks[Dtype::kBF16] = Number(reachable);
    const Product large{8192, 8192, 8192};
    const GemmCost gemm(profile.gpu);
    CHECK(gemm.Sustained(Dtype::kBF16) == Approx(reachable));
    CHECK(gemm.DensePeak(Dtype::kBF16) == Approx(dense));
    return large.flops() / gemm.Seconds(Dtype::kBF16, large);
  };
  for (const double share : {0.5, 0.7, 0.9}) CHECK(rate_of(share * dense) == Approx(share * dense));
  // Above the datasheet's clock tiles are faster as well; their start and end, and the last wave,
  // remain.
  CHECK(rate_of(1.1 * dense) < 1.1 * dense);
  CHECK(rate_of(1.1 * dense) > 1.05 * rate_of(dense));
}

TEST_CASE("attention without rows: the profile's figures, else shares of what products sustain") {
  HardwareProfile profile = PlainProfile();
  const AttentionShape large = {64, 65536, 16, 128}, small = {64, 65536, 32, 64};
  const auto rate = [&](const AttentionShape& shape, bool backward) {
    const AttentionCost cost(profile.gpu, GemmCost(profile.gpu));
    const double flops = 2.0 * 64 * 65536 * 65536 * 2048 * (backward ? 2.5 : 1);
    return flops / (backward ? cost.BackwardSeconds(shape) : cost.ForwardSeconds(shape));
  };
  CHECK(rate(large, false) == Approx(0.99 * 71e12).epsilon(0.02));
  CHECK(rate(small, true) == Approx(0.51 * 71e12).epsilon(0.02));
  profile.gpu.attention_forward = Number(60e12);
  profile.gpu.attention_backward = Number(50e12);
  CHECK(rate(large, false) == Approx(60e12).epsilon(0.02));
  CHECK(rate(large, true) == Approx(50e12).epsilon(0.02));
  CHECK(rate(small, false) == Approx(60e12 * 0.69 / 0.99).epsilon(0.02));
  CHECK(rate(small, true) == Approx(50e12 * 0.51 / 0.64).epsilon(0.02));
}

TEST_CASE("attention of PyTorch programs: older kernels are slower by the GPU's kind") {
  HardwareProfile profile = PlainProfile();
  const AttentionShape shape = {8, 2048, 16, 128};
  const auto slower = [&](TorchFused kernels, bool backward) {
    const AttentionCost cost(profile.gpu, GemmCost(profile.gpu));
    return cost.TorchSeconds(kernels, shape, backward) /
           (backward ? cost.BackwardSeconds(shape) : cost.ForwardSeconds(shape));
  };
  profile.gpu.architecture = "ampere";
  CHECK(slower(TorchFused::kNewest, true) == 1);
  CHECK(slower(TorchFused::kTriton, false) == Approx(1 / 0.54));
  CHECK(slower(TorchFused::kMemoryEfficient, true) == Approx(1 / 0.49));
  profile.gpu.architecture = "hopper";
  CHECK(slower(TorchFused::kTriton, true) == Approx(1 / 0.32));
  // So a V100 has 0.5 of what its products sustain, as an H200 has 0.99.
  const GpuProfile volta = LoadProfile("dgx-2").gpu;
  const GemmCost gemm(volta);
  const double flops = 2.0 * 64 * 65536 * 65536 * 2048;
  const double seconds =
      AttentionCost(volta, gemm)
          .TorchSeconds(TorchFused::kMemoryEfficient, {64, 65536, 16, 128}, false);
  CHECK(flops / seconds == Approx(0.5 * 0.99 * gemm.Sustained(Dtype::kF16)).epsilon(0.02));
}

TEST_CASE("products without rows: the reachable peak, or 0.71 of the dense one") {
  HardwareProfile profile = PlainProfile();
  CHECK(GemmCost(profile.gpu).Sustained(Dtype::kBF16) == Approx(0.71 * 100e12));
  profile.gpu.reachable_peaks[Dtype::kBF16] = Number(80e12);
  const GemmCost gemm(profile.gpu);
  CHECK(gemm.Sustained(Dtype::kBF16) == 80e12);
  CHECK(gemm.Seconds(GemmKind::kForward, Dtype::kBF16, 16384, 16384, 16384) ==
        Approx(2 * std::pow(16384.0, 3) / 80e12).epsilon(0.06));
  CHECK_THROWS_WITH_AS(gemm.DensePeak(Dtype::kF32), doctest::Contains("gpu.peaks.fp32"), Error);
}

TEST_CASE("memory kernels: launch and bandwidth") {
  HardwareProfile profile = PlainProfile();
  CHECK(MemoryCost(profile.gpu).Seconds(1e9) == Approx(1e-6 + 1e9 / 0.885e12));
  profile.gpu.copy_bandwidth = Number(0.8e12);
  CHECK(MemoryCost(profile.gpu).Seconds(1e9) == Approx(1e-6 + 1e9 / 0.8e12));
  // Rows on 3 us + bytes / 0.5 TB/s; the first is a call's cost.
  profile.gpu.memory_kernels.emplace();
  for (const double bytes : {1e3, 1e7, 1e8, 1e9}) {
    profile.gpu.memory_kernels->rows.push_back({bytes, std::max(5e-6, 3e-6 + bytes / 0.5e12)});
  }
  const MemoryCost memory(profile.gpu);
  CHECK(memory.Seconds(100) == Approx(5e-6));
  CHECK(memory.Seconds(5e8) == Approx(3e-6 + 1e-3));
  CHECK(memory.BytesPerSecond() == Approx(0.5e12));
}

TEST_CASE("kernels with rows of their own take what these say, side launches included") {
  HardwareProfile profile = PlainProfile();
  profile.gpu.kernels.emplace();
  profile.gpu.kernels->rows = {{KernelId::kLayerNormBackward, 1e8, 400e-6},  // in any order
                               {KernelId::kLayerNormBackward, 1e6, 15e-6},
                               {KernelId::kAdamW, 1e8, 110e-6}};
  const MemoryCost memory(profile.gpu);
  const auto backward = [&](double bytes) {
    return memory.Seconds(KernelId::kLayerNormBackward, bytes, 1e-6);
  };
  CHECK(backward(1e3) == 15e-6);  // a call
  CHECK(backward(1e6) == 15e-6);
  CHECK(backward(50.5e6) == Approx((15e-6 + 400e-6) / 2));
  CHECK(backward(1e8) == Approx(400e-6));
  CHECK(backward(2e8) == Approx(800e-6));
  // One row says nothing of other sizes: as all others, with the launch beside it.
  CHECK(memory.Seconds(KernelId::kAdamW, 1e8, 1e-6) == Approx(memory.Seconds(1e8) + 1e-6));
  CHECK(memory.MostBytesPerSecond() == Approx(std::max(memory.BytesPerSecond(), 1e8 / 400e-6)));
}

TEST_CASE("fused attention: FLOPs over the rate, with diagonal and last wave") {
  HardwareProfile profile = PlainProfile();
  profile.gpu.reachable_peaks[Dtype::kBF16] = Number(80e12);
  const GemmCost gemm(profile.gpu);
  const AttentionCost attention(profile.gpu, gemm);
  // B 2, T 1024, H 10 of 128: 2*B*T*T*C FLOPs; 160 blocks on 100 multiprocessors.
  const double flops = 2.0 * 2 * 1024 * 1024 * 1280;
  CHECK(attention.ForwardSeconds({2, 1024, 10, 128}) ==
        Approx(1e-6 + flops * (1 + 585.0 / 1024) * (1 + 1.59 / 1.6) / (0.99 * 80e12)));
  CHECK(attention.BackwardSeconds({2, 1024, 10, 128}) ==
        Approx(1e-6 + 2.5 * flops * (1 + 582.0 / 1024) * (1 + 0.789 / 1.6) / (0.64 * 80e12)));
  // Heads of 80 are computed as 128 wide.
  CHECK(attention.ForwardSeconds({2, 1024, 10, 80}) ==
        Approx(attention.ForwardSeconds({2, 1024, 10, 128})));
}

TEST_CASE("attention that writes its scores: whole squares, softmax between products") {
  HardwareProfile profile = PlainProfile();
  const GemmCost gemm(profile.gpu);
  const MemoryCost memory(profile.gpu);
  const AttentionShape shape = {2, 1024, 10, 128};
  const double square = 2.0 * 10 * 1024 * 1024 * 2;  // bytes
  const double into = gemm.Seconds(Dtype::kBF16, Product{1024, 1024, 128, 20});
  const double out_of = gemm.Seconds(Dtype::kBF16, Product{1024, 128, 1024, 20});
  const double bandwidth = 0.885e12;
  CHECK(UnfusedAttentionSeconds(gemm, memory, Dtype::kBF16, shape, false) ==
        Approx(into + out_of + 1e-6 + 1.6 * 2 * square / bandwidth));
  CHECK(UnfusedAttentionSeconds(gemm, memory, Dtype::kBF16, shape, true) ==
        Approx(into + 3 * out_of + 1e-6 + 2.2 * 3 * square / bandwidth));
  // 20 squares' products are no faster than their FLOPs at the sustained rate.
  CHECK(into >= 2.0 * 20 * 1024 * 1024 * 128 / (0.71 * 100e12));
  // More than the fused kernel by far, which writes no square: on an H200's figures, whose memory
  // is the slower part.
  profile.gpu.dense_peaks[Dtype::kBF16] = Number(989.4e12);
  profile.gpu.sm_count = Number(132);
  profile.gpu.hbm_bandwidth = Number(4.8e12);
  const GemmCost fast(profile.gpu);
  CHECK(UnfusedAttentionSeconds(fast, MemoryCost(profile.gpu), Dtype::kBF16, shape, false) >
        1.5 * AttentionCost(profile.gpu, fast).ForwardSeconds(shape));
}

TEST_CASE("copies: one GPU alone, and as many as the host feeds") {
  HardwareProfile profile = PlainProfile();  // alone 50 in, 40 out, 80 both; all 8: 160, 80, 200
  const TransferCost alone(profile, 1);
  CHECK(alone.Seconds(true, 1e9, false) == Approx(3.2e-6 + 1 / 50.0));
  CHECK(alone.Seconds(false, 1e9, false) == Approx(3.2e-6 + 1 / 40.0));
  CHECK(alone.BothShare() == Approx(80.0 / 90));
  const TransferCost two(profile, 2);  // 80 a GPU in: its own 50 binds
  CHECK(two.BytesPerSecond(true) == Approx(50e9));
  const TransferCost eight(profile, 8);  // 20 in, 10 out, 25 both
  CHECK(eight.BytesPerSecond(true) == Approx(20e9));
  CHECK(eight.BytesPerSecond(false) == Approx(10e9));
  CHECK(eight.BothShare() == Approx(25.0 / 30));
  // Pageable: through a pinned buffer at 10 GB/s of one thread, or a rank's half of the
  // triad: 6.25.
  CHECK(alone.Seconds(true, 1e9, true) == Approx(3.2e-6 + 1 / 50.0 + 1 / 10.0));
  CHECK(eight.Seconds(true, 1e9, true) == Approx(3.2e-6 + 1 / 20.0 + 1 / 6.25));
}

TEST_CASE("the host's and the disks' bandwidth is the ranks' to share") {
  HardwareProfile profile = PlainProfile();  // triad 100, Adam 120, disk 4 in and 2 out
  const HostCost host(profile, 4);
  CHECK(host.Seconds(KernelId::kAdamW, 28e9, 16e9) == Approx(28 / 30.0));
  // 10 with what is fetched; the triad moves 16 bytes where it counts 12.
  CHECK(host.Seconds(KernelId::kConvert, 10e9, 16e9) == Approx(7.5 / 25.0));
  CHECK(host.CopySeconds(10e9) == Approx(10 / 25.0));
  CHECK(host.BytesPerSecond() == Approx(30e9));
  const StorageCost storage(profile, 4);
  CHECK(storage.Seconds(false, 1e9) == Approx(100e-6 + 1));
  CHECK(storage.Seconds(true, 1e9) == Approx(100e-6 + 2));

  profile.node.adam_bandwidth.reset();
  CHECK(HostCost(profile, 1).Seconds(KernelId::kAdamW, 1e9, 16e9) == Approx(1 / 100.0));
  profile.node.triad_bandwidth.reset();
  profile.node.nvme_write.reset();
  profile.source = "node.json";
  const HostCost none(profile, 1);
  CHECK_THROWS_WITH_AS(none.CopySeconds(1), doctest::Contains("node.json: host.triad_bandwidth"),
                       Error);
  const StorageCost reads(profile, 1);
  CHECK_THROWS_WITH_AS(reads.Seconds(true, 1), doctest::Contains("node.nvme_write is missing"),
                       Error);
  CHECK(std::isinf(none.BytesPerSecond()));
}

TEST_CASE("host kernels with rows of their own, and states that stay in the caches") {
  HardwareProfile profile = PlainProfile();
  profile.node.host_kernels.emplace();
  profile.node.host_kernels->rows = {{KernelId::kNormSq, 1e6, 25e-6},
                                     {KernelId::kNormSq, 1e8, 1.25e-3},
                                     {KernelId::kAdamW, 1e7, 0.1e-3},
                                     {KernelId::kAdamW, 1e9, 8e-3}};
  const double large = 1e12;
  {
    const HostCost host(profile, 1);
    CHECK(host.Seconds(KernelId::kNormSq, 1e8, large) == Approx(1.25e-3));
    CHECK(host.Seconds(KernelId::kAdamW, 1e9, large) == Approx(8e-3));
    CHECK(host.Seconds(KernelId::kConvert, 1e9, large) == Approx(7.5e-3));  // the triad's
    CHECK(host.BytesPerSecond() == Approx(125e9));
    // Rows of conversions count 6 bytes of 10: a row is the time of 10 / 6 of its bytes.
    HardwareProfile converts = profile;
    for (const double bytes : {6e6, 6e8}) {
      converts.node.host_kernels->rows.push_back({KernelId::kConvert, bytes, bytes * 1e-11});
    }
    CHECK(HostCost(converts, 1).Seconds(KernelId::kConvert, 1e8, large) == Approx(0.6e-3));
    // Four ranks at once: as one call of all their bytes.
    CHECK(HostCost(profile, 4).Seconds(KernelId::kNormSq, 25e6, large) == Approx(1.25e-3));
  }
  profile.node.host_updates.emplace();
  profile.node.host_updates->rows = {{1e8, 0.5e-3}, {4e8, 4e-3}, {16e8, 16e-3}};
  const HostCost host(profile, 1);
  CHECK(host.Seconds(KernelId::kAdamW, 1e9, large) == Approx(8e-3));
  CHECK(host.Seconds(KernelId::kAdamW, 1e9, 1e8) == Approx(4e-3));
  CHECK(host.Seconds(KernelId::kAdamW, 1e9, 1e7) == Approx(4e-3));
  CHECK(host.Seconds(KernelId::kAdamW, 1e9, 2e8) == Approx(8e-3 / 1.5));
  CHECK(host.Seconds(KernelId::kNormSq, 1e8, 1e7) == Approx(1.25e-3));  // gradients come anew
  CHECK(host.BytesPerSecond() == Approx(250e9));
}

}  // namespace
}  // namespace zeroplan
