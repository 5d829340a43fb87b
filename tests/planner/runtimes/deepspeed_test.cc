#include <doctest/doctest.h>

#include <numeric>

#include "core/config/reader_state.h"
#include "core/families/load_model.h"
#include "planner/runtimes/torch_model.h"
#include "tests/error_of.h"
#include "tests/planner/runtimes/runtime_rows.h"

namespace zeroplan {
namespace {

TorchPlay Run(const char* model, int stage, int gpus = 1) {
  TorchPlay run;
  run.model = LoadModel(model);
  TrainSetup& setup = run.setup;
  setup.zero = ReaderZeroDefaults(stage);
  setup.zero.overlap_comm = true;
  setup.batch.world_size = gpus;
  setup.batch.micro_batch = 1;
  setup.batch.seq_len = 256;
  return run;
}

uint64_t Sum(const TorchPeak& peak) {
  return std::accumulate(peak.class_bytes.begin(), peak.class_bytes.end(), uint64_t{0});
}

TEST_CASE("TorchModel has the parameters of each preset, in modules") {
  for (const ModelPreset& preset : ModelPresets()) {
    CAPTURE(preset.spec.name);
    // Mixtures are planned by the code of transformers.
    const TorchModel model(AsPreferred(preset.spec, {.allowed = true, .preferred = true}));
    CHECK(model.elements() == preset.spec.ParamCount());
    if (preset.spec.experts > 0) continue;
    size_t params = 0;
    for (const TorchModule& module : model.modules) params += module.params.size();
    CHECK(params == model.params.size() + (preset.spec.tied_head ? 1 : 0));
    const std::string& norm = model.modules[static_cast<size_t>(model.final_norm())].name;
    CHECK((norm == "transformer.ln_f" || norm == "model.norm"));
  }
  const TorchModel llama(LoadModel("llama3.1-8b"));
  CHECK(llama.layer_modules == 9);
  const TorchModel qwen3(LoadModel("qwen3-0.6b"));
  CHECK(qwen3.layer_modules == 11);
}

TEST_CASE(
    "DeepSpeedFootprint: every preset, stage and offload is played; classes sum to the peak") {
  for (const char* name : {"gpt2", "llama3.2-1b", "qwen2.5-0.5b", "qwen3-0.6b"}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const bool offload : {false, true}) {
        if (stage == 0 && offload) continue;
        for (const bool recompute : {false, true}) {
          for (const bool compiled : {false, true}) {
            TorchPlay run = Run(name, stage, 2);
            run.recipe.compile.layers = compiled;
            run.setup.batch.grad_accum = 2;
            if (recompute) run.setup.recompute = FullRecompute();
            if (offload) run.setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
            if (offload && stage == 3) run.setup.zero.offload_param.device = OffloadDevice::kCpu;
            CAPTURE(name);
            CAPTURE(stage);
            const TorchFootprint footprint = DeepSpeedFootprint(run);
            for (const TorchPeak& peak : footprint.peaks) {
              CHECK(peak.allocated_bytes > 0);
              CHECK(Sum(peak) == peak.allocated_bytes);
              CHECK(peak.reserved_bytes >= peak.allocated_bytes);
            }
            CHECK_FALSE(footprint.out_of_memory);
          }
        }
      }
    }
  }
}

TEST_CASE("DeepSpeedFootprint: states after initialisation by stage, bytes a parameter") {
  const auto psi = static_cast<double>(LoadModel("gpt2-xl").ParamCount());
  const auto after = [psi](const TorchPlay& run) {
    return static_cast<double>(DeepSpeedFootprint(run).after_init_bytes) / psi;
  };
  CHECK(after(Run("gpt2-xl", 0)) == doctest::Approx(14).epsilon(0.001));  // its init takes a step
  CHECK(after(Run("gpt2-xl", 1)) == doctest::Approx(6).epsilon(0.001));
  CHECK(after(Run("gpt2-xl", 2, 4)) == doctest::Approx(2 + 4 / 4.0).epsilon(0.001));
  // Stage 3 has its bucket of 5e8 from the start.
  CHECK(after(Run("gpt2-xl", 3, 4)) == doctest::Approx(8 / 4.0 + 1e9 / psi).epsilon(0.001));
}

TEST_CASE(
    "DeepSpeedFootprint: stage 1 without overlap_comm keeps whole gradients to the end of "
    "backward") {
  TorchPlay run = Run("gpt2-xl", 1, 4);
  const uint64_t whole = 2 * run.model.ParamCount();
  const auto grads = [](const TorchPlay& of) {
    return DeepSpeedFootprint(of).peaks[1].class_bytes[static_cast<size_t>(TorchClass::kGrads)];
  };
  CHECK(grads(run) < whole / 2);
  run.setup.zero.overlap_comm = false;
  CHECK(grads(run) >= whole);
}

TEST_CASE("DeepSpeedFootprint: a limit is kept by emptying the cache, or is exceeded in a phase") {
  TorchPlay run = Run("gpt2", 2);
  run.setup.batch.micro_batch = 16;
  const TorchFootprint free = DeepSpeedFootprint(run);
  run.limit_bytes = free.ReservedBytes() - 1;
  const TorchFootprint limited = DeepSpeedFootprint(run);
  CHECK_FALSE(limited.out_of_memory);
  CHECK(limited.ReservedBytes() <= *run.limit_bytes);
  run.limit_bytes = free.StepAllocatedBytes() - 1'000'000;
  CHECK(DeepSpeedFootprint(run).out_of_memory == TorchPhase::kForwardBackward);
  run.limit_bytes = free.peaks[0].allocated_bytes - 1'000'000;
  CHECK(DeepSpeedFootprint(run).out_of_memory == TorchPhase::kInit);
}

TEST_CASE("DeepSpeedFootprint: page-locked host memory in powers of two") {
  TorchPlay run = Run("gpt2-medium", 2);
  run.setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
  const TorchFootprint pinned = DeepSpeedFootprint(run);
  // Masters and gradients of 1.42 GB, 16-bit parameters of 0.71 GB, staging of 103 MB.
  CHECK(pinned.host.pinned_bytes == (uint64_t{5} << 30) + (uint64_t{128} << 20));
  CHECK(pinned.host.pageable_bytes == 8 * run.model.ParamCount());
  run.setup.zero.offload_optimizer.pin_memory = false;
  const TorchFootprint paged = DeepSpeedFootprint(run);
  CHECK(paged.host.pinned_bytes == 0);
  CHECK(paged.host.pageable_bytes > 18 * run.model.ParamCount());
}

TEST_CASE("DeepSpeedFootprint refuses what is not modelled, by name") {
  TorchPlay run = Run("gpt2", 3);
  const auto error = [&run] {
    return ErrorOf(ExitCode::kUsage, [&run] { DeepSpeedFootprint(run); });
  };
  run.setup.precision.dtype = Dtype::kF32;
  CHECK(error().find("⟦dtype⟧") != std::string::npos);
  run = Run("gpt2", 3);
  run.setup.recompute = kSelectiveRecompute;
  CHECK(error().find("⟦checkpointing⟧") != std::string::npos);
  run = Run("gpt2", 0);
  run.setup.precision.grad_accum_dtype = Dtype::kF32;
  CHECK(error().find("grad_accum_dtype") != std::string::npos);
  run = Run("gpt2", 2);
  run.setup.zero.contiguous_gradients = false;
  CHECK(error().find("contiguous_gradients") != std::string::npos);
  run = Run("gpt2", 1);
  run.setup.zero.offload_optimizer = {OffloadDevice::kCpu, 0.5};
  CHECK(error().find("stage 3") != std::string::npos);
}

}  // namespace
}  // namespace zeroplan
