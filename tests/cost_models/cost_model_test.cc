// The facade: every instruction of lowered programs has a time, and none is faster than the rates
// that bounds are made of.
#include "cost_models/cost_model.h"

#include <doctest/doctest.h>

#include <chrono>
#include <cmath>

#include "core/lowering/lower.h"
#include "core/program/collectives.h"
#include "core/program/step_order.h"
#include "cost_models/host_cost.h"
#include "cost_models/kernel_cost.h"
#include "cost_models/step_time.h"
#include "cost_models/traffic.h"
#include "hwprofiles/loader.h"
#include "tests/core/lowering/matrix.h"
#include "tests/cost_models/measured_rows.h"
#include "tests/cost_models/plain_profile.h"
#include "tests/cost_models/tiny_program.h"
#include "tests/paths.h"

namespace zeroplan {
namespace {

using doctest::Approx;

HardwareProfile Measured() {
  HardwareProfile profile =
      measured::FittedProfile(SourcePath("benchmarks/measure/results"), "h200");
  profile.network = NetworkProfile{"8 x 400 Gb/s", Number(400e9), Number(3e-6)};
  return profile;
}

// A model whose products and collectives are large enough that rates, not launches, decide.
ModelSpec LargeModel() {
  ModelSpec spec = testing::TinyModel(2);
  spec.hidden = 2048;
  spec.heads = 16;
  spec.ffn = 8192;
  spec.vocab = 50257;
  spec.padded_vocab = 50304;
  spec.positions = 1024;
  return spec;
}

struct Limits {
  const CostModel& model;
  int ranks;

  void Check(const Program& program, const Instruction& instruction) const {
    const double seconds = model.Seconds(program, instruction);
    CHECK(std::isfinite(seconds));
    CHECK(seconds >= 0);
    constexpr double kRounding = 1 + 1e-9;
    std::visit(
        Overload{[&](const LaunchKernel& launch) {
                   CHECK(seconds > 0);
                   const double bytes = LaunchBytes(program, launch);
                   if (instruction.stream == Stream::kHost) {
                     if (launch.kernel == KernelId::kConvert) return;  // no bound rests on it
                     CHECK(bytes / seconds <= model.HostBytesPerSecond() * kRounding);
                     return;
                   }
                   CHECK(bytes / seconds <= model.HbmBytesPerSecond() * kRounding);
                   const KernelRow& row = KernelInfo(launch.kernel);
                   const Dtype dtype = program.buffers[program.args(launch)[0].buffer].dtype;
                   const bool eight_bits = launch.kernel == KernelId::kFp8Matmul;
                   if (dtype != Dtype::kBF16 && dtype != Dtype::kF16 && !eight_bits) return;
                   CHECK(row.flops(launch.dims) / seconds <= model.DensePeak(dtype) * kRounding);
                 },
                 [&](const Collective& collective) {
                   const double sent = static_cast<double>(RingSentBytes(
                       collective.kind, CollectiveFullBytes(program, collective), ranks));
                   if (ranks > 1)
                     CHECK(sent / seconds <= model.CollectiveBytesPerSecond() * kRounding);
                 },
                 [&](const Copy& copy) {
                   const bool device = program.buffers[copy.src.buffer].space == Space::kDevice;
                   if (device == (program.buffers[copy.dst.buffer].space == Space::kDevice)) return;
                   CHECK(static_cast<double>(copy.src.bytes) / seconds <=
                         model.PcieBytesPerSecond() * kRounding);
                 },
                 [&](const FileIo& io) {
                   CHECK(static_cast<double>(io.host.bytes) / seconds <=
                         (io.write ? model.StorageWriteBytesPerSecond()
                                   : model.StorageReadBytesPerSecond()) *
                             kRounding);
                 },
                 [&](const Alloc&) { CHECK(seconds == 0); },
                 [&](const Free&) { CHECK(seconds == 0); },
                 [&](const RecordEvent&) { CHECK(seconds == 0); },
                 [&](const WaitEvent&) { CHECK(seconds == 0); }},
        instruction.op);
  }
};

TEST_CASE("no instruction is faster than the rates that bounds use") {
  LowerOptions options;
  options.backend = Backend::kCuda;
  for (const bool rows : {true, false}) {
    HardwareProfile profile = rows ? Measured() : PlainProfile();
    profile.gpu.dense_peaks[Dtype::kF32] = Number(67e12);
    profile.network = NetworkProfile{"plain", Number(400e9), Number(3e-6)};
    for (const ModelSpec& spec : {testing::TinyModel(), LargeModel()}) {
      for (const testing::Cell& cell : testing::AllCells({1, 4, 16}, {Dtype::kBF16}, {3})) {
        CAPTURE(cell.name);
        TrainSetup setup = cell.setup;
        if (spec.hidden > 1000) {
          if (setup.recompute != kNoRecompute) continue;  // enough programs without
          setup.batch.seq_len = 1024;
          setup.zero.reduce_bucket_elements = kAuto;
          setup.zero.sub_group_elements = 1 << 24;
        }
        const int ranks = setup.batch.world_size;
        const Program program = Lower(spec, setup, options);
        const CostModel model(profile, {ranks, 8});
        const Limits limits{model, ranks};
        for (const auto& section : program.sections) {
          for (const Instruction& instruction : section) limits.Check(program, instruction);
        }
      }
    }
  }
}

TEST_CASE("a product with GELU costs the product, its second matrix and the arithmetic") {
  HardwareProfile profile = PlainProfile();
  profile.gpu.dense_peaks[Dtype::kF32] = Number(60e12);
  const KernelCost kernels(profile.gpu, 1);
  LowerOptions options;
  options.backend = Backend::kCuda;
  TrainSetup setup = testing::BaseSetup(0, 1, Dtype::kBF16, 1, kNoRecompute);
  setup.batch.seq_len = 1024;
  const Program program = Lower(LargeModel(), setup, options);
  // A third of fp32's peak.
  const auto arithmetic = [](int64_t elements, int flops) {
    return static_cast<double>(elements * flops) / 19.8e12;
  };
  int forward = 0, backward = 0;
  for (const Instruction& instruction : program.section(Section::kMicroStep)) {
    const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
    if (launch == nullptr) continue;
    const auto [m, k, n] = FirstDims<3>(launch->dims);
    if (launch->kernel == KernelId::kMatmulGeluForward) {  // also writes y, and reads a bias
      ++forward;
      const double more = 2.0 * static_cast<double>(m * n + n);
      CHECK(kernels.Seconds(program, *launch) ==
            Approx(kernels.gemm().Seconds(GemmKind::kForward, Dtype::kBF16, m, k, n) +
                   more / kernels.memory().BytesPerSecond() + arithmetic(m * n, 9)));
    } else if (launch->kernel == KernelId::kMatmulGeluBackward) {  // also reads pre
      ++backward;
      const double more = 2.0 * static_cast<double>(m * k);
      CHECK(kernels.Seconds(program, *launch) ==
            Approx(kernels.gemm().Seconds(GemmKind::kData, Dtype::kBF16, m, k, n) +
                   more / kernels.memory().BytesPerSecond() + arithmetic(m * k, 18)));
    }
  }
  CHECK(forward == 2);
  CHECK(backward == 2);
}

// One H200, zeroplan's kernels in bf16 (cuda_kernels_benchmark --gelu, 2026-11-28): products of M
// rows and C channels to 4C forward, 4C to C and back; microseconds with and without a GELU.
struct GeluRow {
  int64_t M, C;
  double forward, gelu_forward, backward, gelu_backward;
};
constexpr GeluRow kGeluRows[] = {{2048, 256, 6.4, 7.8, 6.3, 10.4},
                                 {2048, 512, 10.0, 15.1, 10.0, 17.2},
                                 {2048, 768, 18.3, 23.5, 18.7, 27.4},
                                 {2048, 1024, 29.8, 39.1, 30.3, 37.8},
                                 {2048, 1600, 73.2, 82.6, 63.9, 82.5},
                                 {2048, 2560, 165.1, 176.8, 161.3, 178.1},
                                 {2048, 4096, 413.3, 456.0, 393.8, 436.3},
                                 {8192, 256, 12.6, 22.5, 12.1, 25.7},
                                 {8192, 512, 30.6, 49.7, 30.1, 54.6},
                                 {8192, 768, 68.6, 86.2, 63.4, 79.9},
                                 {8192, 1024, 104.0, 124.1, 101.2, 132.2},
                                 {8192, 1600, 241.1, 287.3, 242.3, 286.9},
                                 {8192, 2560, 623.2, 724.2, 609.6, 662.7},
                                 {8192, 4096, 1657.3, 1735.5, 1633.2, 1724.0},
                                 {16384, 256, 20.9, 36.6, 19.0, 47.5},
                                 {16384, 512, 56.5, 91.4, 57.9, 94.3},
                                 {16384, 768, 117.0, 159.5, 107.9, 171.5},
                                 {16384, 1024, 205.4, 273.6, 198.0, 252.9},
                                 {16384, 1600, 483.5, 586.3, 476.8, 566.2},
                                 {16384, 2560, 1253.8, 1374.6, 1248.7, 1392.3},
                                 {16384, 4096, 3219.1, 3470.6, 3207.3, 3520.7}};

TEST_CASE("what a GELU adds to a product is as an H200 shows it") {
  const GpuProfile gpu = LoadProfile("hgx-h200").gpu;
  const KernelCost kernels(gpu, 1);
  TinyProgram tiny(1, 1);
  tiny.Add("any", uint64_t{1} << 32, MemoryClass::kBuffers);
  tiny.program.buffers[0].dtype = Dtype::kBF16;
  const auto ref = [](int64_t elements) {
    return Ref{0, 0, 2 * static_cast<uint64_t>(elements), 0};
  };
  const auto seconds = [&](KernelId kernel, const KernelDims& dims,
                           std::initializer_list<Ref> args) {
    return 1e6 * kernels.Seconds(tiny.program, tiny.MakeLaunch(kernel, dims, args));
  };
  double forward_sum = 0, backward_sum = 0;
  for (const auto& [M, C, forward, gelu_forward, backward, gelu_backward] : kGeluRows) {
    CAPTURE(M);
    CAPTURE(C);
    const Ref rows = ref(M * C), weights = ref(4 * C * C), wide = ref(4 * M * C);
    const double added_forward =
        seconds(KernelId::kMatmulGeluForward, {M, C, 4 * C},
                {rows, weights, ref(4 * C), wide, wide}) -
        seconds(KernelId::kMatmulForward, {M, C, 4 * C}, {rows, weights, {}, {}, wide});
    const double added_backward =
        seconds(KernelId::kMatmulGeluBackward, {M, 4 * C, C}, {rows, weights, wide, wide}) -
        seconds(KernelId::kMatmulBackwardData, {M, 4 * C, C}, {rows, weights, wide});
    const double forward_error = (forward + added_forward) / gelu_forward - 1;
    const double backward_error = (backward + added_backward) / gelu_backward - 1;
    CHECK(std::abs(forward_error) < 0.15);
    CHECK(std::abs(backward_error) < 0.25);
    forward_sum += forward_error;
    backward_sum += backward_error;
  }
  CHECK(std::abs(forward_sum / std::size(kGeluRows)) < 0.03);
  CHECK(std::abs(backward_sum / std::size(kGeluRows)) < 0.03);
}

TEST_CASE("bytes, stream and space decide which function times an instruction") {
  HardwareProfile profile = PlainProfile();
  const CostModel model(profile, {8, 8});
  TinyProgram tiny(8, 1);
  const BufferId device = tiny.Add("device", 1 << 30, MemoryClass::kBuffers);
  const BufferId pinned = tiny.Add("pinned", 1 << 30, MemoryClass::kBuffers, Space::kPinned);
  const BufferId pageable = tiny.Add("page", 1 << 30, MemoryClass::kBuffers, Space::kPageable);
  auto copy = [&](BufferId from, BufferId to) {
    Instruction instruction;
    instruction.op = Copy{{from, 0, 1'000'000'000, 0}, {to, 0, 1'000'000'000, 0}};
    return model.Seconds(tiny.program, instruction);
  };
  CHECK(copy(pinned, device) == Approx(3.2e-6 + 1 / 20.0));
  CHECK(copy(device, pinned) == Approx(3.2e-6 + 1 / 10.0));
  CHECK(copy(pageable, device) == Approx(3.2e-6 + 1 / 20.0 + 1 / 6.25));
  CHECK(copy(device, device) == Approx(1e-6 + 2e9 / 0.885e12));
  CHECK(copy(pinned, pageable) == Approx(2 / 12.5));  // read and written, an eighth of the triad

  auto launch = [&](KernelId kernel, Stream stream, std::initializer_list<Ref> args) {
    Instruction instruction;
    instruction.op = tiny.MakeLaunch(kernel, {}, args);
    instruction.stream = stream;
    return model.Seconds(tiny.program, instruction);
  };
  // AdamW: gradient and state read; master, m, v read and written; the parameter written.
  auto adam = [&](BufferId at, Stream stream) {
    auto part = [&](uint64_t bytes) { return Ref{at, 0, bytes, 0}; };
    return launch(KernelId::kAdamW, stream,
                  {part(200'000'000), part(0), part(400'000'000), part(400'000'000),
                   part(400'000'000), part(200'000'000)});
  };
  CHECK(adam(pinned, Stream::kHost) == Approx(2.8 / 15));  // an eighth of 120 GB/s
  CHECK(adam(device, Stream::kCompute) == Approx(1e-6 + 2.8e9 / 0.885e12));
  CHECK(launch(KernelId::kFill, Stream::kHost, {{pinned, 0, 1'000'000'000, 0}}) ==
        Approx(1 / 12.5));
}

TEST_CASE("bias, residual and accumulation cost their bytes") {
  const KernelCost kernels(PlainProfile().gpu, 1);
  TinyProgram tiny(1, 1);
  tiny.Add("any", 1 << 30, MemoryClass::kBuffers);
  tiny.program.buffers[0].dtype = Dtype::kBF16;
  auto ref = [](uint64_t elements) { return Ref{0, 0, 2 * elements, 0}; };
  constexpr uint64_t kM = 4096, kK = 1024, kN = 2048;
  auto seconds = [&](KernelId kernel, uint8_t flags, std::initializer_list<Ref> args) {
    return kernels.Seconds(tiny.program, tiny.MakeLaunch(kernel, {kM, kK, kN}, args, flags));
  };
  const Ref null{};
  const double bare =
      seconds(KernelId::kMatmulForward, 0, {ref(kM * kK), ref(kK * kN), null, null, ref(kM * kN)});
  CHECK(bare == kernels.gemm().Seconds(GemmKind::kForward, Dtype::kBF16, kM, kK, kN));
  const double bandwidth = 0.885e12;
  CHECK(seconds(KernelId::kMatmulForward, 0,
                {ref(kM * kK), ref(kK * kN), ref(kN), ref(kM * kN), ref(kM * kN)}) ==
        Approx(bare + 2.0 * (kN + kM * kN) / bandwidth));
  const auto weight = {ref(kM * kK), ref(kM * kN), ref(kK * kN), null};
  CHECK(seconds(KernelId::kMatmulBackwardWeight, kAccumulate, weight) ==
        Approx(seconds(KernelId::kMatmulBackwardWeight, 0, weight) + 2.0 * kK * kN / bandwidth));
}

TEST_CASE("attention within documents costs by the keys that a token sees, and by its kernels") {
  ModelSpec model = LargeModel();
  model.positions = 4096;
  TrainSetup setup;
  setup.batch = {.micro_batch = 2, .seq_len = 4096};
  setup.precision.dtype = setup.precision.grad_accum_dtype = Dtype::kBF16;
  const CostModel costs(PlainProfile(), ClusterShape{1, 1});
  LowerOptions options{.backend = Backend::kCuda, .document_borders = true};
  const auto seconds = [&](double keys, bool own) {
    options.visible_keys = keys;
    options.own_documents = own;
    // One model times both, so that its cache has to tell them apart.
    return StepTimer(costs).Time(Lower(model, setup, options)).total_seconds;
  };
  const double whole = seconds(0, false), brief = seconds(50, false);
  CHECK(brief < whole);
  CHECK(seconds(2048.5, false) == Approx(whole));
  CHECK(seconds(0, true) > whole);
  CHECK(seconds(50, true) < seconds(0, true));
  CHECK(seconds(50, false) == brief);
}

TEST_CASE("light states on a host save less time than bytes") {
  CHECK(HostUpdateWork(Dtype::kF32, Dtype::kF32) == 1);
  for (const Dtype master : {Dtype::kF32, Dtype::kI16, Dtype::kBF16, Dtype::kF16}) {
    const double fp32 = HostUpdateWork(master, Dtype::kF32);
    const double bf16 = HostUpdateWork(master, Dtype::kBF16);
    const double bytes = HostUpdateWork(master, Dtype::kDynamic8);
    CHECK(fp32 >= 1);
    CHECK(bf16 > fp32);
    CHECK(bytes > bf16);
  }
  // A host's own rows: seconds of 1e9 parameters over those of their bytes, 14.1 each.
  HardwareProfile profile = LoadProfile("hgx-h200");
  const double bytes_seconds = 1e9 * 14.1 / profile.node.adam_bandwidth->value;
  profile.node.light_updates.emplace();
  profile.node.light_updates->rows = {{Dtype::kI16, Dtype::kDynamic8, 1.5 * bytes_seconds}};
  const HostCost host(profile, 4);
  CHECK(host.UpdateWork(Dtype::kI16, Dtype::kDynamic8) == Approx(1.5));
  CHECK(host.UpdateWork(Dtype::kI16, Dtype::kBF16) == HostUpdateWork(Dtype::kI16, Dtype::kBF16));
  CHECK(host.UpdateWork(Dtype::kF32, Dtype::kF32) == 1);
  // 14 bytes of 28: not twice as fast, but faster.
  CHECK(HostUpdateWork(Dtype::kBF16, Dtype::kBF16) * 14 < 28);
}

TEST_CASE("overlap comes from the profile, or from what was measured on 2 GPUs") {
  HardwareProfile profile = PlainProfile();
  CHECK(CostModel(profile, {8, 8}).overlap().pcie_both == Approx(25.0 / 30));
  CHECK(CostModel(profile, {1, 8}).overlap().compute_beside_collective == 1);
  CHECK(CostModel(profile, {1, 8}).overlap().collective_beside_compute == Approx(0.66));
  profile.node.overlapped_compute = Number(0.9);
  profile.node.overlapped_collective = Number(0.5);
  CHECK(CostModel(profile, {1, 8}).overlap().compute_beside_collective == Approx(0.9));
  CHECK(CostModel(profile, {1, 8}).overlap().collective_beside_compute == Approx(0.5));
}

TEST_CASE("a rank of the CPU runs one instruction after another") {
  HardwareProfile profile = PlainProfile();
  profile.network = NetworkProfile{"plain", Number(1e9), Number(1e-6)};
  profile.gpu.dense_peaks[Dtype::kF32] = Number(100e12);
  profile.gpu.architecture = "cpu";
  const CostModel costs(profile, {4, 2});
  TrainSetup setup;
  setup.zero.stage = 3;
  setup.zero.shard_group = 2;
  setup.batch = {.micro_batch = 1, .grad_accum = 2, .world_size = 4, .seq_len = 16};
  setup.precision.dtype = setup.precision.grad_accum_dtype = Dtype::kF32;
  const Program program = Lower(testing::TinyModel(2), setup, {});
  const StepTime time = StepTimer(costs).Time(program);
  // All that any stream does, since nothing is hidden behind anything.
  double sum = 0;
  for (const double busy : time.by_stream.busy_seconds) sum += busy;
  CHECK(sum > 0);
  CHECK(time.total_seconds == Approx(time.compute_seconds + time.exposed_comm_seconds +
                                     time.exposed_offload_seconds + time.optimizer_seconds));
  double alone = 0;
  SectionCosts section;
  for (const auto& [of, times] :
       {std::pair{Section::kMicroStep, 2}, {Section::kOptimizerStep, 1}}) {
    FindSectionCosts(costs, program, of, &section);
    for (size_t i = 0; i < section.seconds.size(); ++i) {
      const Instruction& instruction = program.section(of)[i];
      if (of == Section::kMicroStep) {
        for (const When kind : {kFirst, kLast}) {
          if (RunsIn(instruction, of, kind)) alone += section.seconds[i];
        }
      } else {
        alone += times * section.seconds[i];
      }
    }
  }
  CHECK(time.total_seconds == Approx(alone).epsilon(0.02));
}

}  // namespace
}  // namespace zeroplan
