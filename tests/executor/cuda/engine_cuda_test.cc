// The CUDA engine beside the CPU one on the same programs, one rank: same losses, norms and
// gradients (what a lost one would change: tests/executor/engine/lost_gradient_test.cc), no byte
// outside the plan.
#include <doctest/doctest.h>

#include <algorithm>

#include "core/families/olmoe/olmoe.h"
#include "core/families/qwen2_moe/qwen2_moe.h"
#include "tests/core/families/llama/tiny_llama.h"
#include "tests/core/families/tiny_mixture.h"
#include "tests/core/model/with_lora.h"
#include "tests/executor/engine/small_training.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

using namespace small_training;

// fp32: other orders of sums in products, attention and norms, grown by three optimizer steps.
// 16 bit: roundings of 2^-8 in every activation, on both sides at other places.
double Tolerance(Dtype dtype) { return dtype == Dtype::kF32 ? 3e-4 : 2e-2; }

struct Choice {
  const char* name;
  int stage = 0;
  int64_t grad_accum = 2;
  OffloadDevice optimizer = OffloadDevice::kNone;
  double ratio = 1.0;
  OffloadDevice param = OffloadDevice::kNone;
  RecomputeConfig recompute = kNoRecompute;
  bool pin_memory = true;
  bool flash_attention = true;
};

TrainSetup SetupOf(const Choice& choice, Dtype dtype, const std::string& swap_dir) {
  TrainSetup setup = Setup(choice.stage, 1, choice.grad_accum);
  setup.batch.micro_batch = 2;
  setup.precision.dtype = dtype;
  setup.precision.grad_accum_dtype = dtype;
  setup.zero.offload_optimizer.device = choice.optimizer;
  setup.zero.offload_optimizer.ratio = choice.ratio;
  setup.zero.offload_optimizer.nvme_path = swap_dir;
  setup.zero.offload_optimizer.pin_memory = choice.pin_memory;
  setup.zero.offload_param.device = choice.param;
  setup.zero.offload_param.nvme_path = swap_dir;
  setup.zero.offload_param.pin_memory = choice.pin_memory;
  setup.zero.sub_group_elements = 4096;  // several pieces a unit
  setup.recompute = choice.recompute;
  return setup;
}

const Choice kChoices[] = {
    {.name = "stage 0"},
    {.name = "stage 0, one micro-step", .grad_accum = 1},
    {.name = "stage 0, three micro-steps", .grad_accum = 3},
    {.name = "stage 0, recompute", .recompute = FullRecompute()},
    {.name = "stage 0, selective recompute", .recompute = kSelectiveRecompute},
    {.name = "stage 0, unfused attention", .flash_attention = false},
    {.name = "stage 0, unfused attention, selective recompute",
     .recompute = kSelectiveRecompute,
     .flash_attention = false},
    {.name = "stage 1", .stage = 1},
    {.name = "stage 2", .stage = 2},
    {.name = "stage 3", .stage = 3},
    {.name = "stage 1, optimizer on cpu", .stage = 1, .optimizer = OffloadDevice::kCpu},
    {.name = "stage 2, optimizer on cpu", .stage = 2, .optimizer = OffloadDevice::kCpu},
    {.name = "stage 2, one micro-step, optimizer on cpu",
     .stage = 2,
     .grad_accum = 1,
     .optimizer = OffloadDevice::kCpu},
    {.name = "stage 2, half the optimizer on cpu, recompute",
     .stage = 2,
     .optimizer = OffloadDevice::kCpu,
     .ratio = 0.5,
     .recompute = FullRecompute()},
    {.name = "stage 3, both on cpu, selective recompute",
     .stage = 3,
     .optimizer = OffloadDevice::kCpu,
     .param = OffloadDevice::kCpu,
     .recompute = kSelectiveRecompute},
    {.name = "stage 2, optimizer on cpu, pageable",
     .stage = 2,
     .optimizer = OffloadDevice::kCpu,
     .pin_memory = false},
    {.name = "stage 2, optimizer on nvme", .stage = 2, .optimizer = OffloadDevice::kNvme},
    {.name = "stage 3, optimizer on cpu", .stage = 3, .optimizer = OffloadDevice::kCpu},
    {.name = "stage 3, parameters on cpu", .stage = 3, .param = OffloadDevice::kCpu},
    {.name = "stage 3, parameters on cpu, pageable",
     .stage = 3,
     .param = OffloadDevice::kCpu,
     .pin_memory = false},
    {.name = "stage 3, both on cpu",
     .stage = 3,
     .optimizer = OffloadDevice::kCpu,
     .param = OffloadDevice::kCpu},
    {.name = "stage 3, both on nvme",
     .stage = 3,
     .optimizer = OffloadDevice::kNvme,
     .param = OffloadDevice::kNvme},
};

LowerOptions CudaLowering(const Choice& choice) {
  LowerOptions lower;
  lower.backend = Backend::kCuda;
  lower.flash_attention = choice.flash_attention;
  lower.logits_chunk_bytes = 2000;  // several chunks, the last one smaller
  return lower;
}

void CheckAlike(const Outcome& outcome, const Outcome& control, Dtype dtype) {
  const double tolerance = Tolerance(dtype);
  for (size_t step = 0; step < kSteps; ++step) {
    CAPTURE(step);
    CHECK(outcome.steps[step].loss_sum ==
          doctest::Approx(control.steps[step].loss_sum).epsilon(tolerance));
    CHECK(static_cast<double>(outcome.steps[step].grad_norm) ==
          doctest::Approx(static_cast<double>(control.steps[step].grad_norm))
              .epsilon(10 * tolerance));
    CHECK(outcome.steps[step].step == control.steps[step].step);
    CHECK(outcome.steps[step].skip == 0);
  }
  CHECK(outcome.eval_loss == doctest::Approx(control.eval_loss).epsilon(tolerance));
  CHECK(testing::FarthestTensor(outcome.moments, control.moments) < MomentTolerance(dtype));
}

TEST_CASE("cuda engine: every choice trains as on the CPU, within its plan") {
  const TempDir dir;
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
    for (const Choice& choice : kChoices) {
      INFO("dtype: ", std::string(DtypeName(dtype)));
      INFO("choice: ", std::string(choice.name));
      const TrainSetup setup = SetupOf(choice, dtype, dir.path());
      const LowerOptions lower = CudaLowering(choice);
      EngineOptions options;
      options.swap_dir = dir.path();
      const Outcome control = Train(setup, options, lower);
      options.backend = Backend::kCuda;
      const Outcome outcome = Train(setup, options, lower);
      CheckAlike(outcome, control, dtype);
      CHECK(outcome.touched == control.touched);
    }
  }
}

TEST_CASE("cuda engine: adapters train as on the CPU, within their plan") {
  const TempDir dir;
  ModelSpec llama = testing::TinyLlama(Llama());
  llama.vocab = 60;
  llama.padded_vocab = 64;
  llama.positions = 16;
  for (const ModelSpec& model : {testing::WithLora(SmallModel(), "all-linear", 8),
                                 testing::WithLora(llama, "q_proj,v_proj,up_proj", 8),
                                 testing::WithDropout(testing::WithLora(llama, "all-linear", 8)),
                                 testing::WithQlora(llama, "all-linear", 8)}) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      for (const Choice& choice : kChoices) {
        INFO("targets: ", model.lora_targets);
        INFO("in NF4: ", model.lora_quantized);
        INFO("dtype: ", std::string(DtypeName(dtype)));
        INFO("choice: ", std::string(choice.name));
        const Program program =
            Lower(model, SetupOf(choice, dtype, dir.path()), CudaLowering(choice));
        VerifyOrThrow(program);
        EngineOptions options;
        options.swap_dir = dir.path();
        const Outcome control = Train(program, options);
        options.backend = Backend::kCuda;
        const Outcome outcome = Train(program, options);
        const double tolerance = Tolerance(dtype);
        for (size_t step = 0; step < kSteps; ++step) {
          CHECK(outcome.steps[step].loss_sum ==
                doctest::Approx(control.steps[step].loss_sum).epsilon(tolerance));
          CHECK(static_cast<double>(outcome.steps[step].grad_norm) ==
                doctest::Approx(static_cast<double>(control.steps[step].grad_norm))
                    .epsilon(10 * tolerance));
        }
        CHECK(outcome.eval_loss == doctest::Approx(control.eval_loss).epsilon(tolerance));
        CHECK(outcome.touched == control.touched);
      }
    }
  }
}

// A mixture whose kernels take 16-byte accesses and Hopper's matrix instructions.
ModelSpec SmallMixture(const ModelFamily& family) {
  ModelSpec model = testing::TinyMixture(family);
  model.hidden = 32;
  model.heads = 4;
  model.ffn = model.expert_ffn > 0 ? 40 : 24;
  if (model.expert_ffn > 0) model.expert_ffn = 24;
  if (model.shared_ffn > 0) model.shared_ffn = 32;
  model.vocab = 60;
  model.padded_vocab = 64;
  model.positions = 16;
  model.router_aux_loss = 0.02f;
  model.router_z_loss = 0.001f;
  return model;
}

TEST_CASE("cuda engine: mixtures of experts train as on the CPU, within their plan") {
  const TempDir dir;
  for (const ModelFamily* family : {&Qwen2Moe(), &Olmoe()}) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      ModelSpec model = SmallMixture(*family);
      // In 16 bits the backends round at other places and choose otherwise where weights are close.
      if (dtype != Dtype::kF32) model.experts_per_token = model.experts;
      for (const Choice& choice : kChoices) {
        INFO("family: ", std::string(family->name()));
        INFO("dtype: ", std::string(DtypeName(dtype)));
        INFO("choice: ", std::string(choice.name));
        const Program program =
            Lower(model, SetupOf(choice, dtype, dir.path()), CudaLowering(choice));
        VerifyOrThrow(program);
        EngineOptions options;
        options.swap_dir = dir.path();
        const Outcome control = Train(program, options);
        options.backend = Backend::kCuda;
        options.pattern_arenas = true;
        const Outcome outcome = Train(program, options);
        CheckAlike(outcome, control, dtype);
        CHECK(outcome.touched == control.touched);
      }
    }
  }
}

TEST_CASE(
    "cuda engine: mixtures of experts give the same bits twice, replayed and computed again") {
  for (const ModelFamily* family : {&Qwen2Moe(), &Olmoe()}) {
    const ModelSpec model = SmallMixture(*family);
    std::vector<double> first;
    for (const RecomputeConfig& recompute : {kNoRecompute, kSelectiveRecompute, FullRecompute()}) {
      for (const bool trace : {false, true}) {
        const Choice choice{.name = "", .recompute = recompute};
        const Program program =
            Lower(model, SetupOf(choice, Dtype::kBF16, ""), CudaLowering(choice));
        EngineOptions options;
        options.backend = Backend::kCuda;
        options.deterministic = true;
        options.record_trace = trace;  // steps are not replayed then
        Engine engine(program, options);
        engine.Init();
        std::vector<double> found;
        for (int step = 0; step < 8; ++step) {
          found.push_back(engine.Step(CountingBatch{1}).loss_sum);
          for (const double total : engine.RouterTotals()) found.push_back(total);
        }
        if (first.empty()) first = found;
        CHECK(found == first);
      }
    }
  }
}

// Steps after the third replay graphs, but not where a trace is recorded.
TEST_CASE("cuda engine: replayed steps give the bits of those that are launched one by one") {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
    for (const int64_t grad_accum : {1, 3}) {
      INFO("dtype: ", std::string(DtypeName(dtype)));
      CAPTURE(grad_accum);
      const TrainSetup setup = SetupOf({.name = "", .grad_accum = grad_accum}, dtype, "");
      const Program program = Lower(SmallModel(), setup, CudaLowering({.name = ""}));
      EngineOptions options;
      options.backend = Backend::kCuda;
      options.deterministic = true;
      Engine replaying(program, options);
      options.record_trace = true;
      Engine launching(program, options);
      replaying.Init();
      launching.Init();
      const CountingBatch batch{1};
      for (int step = 0; step < 8; ++step) {
        CAPTURE(step);
        const StepState a = replaying.Step(batch), b = launching.Step(batch);
        CHECK(a.loss_sum == b.loss_sum);
        CHECK(a.grad_norm == b.grad_norm);
        CHECK(a.step == step + 1);
        if (step == 4) CHECK(replaying.Evaluate(batch) == launching.Evaluate(batch));
      }
    }
  }
}

TEST_CASE("cuda engine: the same run twice gives the same bits") {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
    const TrainSetup setup = SetupOf(kChoices[0], dtype, "");
    EngineOptions options;
    options.backend = Backend::kCuda;
    options.deterministic = true;
    const Outcome first = Train(setup, options, CudaLowering(kChoices[0]));
    const Outcome second = Train(setup, options, CudaLowering(kChoices[0]));
    for (size_t step = 0; step < kSteps; ++step) {
      CHECK(first.steps[step].loss_sum == second.steps[step].loss_sum);
      CHECK(first.steps[step].grad_norm == second.steps[step].grad_norm);
    }
  }
}

TEST_CASE("cuda engine: nothing above the touched bytes is written") {
  const TempDir dir;
  for (const Choice& choice : kChoices) {
    INFO("choice: ", std::string(choice.name));
    const Program program =
        Lower(SmallModel(), SetupOf(choice, Dtype::kBF16, dir.path()), CudaLowering(choice));
    EngineOptions options;
    options.backend = Backend::kCuda;
    options.swap_dir = dir.path();
    options.pattern_arenas = true;
    Engine engine(program, options);
    engine.Init();
    for (int step = 0; step < 2; ++step) engine.Step(CountingBatch{1});
    engine.Evaluate(CountingBatch{1});
    const auto written = engine.PatternHighWater();
    const auto touched = engine.high_water().touched_bytes;
    for (size_t space = 0; space < kSpaces; ++space) {
      CAPTURE(space);
      CHECK(written[space] <= touched[space]);
      CHECK(touched[space] <= program.arena_bytes[space]);
    }
  }
}

TEST_CASE("cuda engine: a saved run goes on with the same bits") {
  const TempDir dir;
  for (const Choice& choice : kChoices) {
    INFO("choice: ", std::string(choice.name));
    const Program program =
        Lower(SmallModel(), SetupOf(choice, Dtype::kBF16, dir.path()), CudaLowering(choice));
    EngineOptions options;
    options.backend = Backend::kCuda;
    options.deterministic = true;
    options.swap_dir = dir.path();
    testing::MemoryState saved(program.layout);
    StepState at_save, expected;
    {
      Engine engine(program, options);
      engine.Init();
      engine.Step(CountingBatch{1});
      StateSink* sinks[] = {&saved};
      engine.Save(sinks);
      at_save = engine.state();
      expected = engine.Step(CountingBatch{1});
    }
    options.seed = 99;  // other weights, which loading replaces
    Engine engine(program, options);
    engine.Init();
    engine.Load(saved, true, &at_save);
    const StepState resumed = engine.Step(CountingBatch{1});
    CHECK(resumed.loss_sum == expected.loss_sum);
    CHECK(resumed.grad_norm == expected.grad_norm);
    CHECK(resumed.step == expected.step);
  }
}

}  // namespace
}  // namespace zeroplan
