// What Python does at stage 3, beside counts of DeepSpeed's own code.
#include <doctest/doctest.h>

#include <array>

#include "core/config/reader_state.h"
#include "core/families/load_model.h"
#include "planner/runtimes/deepspeed_engine.h"
#include "planner/runtimes/torch_based.h"

namespace zeroplan {
namespace {

struct Counts {
  std::array<int64_t, kPythonCalls> of{};
  int64_t operator[](PythonCall call) const { return of[static_cast<size_t>(call)]; }
};

Counts Of(const TorchTimer& timer) {
  Counts counts;
  for (size_t i = 0; i < kPythonCalls; ++i) counts.of[i] = timer.calls(static_cast<PythonCall>(i));
  return counts;
}

Counts Between(const Counts& begin, const Counts& end) {
  Counts counts;
  for (size_t i = 0; i < kPythonCalls; ++i) counts.of[i] = end.of[i] - begin.of[i];
  return counts;
}

struct Step {
  Counts forward, backward, update;  // of the third step's last micro-step
};

// GPT-2 of `layers` and `hidden`, made 1/32 as wide, with 1/32 of the vocabulary and the positions,
// and keys of 1/1024: what is a parameter's share of a bucket stays as it is.
Step Play(int layers, int hidden, bool recompute, int micro_steps) {
  constexpr int64_t kScale = 32, kSquare = kScale * kScale;
  ModelSpec spec = LoadModel("gpt2");
  spec.layers = layers;
  spec.hidden = hidden / kScale;
  spec.ffn = 4 * spec.hidden;
  spec.heads = spec.hidden / 4;
  spec.vocab = spec.padded_vocab = 50304 / kScale;
  spec.positions = 1024 / kScale;
  TrainSetup setup;
  setup.zero = ReaderZeroDefaults(3);
  setup.zero.overlap_comm = true;
  setup.zero.reduce_bucket_elements = 500'000'000 / kSquare;
  setup.zero.prefetch_bucket_elements = 50'000'000 / kSquare;
  setup.zero.max_live_parameters = 1'000'000'000 / kSquare;
  setup.zero.max_reuse_distance = 1'000'000'000 / kSquare;
  setup.zero.param_persistence_threshold = 1000;
  setup.batch.world_size = 2;
  setup.batch.micro_batch = 1;
  setup.batch.seq_len = spec.positions;
  setup.batch.grad_accum = micro_steps;
  if (recompute) setup.recompute = FullRecompute();
  const TorchModel model(spec);
  const TorchRun run = TorchRunOf(setup, {});
  TorchMemory memory;
  TorchTimer timer(nullptr, TimeConstants{});
  const std::unique_ptr<TorchRuntime> engine =
      MakeStage3(model, {spec, setup, {}}, &memory, &timer);
  engine->Init();
  TorchStep step(model, run, &memory, engine.get(), &timer);
  Step played;
  for (int i = 0; i < 3; ++i) {
    for (int micro = 0; micro < micro_steps; ++micro) {
      const Counts begin = Of(timer);
      engine->BeginMicroStep(micro + 1 == micro_steps);
      step.Forward();
      const Counts middle = Of(timer);
      engine->BeginBackward();
      step.Backward();
      engine->EndBackward();
      played.forward = Between(begin, middle);
      played.backward = Between(middle, Of(timer));
    }
    const Counts begin = Of(timer);
    engine->Step();
    played.update = Between(begin, Of(timer));
  }
  return played;
}

// DeepSpeed 0.19.6 and PyTorch 2.11 on a CPU, two ranks, counted in PartitionedParameterCoordinator
// (_fetch_sub_module_impl, __all_gather_params_), DeepSpeedZeroOptimizer_Stage3
// (reduce_ready_partitions_and_remove_grads, __reduce_and_partition_ipg_grads) and all_gather of
// _post_step: a GPT-2 with nn.LayerNorm and nn.Linear, checkpointed by torch.utils.checkpoint with
// use_reentrant=False. The trace was complete from the second micro-step on and never invalid.
TEST_CASE("Stage3: hooks, gathers and gradients are as many as in DeepSpeed's own code") {
  struct Row {
    int layers, hidden;
    bool recompute;
    int micro_steps;
    int forward_hooks, backward_hooks, forward_gathers, backward_gathers, forward_params,
        backward_params;
  };
  for (const Row& row : {Row{24, 2048, false, 1, 173, 173, 30, 15, 100, 26},
                         Row{24, 2048, true, 2, 173, 317, 31, 19, 102, 26},
                         Row{32, 2560, false, 1, 229, 229, 75, 61, 132, 85},
                         Row{32, 2560, true, 1, 229, 421, 75, 61, 132, 85}}) {
    CAPTURE(row.layers);
    CAPTURE(row.recompute);
    const Step step = Play(row.layers, row.hidden, row.recompute, row.micro_steps);
    CHECK(step.forward[PythonCall::kModuleHooks] == row.forward_hooks);
    CHECK(step.backward[PythonCall::kModuleHooks] == row.backward_hooks);
    CHECK(step.forward[PythonCall::kGather] == row.forward_gathers);
    CHECK(step.backward[PythonCall::kGather] == row.backward_gathers);
    CHECK(step.forward[PythonCall::kGatheredParam] == row.forward_params);
    CHECK(step.backward[PythonCall::kGatheredParam] == row.backward_params);
    CHECK(step.backward[PythonCall::kGradient] == 12 * row.layers + 4);
    CHECK(step.backward[PythonCall::kReduction] == (row.layers == 24 ? 3 : 6));
    CHECK(step.update[PythonCall::kPersistentParam] == 8 * row.layers + 2);
  }
}

}  // namespace
}  // namespace zeroplan
