// What DeepSpeed's optimizer holds where it is not FusedAdam over fp32 masters: light states,
// optimizers of the program's own, files on NVMe.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "core/config/reader_state.h"
#include "core/families/load_model.h"
#include "hwprofiles/loader.h"
#include "planner/runtimes/deepspeed_engine.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/planner/runtimes/runtime_rows.h"
#include "tests/wordings/planner.h"

namespace zeroplan {
namespace {

TorchPlay Of(int stage, const char* model = "gpt2") {
  TorchPlay run;
  run.model = LoadModel(model);
  run.setup.zero = ReaderZeroDefaults(stage);
  run.setup.zero.overlap_comm = true;
  run.setup.batch.world_size = 2;
  run.setup.batch.micro_batch = 1;
  run.setup.batch.seq_len = 256;
  return run;
}

TorchPlay Light(TorchPlay run, bool states = true) {
  run.setup.precision.master_weights = MasterWeights::kParam;
  run.setup.precision.moment_dtype = states ? Dtype::kBF16 : Dtype::kF32;
  return run;
}

TorchPlay OnHost(TorchPlay run) {
  run.setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
  return run;
}

// Bytes of `kind` at the peak of forward and backward, per parameter of a rank.
double DeepSpeedPerParam(const TorchPlay& run, TorchClass kind) {
  const TorchFootprint footprint = DeepSpeedFootprint(run);
  const auto bytes = static_cast<double>(
      footprint.peak(TorchPhase::kForwardBackward).class_bytes[static_cast<size_t>(kind)]);
  return bytes * run.setup.batch.world_size / static_cast<double>(run.model.ParamCount());
}

double PageablePerParam(const TorchPlay& run) {
  return static_cast<double>(DeepSpeedFootprint(run).host.pageable_bytes) *
         run.setup.batch.world_size / static_cast<double>(run.model.ParamCount());
}

TEST_CASE("DeepSpeed light states: masters and states in bf16") {
  for (const int stage : {1, 2, 3}) {
    CAPTURE(stage);
    CHECK(DeepSpeedPerParam(Of(stage), TorchClass::kOptimizer) ==
          doctest::Approx(12).epsilon(0.01));
    CHECK(DeepSpeedPerParam(Light(Of(stage)), TorchClass::kOptimizer) ==
          doctest::Approx(6).epsilon(0.01));
  }
  // A step without fp32 gradients.
  const auto step = [](const TorchPlay& run) {
    return DeepSpeedFootprint(run).peak(TorchPhase::kStep).allocated_bytes;
  };
  const TorchPlay plain = Of(2, "gpt2-large");
  const uint64_t saved = step(plain) - step(Light(plain));
  CHECK(static_cast<double>(saved) ==
        doctest::Approx(10 * static_cast<double>(plain.model.ParamCount() / 2)).epsilon(0.02));
}

TEST_CASE("DeepSpeed light masters on the host: states in fp32, unless these are light too") {
  for (const int stage : {2, 3}) {
    CAPTURE(stage);
    const double masters = stage == 3 ? 4 : 0;  // clones, pageable
    CHECK(PageablePerParam(OnHost(Of(stage))) == doctest::Approx(masters + 8).epsilon(0.02));
    const double light = stage == 3 ? 2 : 0;
    CHECK(PageablePerParam(Light(OnHost(Of(stage)), false)) ==
          doctest::Approx(light + 8).epsilon(0.02));
    CHECK(PageablePerParam(Light(OnHost(Of(stage)))) == doctest::Approx(light + 4).epsilon(0.02));
    CHECK(DeepSpeedFootprint(Light(OnHost(Of(stage)))).host.pinned_bytes <
          DeepSpeedFootprint(OnHost(Of(stage))).host.pinned_bytes);
  }
}

TEST_CASE("DeepSpeed with an optimizer of the program's own") {
  for (const int stage : {1, 2, 3}) {
    CAPTURE(stage);
    TorchPlay run = Of(stage);
    const TorchFootprint own = DeepSpeedFootprint(run);
    run.recipe.optimizer = TorchOptimizer::kAdamWFused;
    CHECK(DeepSpeedFootprint(run) == own);
    // A partition is one tensor, of no module: no embedding's states are fp32.
    run.recipe.optimizer = TorchOptimizer::kAdamW8bit;
    CHECK(DeepSpeedPerParam(run, TorchClass::kOptimizer) ==
          doctest::Approx(4 + 2 + 8.0 / 256).epsilon(0.01));
  }
  // A list as large as a state, where 16-bit gradients and their flat copy were before.
  TorchPlay run = Of(2, "gpt2-large");
  const auto step = [&run] {
    return static_cast<double>(DeepSpeedFootprint(run).peak(TorchPhase::kStep).allocated_bytes);
  };
  const double own = step();
  run.recipe.optimizer = TorchOptimizer::kAdamW;
  CHECK(step() == own);
}

TEST_CASE("DeepSpeed refuses optimizers that it does not take, by name") {
  const auto error = [](const TorchPlay& run) {
    return ErrorOf(ExitCode::kUsage, [&run] { DeepSpeedFootprint(run); });
  };
  TorchPlay run = Of(0);
  run.recipe.optimizer = TorchOptimizer::kAdafactor;
  CHECK(Has(error(run), "FP16_UnfusedOptimizer"));
  run.setup.zero = OnHost(Of(2)).setup.zero;
  CHECK(Has(error(run), wording::kZeroForceDsCpuOptimizer));
  run = Of(2);
  run.recipe.param_dtype = Dtype::kBF16;
  CHECK(Has(error(run), wording::kBfMasterWeightsAndGrads));
  run = Of(2);
  run.recipe.optimizer_in_backward = true;
  CHECK(Has(error(run), "⟦optimizer_in_backward⟧"));
}

TorchPlay InFiles(uint64_t sub_group = 20'000'000) {
  TorchPlay run = Of(3);
  run.setup.zero.sub_group_elements = sub_group;
  run.setup.zero.offload_optimizer.device = OffloadDevice::kNvme;
  return run;
}

TEST_CASE("DeepSpeed NVMe: buffers of the largest sub-group, and files of all that it swaps") {
  const TorchPlay run = InFiles();
  const TorchFootprint files = DeepSpeedFootprint(run);
  const uint64_t partition = run.model.ParamCount() / 2;
  // Masters, gradients and two states.
  CHECK(static_cast<double>(files.file_bytes) ==
        doctest::Approx(16.0 * static_cast<double>(partition)).epsilon(0.001));
  CHECK(files.host.pageable_bytes < DeepSpeedFootprint(OnHost(run)).host.pageable_bytes);
  // Four buffers, beside the 16-bit gradients in a power of two.
  const uint64_t pinned = files.host.pinned_bytes - PinnedBlockBytes(2 * partition);
  CHECK(pinned >= 4 * 4 * run.setup.zero.sub_group_elements);
  CHECK(pinned < 4 * 4 * (run.setup.zero.sub_group_elements + 20'000'000));
  TorchPlay larger = run;
  larger.setup.zero.offload_optimizer.buffer_count = 8;
  CHECK(DeepSpeedFootprint(larger).host.pinned_bytes - files.host.pinned_bytes == pinned);
}

TEST_CASE("DeepSpeed NVMe: parameters in files, but for what max_in_cpu holds") {
  TorchPlay run = InFiles();
  run.setup.zero.offload_param.device = OffloadDevice::kNvme;
  run.setup.zero.offload_param.max_in_cpu_elements = 0;
  run.setup.zero.offload_param.buffer_elements = 20'000'000;
  const uint64_t with_none = DeepSpeedFootprint(run).host.pinned_bytes;
  CHECK(DeepSpeedFootprint(run).file_bytes > DeepSpeedFootprint(InFiles()).file_bytes);
  // Five buffers of parameters' shards, and one of a sub-group on its way out.
  CHECK(with_none - DeepSpeedFootprint(InFiles()).host.pinned_bytes >=
        5 * 2 * run.setup.zero.offload_param.buffer_elements);
  run.setup.zero.offload_param.max_in_cpu_elements = 1'000'000'000;
  CHECK(DeepSpeedFootprint(run).host.pinned_bytes > with_none);
}

TEST_CASE("DeepSpeed NVMe: what it asserts") {
  const auto error = [](const TorchPlay& run) {
    return ErrorOf(ExitCode::kUsage, [&run] { DeepSpeedFootprint(run); });
  };
  TorchPlay run = InFiles();
  run.setup.zero.offload_optimizer.pipeline_read = true;
  CHECK(Has(error(run), "buffer_count 4"));
  CHECK(Has(error(run), "use 8"));
  run.setup.zero.sub_group_elements = 1'000'000'000;
  CHECK_NOTHROW(DeepSpeedFootprint(run));
  run.setup.zero.stage = 2;
  CHECK(Has(error(run), "stage 3"));
}

TEST_CASE("DeepSpeed NVMe: a buffer holds a GPU's part of the largest parameter") {
  TorchPlay run = InFiles();
  CHECK(LargestFilePart(run.model, run.setup) == 0);  // no parameter is in a file
  run.setup.zero.offload_param.device = OffloadDevice::kNvme;
  for (const int ranks : {1, 3, 8}) {
    CAPTURE(ranks);
    run.setup.batch.world_size = ranks;
    const auto count = static_cast<uint64_t>(ranks);
    uint64_t largest = 0;
    for (const TorchParam& param : TorchModel(run.model).params) {
      largest = std::max(largest, param.elements);
    }
    const uint64_t part = (largest + count - 1) / count;
    CHECK(LargestFilePart(run.model, run.setup) == part);
    uint64_t& size = run.setup.zero.offload_param.buffer_elements;
    size = part;
    CHECK(ParamBufferProblem(run.model, run.setup).empty());
    size = part - 1;
    CHECK(Has(ParamBufferProblem(run.model, run.setup),
              "More elements " + std::to_string(part) + " than buffer size"));
    CHECK(Has(ErrorOf(ExitCode::kUsage, [&run] { DeepSpeedFootprint(run); }), "buffer_size"));
    FitParamBuffers(run.model, run.setup);
    CHECK(size == part);
  }
  // A part that is smaller than 1 MiB is in no file.
  run.setup.batch.world_size = 4096;
  run.setup.zero.offload_param.buffer_elements = 0;
  CHECK(ParamBufferProblem(run.model, run.setup).empty());
}

TEST_CASE("DeepSpeed NVMe: a step waits for files, less with pipeline_read and pipeline_write") {
  HardwareProfile hardware = LoadProfile("hgx-h200");
  const ClusterShape shape{2, 2};
  const TorchMachine machine(hardware, shape);
  const auto seconds = [&machine](const TorchPlay& run) {
    TorchTimer timer(&machine, {});
    DeepSpeedFootprint(run, &timer);
    return timer.Time(1)->step_seconds;
  };
  TorchPlay run = InFiles();
  const double waits = seconds(run);
  CHECK(waits > 1.2 * seconds(OnHost(run)));
  run.setup.zero.offload_optimizer.buffer_count = 12;
  run.setup.zero.offload_optimizer.pipeline_read = true;
  const double ahead = seconds(run);
  CHECK(ahead < waits);
  run.setup.zero.offload_optimizer.pipeline_write = true;
  CHECK(seconds(run) < ahead);
  run.setup.zero.offload_param.device = OffloadDevice::kNvme;
  run.setup.zero.offload_param.max_in_cpu_elements = 0;
  CHECK(seconds(run) > ahead);
}

}  // namespace
}  // namespace zeroplan
