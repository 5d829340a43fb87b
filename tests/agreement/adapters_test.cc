// Models with adapters: what is frozen has no gradient, no state and no place in checkpoints, and
// is never written; adapters train as the slopes of the loss say, at every stage alike.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "core/lowering/lower.h"
#include "core/model/lora.h"
#include "core/program/verify.h"
#include "cost_models/memory_walk.h"
#include "executor/checkpoint/adapter_weights.h"
#include "executor/checkpoint/checkpoint_source.h"
#include "executor/checkpoint/hf_export.h"
#include "executor/engine/engine.h"
#include "executor/kernels/nf4.h"
#include "tests/agreement/engine_gradients.h"
#include "tests/core/families/llama/tiny_llama.h"
#include "tests/core/lowering/matrix.h"
#include "tests/core/model/with_lora.h"
#include "tests/executor/checkpoint/checkpoint_fixture.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

ModelSpec WithTokens(ModelSpec model, const char* tokens, const char* of_head = "") {
  model.lora_tokens = tokens;
  model.lora_head_tokens = of_head;
  return model;
}

// Rows of single tokens: of a tied head, of embedding and head apart, of more tokens than one unit
// of rows, beside learned positions.
std::vector<ModelSpec> ModelsWithTokens() {
  ModelSpec saved = testing::WithLora(testing::TinyLlama(Llama()), "v_proj");
  saved.lora_saved = "lm_head";
  ModelSpec apart = testing::WithLora(testing::TinyModel(), "all-linear");
  apart.tied_head = false;
  return {WithTokens(apart, "3", "5,6"),
          WithTokens(testing::WithLora(testing::TinyLlama(Qwen2()), "v_proj"), "30,3,7-9"),
          WithTokens(testing::WithLora(testing::TinyLlama(Llama()), "all-linear"), "7,2", "5,2,9"),
          WithTokens(testing::WithQlora(testing::TinyLlama(Llama()), "v_proj,up_proj"), "", "5"),
          WithTokens(saved, "12"),
          WithTokens(testing::WithDropout(testing::WithLora(testing::TinyModel(), "c_attn")),
                     "20-30,1-4")};
}

std::vector<ModelSpec> AdaptedModels() {
  ModelSpec saved = testing::WithLora(testing::TinyLlama(Llama()), "gate_proj,o_proj", 5);
  saved.lora_saved = "lm_head";
  saved.lora_rslora = true;
  // Of some layers, and of ranks and scales that differ within a layer and within a matrix.
  const char* uneven =
      "q_proj:2/1,k_proj@1:4/3,v_proj:2/1,o_proj@1:4/16,up_proj:2/6,down_proj@0:1/4";
  ModelSpec rooted = testing::WithLora(testing::TinyLlama(Llama()),
                                       "v_proj:5/2,k_proj:3/1,gate_proj:3/4,up_proj:2/4");
  rooted.lora_rslora = true;
  std::vector<ModelSpec> models = {
      testing::WithLora(testing::TinyLlama(Qwen2()), uneven),
      rooted,
      testing::WithDropout(testing::WithLora(testing::TinyLlama(Llama()), uneven)),
      testing::WithQlora(testing::TinyModel(), "c_attn@1:4/2,c_fc@2,mlp.c_proj@1-2:1"),
      testing::WithLora(testing::TinyModel(), "all-linear"),
      testing::WithLora(testing::TinyModel(), "c_attn,mlp.c_proj", 2),
      testing::WithLora(testing::TinyLlama(Qwen3()), "all-linear"),
      testing::WithLora(testing::TinyLlama(Qwen2()), "k_proj,up_proj", 4),
      saved,
      testing::WithQlora(testing::TinyLlama(Llama()), "all-linear"),
      testing::WithQlora(testing::TinyModel(), "c_attn,mlp.c_proj", 2),
      testing::WithDropout(testing::WithLora(testing::TinyModel(), "all-linear")),
      testing::WithDropout(testing::WithQlora(testing::TinyLlama(Llama()), "v_proj,up_proj"))};
  for (ModelSpec& model : ModelsWithTokens()) models.push_back(std::move(model));
  return models;
}

EngineOptions AdapterOptions() {
  EngineOptions options;
  options.threads_per_rank = 1;
  options.swap_dir = "/tmp";
  return options;
}

// Master values of all tensors: of what is frozen from the rank's parameters, in fp32.
testing::Tensors Weights(const Program& program, const Engine& engine, int rank) {
  const std::vector<BufferId> full = UnitBuffers(program, Role::kParamFull);
  testing::Tensors weights;
  for (const ParamLayout::Place& place : program.layout.place) {
    const auto unit = static_cast<size_t>(place.unit);
    const TensorSlot& slot = program.layout.units[unit].slots[static_cast<size_t>(place.slot)];
    const std::span<const std::byte> bytes = engine.Peek(rank, full[unit]);
    std::vector<float> values(slot.elements);
    if (program.layout.units[unit].quantized) {
      const auto* blocks =
          reinterpret_cast<const Nf4Block*>(bytes.data() + StoredBytes(Dtype::kNf4, slot.offset));
      for (uint64_t at = 0; at < slot.elements; at += kNf4Block) {
        const auto n = static_cast<int64_t>(std::min<uint64_t>(kNf4Block, slot.elements - at));
        DequantizeNf4(*blocks++, n, Dtype::kF32, values.data() + at);
      }
    } else {
      std::memcpy(values.data(), bytes.data() + slot.offset * 4, slot.elements * 4);
    }
    weights.emplace_back(values.begin(), values.end());
  }
  return weights;
}

TEST_CASE("adapters: gradients are the slopes of the engine's own loss") {
  for (const ModelSpec& model : AdaptedModels()) {
    for (const RecomputeConfig& recompute : {kNoRecompute, kSelectiveRecompute, FullRecompute()}) {
      CAPTURE(model.lora_targets);
      CAPTURE(model.lora_tokens);
      CAPTURE(model.lora_head_tokens);
      CAPTURE(model.family->name());
      CAPTURE(RecomputeName(recompute));
      LowerOptions options;
      options.logits_chunk_bytes = 7 * 40 * 4;
      const Program program =
          Lower(model, testing::BaseSetup(0, 1, Dtype::kF32, 1, recompute), options);
      VerifyOrThrow(program);
      struct Checked {
        std::string tensor;
        double slope, gradient;
        bool close() const { return std::abs(slope - gradient) < 3e-5 + 2e-4 * std::abs(gradient); }
      };
      const auto slopes = [&](double step) {
        std::vector<Checked> all;
        testing::ForEachEngineSlope(
            program, 3,
            [&](const ParamTensor& tensor, double slope, double gradient) {
              CHECK((IsAdapter(tensor) || tensor.saved));
              all.push_back({tensor.name, slope, gradient});
            },
            step, /*seven_points=*/true);
        return all;
      };
      // Adapters bend the loss more than weights do, so the step is small; where fp32's noise is
      // above the bends, on CPUs with shorter vectors, twice that step tells.
      const std::vector<Checked> near = slopes(1.0 / 128);
      CHECK(near.size() > 10);
      const bool all_close =
          std::all_of(near.begin(), near.end(), [](const Checked& one) { return one.close(); });
      const std::vector<Checked> far = all_close ? near : slopes(1.0 / 64);
      for (size_t i = 0; i < near.size(); ++i) {
        CAPTURE(near[i].tensor);
        CAPTURE(near[i].slope);
        CAPTURE(far[i].slope);
        CAPTURE(near[i].gradient);
        CHECK((near[i].close() || far[i].close()));
      }
    }
  }
}

TEST_CASE("adapters: a fresh one changes nothing, and what is frozen stays bit by bit") {
  for (const ModelSpec& model : AdaptedModels()) {
    CAPTURE(model.lora_targets);
    const TrainSetup setup = testing::BaseSetup(0, 1, Dtype::kF32, 2, kNoRecompute);
    const Program program = Lower(model, setup);
    Engine engine(program, AdapterOptions());
    engine.Init();
    const testing::Tensors before = Weights(program, engine, 0);
    for (uint64_t step = 0; step < 3; ++step) engine.Step(testing::RandomBatch(program, step));
    engine.Drain();
    const testing::Tensors after = Weights(program, engine, 0);
    const std::vector<ParamTensor>& table = *program.layout.tensors;
    for (size_t t = 0; t < table.size(); ++t) {
      CAPTURE(table[t].name);
      CHECK((before[t] == after[t]) == !table[t].trainable);
    }
    // Frozen units have parameters alone.
    for (const Buffer& buffer : program.buffers) {
      if (buffer.unit < 0 || program.layout.units[static_cast<size_t>(buffer.unit)].trainable) {
        continue;
      }
      CHECK(buffer.role != Role::kOptimizerState);
      CHECK(buffer.role != Role::kGradFull);
      CHECK(buffer.role != Role::kGradShard);
    }
    if (model.lora_quantized) continue;  // its loss is not the base's
    // B is zero at first: the loss is the base's.
    const Program plain = Lower(BaseModel(model), setup);
    Engine fresh(program, AdapterOptions()), base(plain, AdapterOptions());
    fresh.Init();
    base.Init();
    testing::MemoryState weights(program.layout), of_base(plain.layout);
    std::vector<StateSink*> sink = {&of_base};
    base.Save(sink);
    const testing::Tensors drawn = Weights(program, fresh, 0);
    for (size_t t = 0; t < table.size(); ++t) {
      std::vector<float> values(drawn[t].begin(), drawn[t].end());
      for (size_t b = 0; b < plain.layout.tensors->size(); ++b) {
        const ParamTensor& of_plain = (*plain.layout.tensors)[b];
        if (of_plain.name == table[t].name) values = of_base.master(b);
        // Rows of tokens begin as their matrix has them.
        if (table[t].name != std::string(ModuleOf(of_plain.name)) + kTokensDelta) continue;
        const std::vector<float> whole = of_base.master(b);
        const auto cols = static_cast<size_t>(of_plain.shape[1]);
        std::fill(values.begin(), values.end(), 0.0f);
        for (size_t row = 0; row < table[t].tokens.size(); ++row) {
          const size_t from = static_cast<size_t>(table[t].tokens[row]) * cols;
          std::copy_n(whole.begin() + static_cast<ptrdiff_t>(from), cols,
                      values.begin() + static_cast<ptrdiff_t>(row * cols));
        }
      }
      weights.Write({static_cast<int>(t), StateKind::kMaster, 0, values.size()}, values);
    }
    fresh.Load(weights, false, nullptr);
    const double adapted = fresh.Evaluate(testing::RandomBatch(program, 9));
    const double whole = base.Evaluate(testing::RandomBatch(plain, 9));
    const bool own_products = !model.lora_tokens.empty() || !model.lora_head_tokens.empty();
    CHECK(std::abs(adapted - whole) <= (own_products ? 1e-6 * whole : 0));
  }
}

std::vector<double> LossesAt(const ModelSpec& model, int stage, int ranks, int64_t grad_accum,
                             const RecomputeConfig& recompute, testing::Offload offload) {
  TrainSetup setup = testing::BaseSetup(stage, ranks, Dtype::kF32, grad_accum, recompute);
  setup.batch.micro_batch = 8 / (ranks * grad_accum);
  testing::SetOffload(setup, offload);
  setup.optimizer.lr = 1e-2;
  const Program program = Lower(model, setup);
  Engine engine(program, AdapterOptions());
  engine.Init();
  std::vector<double> losses;
  for (uint64_t step = 0; step < 10; ++step) {
    losses.push_back(engine.Step(testing::RandomBatch(program, step)).loss_sum);
  }
  return losses;
}

TEST_CASE("adapters: stages, ranks, recompute, offload and accumulation follow stage 0") {
  for (const ModelSpec& model : AdaptedModels()) {
    CAPTURE(model.lora_targets);
    const std::vector<double> control =
        LossesAt(model, 0, 1, 1, kNoRecompute, testing::Offload::kNone);
    CHECK(control.back() < control.front());
    for (int stage = 0; stage <= 3; ++stage) {
      for (const testing::Offload offload : testing::OffloadsOf(stage)) {
        const int ranks = 1 << (stage % 3);
        const RecomputeConfig recompute = stage % 2 == 0 ? FullRecompute() : kSelectiveRecompute;
        CAPTURE(stage);
        CAPTURE(std::string(testing::OffloadLabel(offload)));
        const std::vector<double> losses = LossesAt(model, stage, ranks, 2, recompute, offload);
        for (size_t i = 0; i < losses.size(); ++i) {
          CHECK(std::abs(losses[i] - control[i]) <= 2e-4 * control[i]);
        }
      }
    }
  }
}

TEST_CASE("adapters: dropout drops the same however a global batch and its work are cut") {
  const ModelSpec plain = testing::WithLora(testing::TinyLlama(Llama()), "all-linear");
  const auto losses = [](const ModelSpec& model, int ranks, int64_t grad_accum,
                         const RecomputeConfig& recompute) {
    return LossesAt(model, 0, ranks, grad_accum, recompute, testing::Offload::kNone);
  };
  const ModelSpec model = testing::WithDropout(plain);
  const std::vector<double> control = losses(model, 1, 1, kNoRecompute);
  CHECK(losses(model, 1, 1, kNoRecompute) == control);
  CHECK(losses(model, 1, 1, FullRecompute()) == control);
  CHECK(losses(model, 1, 1, kSelectiveRecompute) == control);
  const std::vector<double> kept = losses(plain, 1, 1, kNoRecompute);
  CHECK(std::abs(kept[5] - control[5]) > 1e-4 * control[5]);
  for (const auto& [ranks, grad_accum] : {std::pair{2, 1}, {1, 2}, {2, 2}, {4, 2}}) {
    CAPTURE(ranks);
    CAPTURE(grad_accum);
    const std::vector<double> cut = losses(model, ranks, grad_accum, kNoRecompute);
    for (size_t i = 0; i < cut.size(); ++i) {
      CHECK(std::abs(cut[i] - control[i]) <= 1e-5 * control[i]);
    }
  }
}

// Of a layer whose NF4 is many blocks, so that matrices cross the borders of shards and of pieces.
TEST_CASE("adapters: NF4 that is cut is the same base") {
  ModelSpec model = testing::TinyLlama(Llama());
  model.hidden = 192;
  model.ffn = 512;
  model = testing::WithQlora(std::move(model), "q_proj,down_proj");
  const std::vector<double> control =
      LossesAt(model, 0, 1, 1, kNoRecompute, testing::Offload::kNone);
  CHECK(control.back() < control.front());
  for (const int ranks : {1, 2, 4}) {
    const Program program =
        Lower(model, testing::BaseSetup(3, ranks, Dtype::kF32, 1, kNoRecompute));
    uint64_t most = 0;
    for (const Unit& unit : program.layout.units) {
      if (unit.quantized) most = std::max(most, unit.shard_elements / kNf4AlignElements);
    }
    CHECK(most >= 8);
    for (const int stage : {2, 3}) {
      for (const testing::Offload offload : testing::OffloadsOf(stage)) {
        CAPTURE(ranks);
        CAPTURE(stage);
        CAPTURE(std::string(testing::OffloadLabel(offload)));
        const std::vector<double> losses = LossesAt(model, stage, ranks, 1, kNoRecompute, offload);
        for (size_t i = 0; i < losses.size(); ++i) {
          CHECK(std::abs(losses[i] - control[i]) <= 2e-4 * control[i]);
        }
      }
    }
  }
}

void CheckCheckpoints(const ModelSpec& model) {
  CAPTURE(model.lora_targets);
  const TempDir dir;
  const std::string base = dir.path() + "/base";
  const Program plain =
      Lower(BaseModel(model), testing::BaseSetup(0, 1, Dtype::kF32, 1, kNoRecompute));
  {
    Engine engine(plain, AdapterOptions());
    engine.Init();
    testing::MemoryState weights(plain.layout);
    std::vector<StateSink*> sink = {&weights};
    engine.Save(sink);
    WriteHfWeights(base, BaseModel(model), *plain.layout.tensors, weights);
  }
  const auto setup = [](int stage, int ranks) {
    return testing::BaseSetup(stage, ranks, Dtype::kF32, 1, kNoRecompute);
  };
  const Program program = Lower(model, setup(2, 2));
  const std::vector<ParamTensor>& table = *program.layout.tensors;
  Engine engine(program, AdapterOptions());
  engine.Init();
  engine.Load(AdaptedWeights(base, "", model, table, 1), false, nullptr);
  for (uint64_t step = 0; step < 2; ++step) engine.Step(testing::RandomBatch(program, step));
  CheckpointMeta meta = SmallMeta(2);
  meta.model = model;
  const auto folder = SaveWith(dir.path(), program.layout, meta, {.world_size = 2},
                               [&](std::span<StateSink* const> sinks) { engine.Save(sinks); });
  const StepState state = engine.state();
  const CheckpointSource source = CheckpointSource::Open(folder, model, table);
  source.Verify();
  uint64_t adapters = 0;
  for (const ParamTensor& tensor : table) adapters += tensor.saved ? tensor.elements() : 0;
  CHECK(source.file_bytes() < 12 * adapters + 64'000);
  const double next = engine.Step(testing::RandomBatch(program, 5)).loss_sum;
  for (const int stage : {0, 3}) {
    CAPTURE(stage);
    const Program other = Lower(model, setup(stage, 2));
    AdaptedWeights weights(base, "", model, *other.layout.tensors, 1);
    weights.ReadTunedFrom(source);
    Engine resumed(other, AdapterOptions());
    resumed.Init();
    resumed.Load(weights, true, &state);
    const double loss = resumed.Step(testing::RandomBatch(other, 5)).loss_sum;
    CHECK(std::abs(loss - next) <= 1e-5 * next);
  }
  // What is written for PEFT comes back, and merged it is the same model.
  const std::string out = dir.path() + "/adapter";
  WriteAdapter(out, model, table, source, "base", "", {});
  AdaptedWeights again(base, out, model, table, 1);
  for (size_t t = 0; t < table.size(); ++t) {
    if (!table[t].saved) continue;
    std::vector<float> want(table[t].elements()), got(want.size());
    const TensorRange all = {static_cast<int>(t), StateKind::kMaster, 0, want.size()};
    source.Read(all, want);
    again.Read(all, got);
    CHECK(want == got);
  }
  Engine adapted(program, AdapterOptions()), merged(plain, AdapterOptions());
  adapted.Init();
  adapted.Load(again, false, nullptr);
  merged.Init();
  merged.Load(MergedWeights(base, out, model), false, nullptr);
  const double a = adapted.Evaluate([&](int, int64_t, auto inputs, auto targets) {
    testing::FillRandom(plain, 7, 0, 0, inputs, targets);
  });
  const double b = merged.Evaluate(testing::RandomBatch(plain, 7));
  CHECK(std::abs(a - b) <= 1e-5 * b);
}

TEST_CASE("adapters: a checkpoint holds them alone, and goes on at any stage over its base") {
  CheckCheckpoints(testing::WithLora(testing::TinyLlama(Llama()), "all-linear"));
  CheckCheckpoints(testing::WithLora(
      testing::TinyLlama(Llama()),
      "q_proj:2/1,k_proj@1:4/3,v_proj:2/1,o_proj@1:4/16,up_proj:2/6,down_proj@0:1/4"));
  CheckCheckpoints(testing::WithLora(testing::TinyModel(), "c_attn@1:4/2,c_fc@2,mlp.c_proj@1-2:1"));
  for (const ModelSpec& model : ModelsWithTokens()) {
    if (!model.lora_quantized) CheckCheckpoints(model);
  }
}

}  // namespace
}  // namespace zeroplan
