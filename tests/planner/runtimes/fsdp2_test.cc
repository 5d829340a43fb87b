#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <utility>

#include "core/base/error.h"
#include "core/families/load_model.h"
#include "core/settings/setup_facts.h"
#include "hwprofiles/loader.h"
#include "planner/runtimes/fitted.h"
#include "planner/runtimes/runtimes.h"
#include "planner/runtimes/torch_based.h"
#include "planner/runtimes/torch_timer.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/planner/runtimes/runtime_rows.h"

namespace zeroplan {
namespace {

std::string Table(const std::vector<Fsdp2Row>& rows) {
  std::string table =
      "| run: micro-batch x sequence | allocated | reserved | device |\n| --- | --- | --- | --- "
      "|\n";
  const auto cell = [](double predicted, double measured) {
    if (measured == 0) return fmt::format("{:.2f} / not known", predicted);
    return fmt::format("{:.2f} / {:.1f}, {:+.1f} %", predicted, measured,
                       100 * ShareOff(predicted, measured));
  };
  for (const Fsdp2Row& row : rows) {
    table += fmt::format("| {} | {} | {} | {} |\n", row.label,
                         cell(Gib(row.predicted.StepAllocatedBytes()), row.allocated),
                         cell(Gib(row.predicted.StepReservedBytes()), row.reserved),
                         cell(Gib(row.predicted.DeviceBytes()), row.device_used));
  }
  return table;
}

TEST_CASE("Fsdp2Footprint: each measured run's memory") {
  const std::vector<Fsdp2Row> rows = LoadFsdp2Rows();
  Errors allocated, reserved, device, host;
  for (const Fsdp2Row& row : rows) {
    CAPTURE(row.label);
    const TorchFootprint& predicted = row.predicted;
    CHECK(allocated.Add(Gib(predicted.StepAllocatedBytes()), row.allocated) < 0.10);
    CHECK(reserved.Add(Gib(predicted.StepReservedBytes()), row.reserved) < 0.12);
    CHECK(device.Add(Gib(predicted.DeviceBytes()), row.device_used) < 0.12);
    CHECK(host.Add(Gib(predicted.HostBytes()), row.host_rss) < 0.15);
    for (const TorchPeak& peak : predicted.peaks) {
      CHECK(std::accumulate(peak.class_bytes.begin(), peak.class_bytes.end(), uint64_t{0}) ==
            peak.allocated_bytes);
    }
  }
  CHECK(static_cast<int>(rows.size()) == kFsdp2Margins.runs);
  CHECK(allocated.mean() < 0.04);
  // What estimate says of itself.
  CHECK(allocated.worst == doctest::Approx(kFsdp2Margins.allocated).epsilon(0.01).scale(0));
  CHECK(reserved.worst == doctest::Approx(kFsdp2Margins.reserved).epsilon(0.01).scale(0));
  CHECK(device.worst == doctest::Approx(kFsdp2Margins.device).epsilon(0.01).scale(0));
  CHECK(host.worst == doctest::Approx(kFsdp2Margins.host).epsilon(0.01).scale(0));
}

TrainSetup Selective(int gpus) {
  TrainSetup setup;
  setup.zero.stage = 3;
  setup.precision.dtype = Dtype::kBF16;
  setup.precision.fp32_reduction = true;
  setup.recompute = kSelectiveRecompute;
  setup.batch.world_size = gpus;
  setup.batch.micro_batch = 2;
  setup.batch.seq_len = 8192;
  return setup;
}

// pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md: peak of reserved memory, GiB, of
// its per-op selective checkpointing. Nothing was fitted to them.
TEST_CASE("Fsdp2Footprint: torchtitan's published memory") {
  const ModelSpec model = LoadModel("llama3.1-8b");
  const auto reserved = [&](int gpus, bool compiled) {
    TorchPlay run;
    run.model = model;
    run.setup = Selective(gpus);
    run.recipe.compile.layers = compiled;
    return Gib(Fsdp2Footprint(run).StepReservedBytes());
  };
  CHECK(reserved(8, false) == doctest::Approx(82.4).epsilon(0.02));
  CHECK(reserved(128, true) == doctest::Approx(62.0).epsilon(0.02));
}

TEST_CASE("Fsdp2Footprint: selective recompute keeps every second product and attention") {
  const ModelSpec model = LoadModel("llama3.1-8b");
  const auto activations = [&](const RecomputeConfig& recompute, bool compiled) {
    TorchPlay run;
    run.model = model;
    run.setup = Selective(8);
    run.setup.recompute = recompute;
    run.recipe.compile.layers = compiled;
    // At the peak the last layer's backward has just begun: of the others all is kept.
    const TorchFootprint footprint = Fsdp2Footprint(run);
    const TorchPeak& peak = footprint.peaks[static_cast<size_t>(TorchPhase::kForwardBackward)];
    return static_cast<double>(peak.class_bytes[static_cast<size_t>(TorchClass::kActivations)]);
  };
  const double tokens = 2 * 8192;
  // Queries, values, attention, up (and down) in 16 bit, a fp32 sum a head.
  const double kept = 2 * (4096 + 1024 + 4096 + 14336) + 4 * 32;
  const double full = activations(FullRecompute(), false);
  for (const bool compiled : {false, true}) {
    CAPTURE(compiled);
    const double layer = tokens * (kept + (compiled ? 0 : 2 * 4096));
    const double more = activations(kSelectiveRecompute, compiled) - full;
    CHECK(more > 31 * layer * 0.999);
    CHECK(more < 32 * layer * 1.001);
  }
}

TEST_CASE("Fsdp2Footprint: selective recompute of products with biases is refused") {
  for (const char* name : {"gpt2", "qwen2.5-1.5b"}) {
    TorchPlay run;
    run.model = LoadModel(name);
    run.setup = Selective(8);
    run.setup.batch.seq_len = 1024;
    CHECK_THROWS_WITH_AS(Fsdp2Footprint(run), doctest::Contains("has biases; give none or full"),
                         Error);
  }
}

TEST_CASE("Fsdp2Footprint: fp32 shards, states after the first step, whole parameters") {
  TorchPlay run;
  run.model = LoadModel("gpt3-1.3b");  // sizes that the allocator rounds little
  run.setup.batch.world_size = 4;
  run.setup.batch.micro_batch = 8;  // logits decide
  run.setup.zero.stage = 3;
  const auto psi = static_cast<double>(run.model.ParamCount());
  const auto bytes = [psi](uint64_t value) { return static_cast<double>(value) / psi; };
  const auto optimizer = [](const TorchFootprint& footprint, TorchPhase phase) {
    return footprint.peaks[static_cast<size_t>(phase)]
        .class_bytes[static_cast<size_t>(TorchClass::kOptimizer)];
  };
  const TorchFootprint sharded = Fsdp2Footprint(run);
  CHECK(bytes(sharded.after_init_bytes) == doctest::Approx(4 / 4.0).epsilon(0.02));
  CHECK(bytes(optimizer(sharded, TorchPhase::kStep)) == doctest::Approx(12 / 4.0).epsilon(0.02));
  run.setup.zero.stage = 2;
  const TorchFootprint whole = Fsdp2Footprint(run);
  // All 16-bit parameters, in place of the root group's and a layer that is gathered ahead.
  const double layer = 12.0 * 2048 * 2048 + 13.0 * 2048;
  const double rest = psi - 24 * layer;
  CHECK(bytes(whole.StepAllocatedBytes()) - bytes(sharded.StepAllocatedBytes()) ==
        doctest::Approx(2 * (psi - rest - layer) / psi).epsilon(0.01));
  run.setup.batch.micro_batch = 1;
  run.setup.batch.seq_len = 64;  // reductions decide
  const uint64_t reduced = Fsdp2Footprint(run).StepAllocatedBytes();
  run.setup.precision.fp32_reduction = true;
  CHECK(Fsdp2Footprint(run).StepAllocatedBytes() > reduced);
}

TEST_CASE("Fsdp2Footprint: fp16 has fp32 shards and a pass of GradScaler's") {
  const HardwareProfile hardware = LoadProfile("a100-40gb-sxm");
  for (const char* name : {"gpt2-xl", "llama3.2-1b", "qwen2.5-1.5b"}) {
    CAPTURE(name);
    TorchPlay run;
    run.model = LoadModel(name);
    run.hardware = &hardware;
    run.setup.batch = {1, 1, 8, 1024};
    run.setup.zero.stage = 3;
    const TorchMachine machine(hardware, ClusterShape{8, 8});
    const auto play = [&](Dtype dtype, CodeStyle code) {
      run.setup.precision.dtype = dtype;
      run.recipe.code = code;
      TorchTimer timer(&machine, {});
      const TorchFootprint footprint =
          dynamic_cast<const TorchBased&>(Fsdp2Runtime()).Play(run, &timer);
      return std::pair(footprint, timer.Time(1)->step_seconds);
    };
    const auto [bf16, bf16_seconds] = play(Dtype::kBF16, CodeStyle::kPlain);
    const auto [fp16, fp16_seconds] = play(Dtype::kF16, CodeStyle::kPlain);
    // The same bytes; gradients are read and written once more, 8 bytes an element of the rank.
    CHECK(fp16.StepAllocatedBytes() == bf16.StepAllocatedBytes());
    const double pass =
        8 * static_cast<double>(run.model.ParamCount()) / 8 / hardware.gpu.hbm_bandwidth.value;
    CHECK(fp16_seconds > bf16_seconds + 0.9 * pass);
    CHECK(fp16_seconds < bf16_seconds + 4 * pass + 1e-3);
  }
}

TEST_CASE("Fsdp2Footprint: torchtune's shards are bf16, and GradScaler wants fp32") {
  TorchPlay run;
  run.model = LoadModel("llama3.2-1b");
  run.setup.batch = {1, 1, 8, 1024};
  run.setup.zero.stage = 3;
  const auto states = [&] {
    return static_cast<double>(Fsdp2Footprint(run)
                                   .peak(TorchPhase::kStep)
                                   .class_bytes[static_cast<size_t>(TorchClass::kOptimizer)]) /
           static_cast<double>(run.model.ParamCount());
  };
  run.recipe.code = CodeStyle::kHf;
  CHECK(states() == doctest::Approx(12 / 8.0).epsilon(0.02));
  run.recipe.code = CodeStyle::kTorchtune;
  CHECK(states() == doctest::Approx(6 / 8.0).epsilon(0.02));
  run.setup.precision.dtype = Dtype::kF16;
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { Fsdp2Footprint(run); }), "GradScaler"));
  run.recipe.param_dtype = Dtype::kF32;
  CHECK(states() == doctest::Approx(12 / 8.0).epsilon(0.02));
}

// llama-recipes' FullyShardedDataParallel in fp16 with torch.optim.AdamW's default on 8 V100 died
// in the step's square roots, with 13.76 GiB allocated, while they were being made: a layer's are
// 97 MiB of a rank, so that its parameters are fp32.
TEST_CASE("Fsdp2Footprint: fp32 masters and foreach AdamW of 7B exceed 8 V100 of 16 GB") {
  TorchPlay run;
  run.model = LoadModel("llama2-7b");
  run.recipe.code = CodeStyle::kHf;
  run.recipe.optimizer = TorchOptimizer::kAdamW;
  run.setup.batch = {1, 1, 8, 512};
  run.setup.zero.stage = 3;
  run.setup.recompute = FullRecompute();
  run.setup.precision.dtype = Dtype::kF16;
  ModelSpec one = run.model, two = run.model;
  one.layers = 1;
  two.layers = 2;
  const auto layer = static_cast<double>(two.ParamCount() - one.ParamCount());
  CHECK(4 * layer / 8 / (1 << 20) == doctest::Approx(96.5).epsilon(0.01));
  // The card has 15.77 GiB, of which the context takes a part.
  const auto in_step = [&] {
    const TorchFootprint footprint = Fsdp2Footprint(run);
    return std::pair(Gib(footprint.peak(TorchPhase::kStep).allocated_bytes),
                     Gib(footprint.context_bytes));
  };
  const auto [foreach, context] = in_step();
  run.recipe.optimizer = TorchOptimizer::kAdamWFused;
  const double fused = in_step().first;
  CHECK(fused < 13.76);
  CHECK(foreach > 15.5);
  CHECK(foreach + context > 15.77);
}

TEST_CASE("predicted.txt holds FSDP2's memory as it is predicted") {
  CheckDataHolds(Table(LoadFsdp2Rows()));
}

TEST_CASE("print predicted beside measured of FSDP2" * doctest::skip()) {
  std::fputs(Table(LoadFsdp2Rows()).c_str(), stdout);
}

}  // namespace
}  // namespace zeroplan
