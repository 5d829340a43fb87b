// A model of which a matrix is not trained: it takes no gradient, master or states, nothing sends
// its gradient, and it stays what it was, at every stage and wherever things live.
#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <string_view>
#include <vector>

#include "core/lowering/graph_builder.h"
#include "core/lowering/lower.h"
#include "core/model/model_spec.h"
#include "core/program/verify.h"
#include "cost_models/memory_walk.h"
#include "cost_models/traffic.h"
#include "executor/checkpoint/checkpoint_source.h"
#include "executor/engine/engine.h"
#include "tests/agreement/memory_state.h"
#include "tests/core/families/llama/tiny_llama.h"
#include "tests/core/lowering/matrix.h"
#include "tests/executor/checkpoint/checkpoint_fixture.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

using Table = std::shared_ptr<const std::vector<ParamTensor>>;

Table TableOf(const ModelSpec& model, std::string_view frozen) {
  std::vector<ParamTensor> tensors = BuildParamTable(model);
  int count = 0;
  for (ParamTensor& tensor : tensors) {
    const bool named = tensor.name.find(frozen) != std::string::npos;
    if (frozen.empty() || !named) continue;
    tensor.trainable = false;
    ++count;
  }
  REQUIRE((frozen.empty() || count > 0));
  return std::make_shared<const std::vector<ParamTensor>>(std::move(tensors));
}

LowerOptions FrozenChunks() {
  LowerOptions options;
  options.logits_chunk_bytes = 600;
  options.checkpoint_chunk_elements = 700;
  return options;
}

EngineOptions FrozenOptions() {
  EngineOptions options;
  options.threads_per_rank = 1;
  options.swap_dir = "/tmp";
  options.pattern_arenas = true;
  return options;
}

void SaveFrozen(Engine& engine, StateSink& sink) {
  engine.Save(std::vector<StateSink*>(static_cast<size_t>(engine.local_rank_count()), &sink));
}

size_t Launches(const Program& program, Section section, KernelId kernel) {
  size_t count = 0;
  for (const Instruction& instruction : program.section(section)) {
    const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
    count += launch != nullptr && launch->kernel == kernel;
  }
  return count;
}

// Of a program with a frozen matrix: plan and run agree to the byte, and only the rest changes.
void CheckFrozen(const ModelSpec& model, const TrainSetup& setup, std::string_view frozen) {
  const Table table = TableOf(model, frozen);
  const Program all = Lower(model, TableOf(model, ""), setup, FrozenChunks());
  const Program program = Lower(model, table, setup, FrozenChunks());
  VerifyOrThrow(program);

  const MemoryReport memory = WalkMemory(program), of_all = WalkMemory(all);
  const StepTraffic planned = WalkTraffic(program), planned_of_all = WalkTraffic(all);
  CHECK(Launches(program, Section::kMicroStep, KernelId::kMatmulBackwardWeight) <
        Launches(all, Section::kMicroStep, KernelId::kMatmulBackwardWeight));
  CHECK(Launches(program, Section::kMicroStep, KernelId::kMatmulBackwardData) ==
        Launches(all, Section::kMicroStep, KernelId::kMatmulBackwardData));
  const auto persistent = [](const Program& p, MemoryClass of) {
    uint64_t bytes = 0;
    for (const Buffer& b : p.buffers) bytes += b.persistent && b.memory_class == of ? b.bytes : 0;
    return bytes;
  };
  CHECK(persistent(program, MemoryClass::kOptimizer) < persistent(all, MemoryClass::kOptimizer));
  CHECK(persistent(program, MemoryClass::kGrads) < persistent(all, MemoryClass::kGrads));
  if (setup.batch.world_size > 1) {
    CHECK(planned.collective_bytes < planned_of_all.collective_bytes);
  }
  CHECK(planned.pcie_bytes() <= planned_of_all.pcie_bytes());
  CHECK(planned.file_read_bytes <= planned_of_all.file_read_bytes);
  CHECK(planned.file_write_bytes <= planned_of_all.file_write_bytes);

  Engine engine(program, FrozenOptions());
  engine.Init();
  testing::MemoryState before(program.layout), after(program.layout);
  SaveFrozen(engine, before);
  engine.TakeTraffic();
  engine.Step(testing::RandomBatch(program, 0));
  const Engine::Traffic traffic = engine.TakeTraffic();
  CHECK(traffic.collective_bytes == planned.collective_bytes);
  CHECK(traffic.scalar_bytes == planned.scalar_bytes);
  CHECK(traffic.host_to_device_bytes == planned.host_to_device_bytes);
  CHECK(traffic.device_to_host_bytes == planned.device_to_host_bytes);
  CHECK(traffic.file_read_bytes == planned.file_read_bytes);
  CHECK(traffic.file_write_bytes == planned.file_write_bytes);
  engine.Step(testing::RandomBatch(program, 1));
  engine.Evaluate(testing::RandomBatch(program, 2));
  SaveFrozen(engine, after);
  for (size_t t = 0; t < table->size(); ++t) {
    CAPTURE((*table)[t].name);
    CHECK((before.master(t) == after.master(t)) == !(*table)[t].trainable);
  }
  // What is loaded is what was saved.
  engine.Load(before, true, nullptr);
  SaveFrozen(engine, after);
  for (size_t t = 0; t < table->size(); ++t) CHECK(before.master(t) == after.master(t));

  const auto touched = engine.high_water().touched_bytes;
  const auto pattern = engine.PatternHighWater();
  for (size_t s = 0; s < kSpaces; ++s) {
    CAPTURE(s);
    CHECK(memory.arena_bytes[s] == program.arena_bytes[s]);
    CHECK(touched[s] == program.arena_bytes[s]);
    CHECK(pattern[s] <= program.arena_bytes[s]);
  }
}

TEST_CASE("a frozen matrix: planned is touched, memory and traffic shrink, it stays") {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const testing::Offload offload : testing::OffloadsOf(stage)) {
      for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
        for (const int ranks : {1, 2, 3}) {
          CAPTURE(stage);
          CAPTURE(testing::OffloadLabel(offload));
          CAPTURE(DtypeName(dtype));
          CAPTURE(ranks);
          TrainSetup setup =
              testing::BaseSetup(stage, ranks, dtype, ranks == 2 ? 1 : 3, kNoRecompute);
          testing::SetOffload(setup, offload);
          setup.zero.param_persistence_threshold = ranks == 3 ? 60 : 0;
          CheckFrozen(testing::TinyLlama(Llama()), setup, "mlp.gate_up_proj.weight");
        }
      }
    }
  }
}

TEST_CASE("a frozen matrix: a product with its bias, norms, head and embedding, recompute") {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const std::string_view frozen : {".mlp.c_fc.", ".ln_1.", "wte", "wpe"}) {
      for (const RecomputeConfig& recompute :
           {kNoRecompute, kSelectiveRecompute, FullRecompute()}) {
        CAPTURE(stage);
        CAPTURE(frozen);
        const TrainSetup setup = testing::BaseSetup(stage, 2, Dtype::kBF16, 2, recompute);
        if (frozen == "wte" || frozen == "wpe") {
          // One kernel takes both tables.
          CHECK_THROWS_AS(Lower(testing::TinyModel(), TableOf(testing::TinyModel(), frozen), setup),
                          CheckFailure);
        } else if (frozen == ".ln_1.") {
          const Program program =
              Lower(testing::TinyModel(), TableOf(testing::TinyModel(), frozen), setup);
          VerifyOrThrow(program);
        } else {
          CheckFrozen(testing::TinyModel(), setup, frozen);
        }
      }
    }
    const TrainSetup setup = testing::BaseSetup(stage, 2, Dtype::kBF16, 2, kNoRecompute);
    CheckFrozen(testing::TinyLlama(Qwen3()), setup, "lm_head");
  }
}

// fp32, one rank, stage 0: what the others follow.
struct Trained {
  std::vector<double> losses;
  testing::MemoryState state;
};

Trained TrainFrozen(const Table& table, const TrainSetup& setup, uint64_t steps) {
  const Program program = Lower(testing::TinyLlama(Llama()), table, setup, FrozenChunks());
  Engine engine(program, FrozenOptions());
  engine.Init();
  Trained trained{{}, testing::MemoryState(program.layout)};
  for (uint64_t step = 0; step < steps; ++step) {
    trained.losses.push_back(engine.Step(testing::RandomBatch(program, step)).loss_sum);
  }
  SaveFrozen(engine, trained.state);
  return trained;
}

TrainSetup FollowingSetup(int stage, testing::Offload offload, int ranks) {
  TrainSetup setup = testing::BaseSetup(stage, ranks, Dtype::kF32, 1, kNoRecompute);
  setup.batch.micro_batch = 4 / ranks;
  setup.optimizer.lr = 3e-3;
  testing::SetOffload(setup, offload);
  return setup;
}

TEST_CASE("a frozen matrix: the rest trains as if it were a constant") {
  const Table table = TableOf(testing::TinyLlama(Llama()), "mlp.down_proj.weight");
  // The first update of everything else is that of a model which trains all: the gradients are.
  TrainSetup unclipped = FollowingSetup(0, testing::Offload::kNone, 1);
  unclipped.optimizer.gradient_clipping = 0;
  const Trained once = TrainFrozen(table, unclipped, 1);
  const Trained all_once = TrainFrozen(TableOf(testing::TinyLlama(Llama()), ""), unclipped, 1);
  for (size_t t = 0; t < table->size(); ++t) {
    CAPTURE((*table)[t].name);
    CHECK((once.state.master(t) == all_once.state.master(t)) == (*table)[t].trainable);
  }
  constexpr uint64_t kFrozenSteps = 20;
  const Trained control =
      TrainFrozen(table, FollowingSetup(0, testing::Offload::kNone, 1), kFrozenSteps);
  CHECK(control.losses.back() < 0.95 * control.losses.front());
  for (int stage = 0; stage <= 3; ++stage) {
    for (const testing::Offload offload : testing::OffloadsOf(stage)) {
      for (const int ranks : {1, 2, 4}) {
        CAPTURE(stage);
        CAPTURE(testing::OffloadLabel(offload));
        CAPTURE(ranks);
        const Trained other =
            TrainFrozen(table, FollowingSetup(stage, offload, ranks), kFrozenSteps);
        for (size_t i = 0; i < kFrozenSteps; ++i) {
          CHECK(std::abs(other.losses[i] - control.losses[i]) <= 2e-4 * control.losses[i]);
        }
      }
    }
  }
}

TEST_CASE("a frozen matrix: a checkpoint holds its values alone, for any stage and rank count") {
  const ModelSpec model = testing::TinyLlama(Llama());
  const Table table = TableOf(model, "self_attn.qkv_proj.weight");
  const TempDir dir;
  const auto setup = [&](int stage, int ranks) {
    return testing::BaseSetup(stage, ranks, Dtype::kBF16, 1, kNoRecompute);
  };
  LowerOptions options = FrozenChunks();
  const Program program = Lower(model, table, setup(2, 3), options);
  Engine engine(program, FrozenOptions());
  engine.Init();
  engine.Step(testing::RandomBatch(program, 0));
  testing::MemoryState saved(program.layout);
  SaveFrozen(engine, saved);
  CheckpointMeta meta = SmallMeta(1);
  meta.model = model;
  const auto folder = SaveWith(dir.path(), program.layout, meta, {.world_size = 3},
                               [&](std::span<StateSink* const> sinks) { engine.Save(sinks); });
  const CheckpointSource source = CheckpointSource::Open(folder, model, *table);
  source.Verify();
  for (const int stage : {0, 1, 3}) {
    for (const bool async : {false, true}) {
      CAPTURE(stage);
      options.async_save = async;
      const Program other = Lower(model, table, setup(stage, 2), options);
      VerifyOrThrow(other);
      Engine resumed(other, FrozenOptions());
      resumed.Init();
      resumed.Load(source, true, nullptr);
      testing::MemoryState loaded(other.layout);
      SaveFrozen(resumed, loaded);
      // A parameter that is kept in 16 bit is saved as it was: nothing is rounded twice.
      for (size_t t = 0; t < table->size(); ++t) CHECK(loaded.master(t) == saved.master(t));
    }
  }
}

TEST_CASE("a frozen matrix: FLOPs without its gradient, and by the tokens that use it") {
  class Changed : public ModelFamily {
   public:
    explicit Changed(void (*change)(ParamRow&)) : change_(change) {}
    std::string_view name() const override { return Llama().name(); }
    ParamRows Params(const ModelSpec& spec) const override {
      ParamRows rows = Llama().Params(spec);
      for (ParamRow& row : rows.layer) {
        if (std::string_view(row.name) == "mlp.down_proj.weight") change_(row);
      }
      return rows;
    }
    std::unique_ptr<ModelGraph> MakeGraph(GraphBuilder& builder) const override {
      return Llama().MakeGraph(builder);
    }
    std::string_view ConfigKey(std::string_view field) const override {
      return Llama().ConfigKey(field);
    }
    ModelSpec ReadConfig(JsonSection* config, std::vector<std::string>* notes) const override {
      return Llama().ReadConfig(config, notes);
    }
    std::string WriteConfig(const ModelSpec& spec) const override {
      return Llama().WriteConfig(spec);
    }
    const std::vector<ModelPreset>& presets() const override { return Llama().presets(); }
    ModelSpec Shape(int64_t layers, int64_t hidden, int64_t positions,
                    bool byte_level) const override {
      return Llama().Shape(layers, hidden, positions, byte_level);
    }

   private:
    void (*change_)(ParamRow&);
  };
  const Changed frozen([](ParamRow& row) { row.trainable = false; });
  const Changed expert([](ParamRow& row) { row.token_share = 0.25; });
  ModelSpec model = testing::TinyLlama(Llama());
  const double weights = static_cast<double>(model.layers * model.hidden * model.ffn);
  const double all = TrainFlopsPerToken(model, 8), products = MatmulWeights(model);
  const double carried_out = HardwareFlopsPerToken(model, 8, true);
  model.family = &frozen;
  CHECK(TrainFlopsPerToken(model, 8) == all - 2 * weights);
  CHECK(HardwareFlopsPerToken(model, 8, true) == carried_out - 2 * weights);
  CHECK(MatmulWeights(model) == products);
  // A family's own rows reach the program.
  const Program program = Lower(model, FollowingSetup(3, testing::Offload::kNone, 2));
  VerifyOrThrow(program);
  uint64_t untrained = 0;
  for (const Unit& unit : program.layout.units) {
    if (!unit.trainable) untrained += unit.param_elements;
  }
  CHECK(static_cast<double>(untrained) == weights);
  model.family = &expert;
  CHECK(MatmulWeights(model) == products - 0.75 * weights);
  CHECK(TrainFlopsPerToken(model, 8) == all - 0.75 * 6 * weights);
}

}  // namespace
}  // namespace zeroplan
