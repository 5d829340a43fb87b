// What Python does at stage 3, beside counts of DeepSpeed's own code.
#include <doctest/doctest.h>

#include <array>
#include <nlohmann/json.hpp>

#include "core/config/reader_state.h"
#include "core/families/load_model.h"
#include "planner/runtimes/deepspeed_engine.h"
#include "planner/runtimes/torch_based.h"
#include "tests/planned_models.h"
#include "tests/temp_dir.h"

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

// A mixture of 3 layers and 6 experts of tiny sizes, with nothing prefetched or kept.
Counts PlayMixture(const char* type, ExpertModules experts, bool recompute) {
  const TempDir dir;
  nlohmann::ordered_json config = {{"model_type", type},       {"hidden_size", 32},
                                   {"num_hidden_layers", 3},   {"num_attention_heads", 4},
                                   {"num_key_value_heads", 2}, {"head_dim", 8},
                                   {"vocab_size", 64},         {"num_experts", 6},
                                   {"num_experts_per_tok", 2}, {"moe_intermediate_size", 16},
                                   {"intermediate_size", 16},  {"tie_word_embeddings", false}};
  WriteJson(dir.path("config.json"), config);
  const ModelSpec spec = FindModel(dir.path(), {.allowed = true, .preferred = true}).spec;
  TrainSetup setup;
  setup.zero = ReaderZeroDefaults(3);
  setup.zero.prefetch_bucket_elements = 0;
  setup.zero.max_reuse_distance = 0;
  setup.zero.param_persistence_threshold = 0;
  setup.zero.reduce_bucket_elements = 500'000'000;
  setup.batch.world_size = 2;
  setup.batch.micro_batch = 1;
  setup.batch.seq_len = 48;
  if (recompute) setup.recompute = FullRecompute();
  TorchRecipe recipe;
  recipe.code = CodeStyle::kHf;
  recipe.experts = experts;
  const TorchModel model(spec, experts);
  TorchMemory memory;
  TorchTimer timer(nullptr, TimeConstants{});
  const std::unique_ptr<TorchRuntime> engine =
      MakeStage3(model, {spec, setup, recipe}, &memory, &timer);
  engine->Init();
  TorchStep step(model, TorchRunOf(setup, recipe), &memory, engine.get(), &timer);
  Counts counts;
  for (int i = 0; i < 3; ++i) {
    const Counts begin = Of(timer);
    engine->BeginMicroStep(true);
    step.Forward();
    engine->BeginBackward();
    step.Backward();
    engine->EndBackward();
    counts = Between(begin, Of(timer));
    engine->Step();
  }
  return counts;
}

// DeepSpeed 0.19.8 on a CPU, two ranks, transformers 5.24 (fused) and 4.57 (modules): calls of
// PartitionedParameterCoordinator.__all_gather_params, parameters in them, and fetch_sub_module
// (benchmarks/peers/count_fetches.py). Qwen3's block is on DeepSpeed's list of leaf modules,
// OLMoE's is not; leaf_module {"classes": []} takes it off.
TEST_CASE("Stage3: a mixture's gathers are as many as in DeepSpeed's own code") {
  struct Row {
    const char* type;
    ExpertModules experts;
    bool recompute;
    int gathers, params, gradients;
  };
  for (const Row& row : {Row{"qwen3_moe", ExpertModules::kFused, false, 60, 72, 36},
                         Row{"qwen3_moe", ExpertModules::kLeaf, false, 60, 168, 84},
                         Row{"qwen3_moe", ExpertModules::kModules, false, 168, 168, 84},
                         Row{"qwen3_moe", ExpertModules::kLeaf, true, 84, 192, 84},
                         Row{"qwen3_moe", ExpertModules::kModules, true, 249, 249, 84},
                         Row{"olmoe", ExpertModules::kFused, false, 66, 72, 36},
                         Row{"olmoe", ExpertModules::kModules, false, 168, 168, 84}}) {
    CAPTURE(row.type);
    CAPTURE(static_cast<int>(row.experts));
    CAPTURE(row.recompute);
    const Counts counts = PlayMixture(row.type, row.experts, row.recompute);
    CHECK(counts[PythonCall::kGather] == row.gathers);
    CHECK(counts[PythonCall::kGatheredParam] == row.params);
    CHECK(counts[PythonCall::kGradient] == row.gradients);
    CHECK(counts[PythonCall::kReduction] == 1);
  }
  // An expert's MLP, its three linears and its activation have hooks, forward and backward. A leaf
  // has one more backward, since its block returns two tensors.
  const auto hooks = [](ExpertModules experts) {
    return PlayMixture("qwen3_moe", experts, false)[PythonCall::kModuleHooks];
  };
  CHECK(hooks(ExpertModules::kModules) - hooks(ExpertModules::kLeaf) == 3 * (6 * 10 - 1));
}

}  // namespace
}  // namespace zeroplan
