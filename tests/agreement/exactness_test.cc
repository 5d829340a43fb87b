// What the plan says and what the engine does are the same, cell by cell of the grid: bytes of
// every arena, instructions and their order, bytes on the wire, over PCIe and to disk.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "core/families/qwen2_moe/qwen2_moe.h"
#include "core/families/qwen3_moe/qwen3_moe.h"
#include "core/lowering/lower.h"
#include "core/program/step_order.h"
#include "core/program/verify.h"
#include "cost_models/memory_walk.h"
#include "cost_models/traffic.h"
#include "executor/engine/engine.h"
#include "tests/agreement/memory_state.h"
#include "tests/core/families/llama/tiny_llama.h"
#include "tests/core/families/tiny_mixture.h"
#include "tests/core/lowering/matrix.h"
#include "tests/core/model/with_lora.h"
#include "tests/fp8_models.h"

namespace zeroplan {
namespace {

LowerOptions SmallChunks() {
  LowerOptions options;
  options.logits_chunk_bytes = 600;
  options.checkpoint_chunk_elements = 700;
  return options;
}

std::vector<std::pair<Section, int32_t>> Expected(const Program& program, Section section,
                                                  When kind) {
  std::vector<std::pair<Section, int32_t>> list;
  const auto& instructions = program.section(section);
  for (size_t i = 0; i < instructions.size(); ++i) {
    if (section == Section::kMicroStep && !(instructions[i].when & kind)) continue;
    list.emplace_back(section, static_cast<int32_t>(i));
  }
  return list;
}

void CheckTrace(const Program& program, const std::vector<ExecutedInstruction>& trace) {
  std::vector<std::pair<Section, int32_t>> expected;
  auto append = [&](Section section, When kind) {
    const auto part = Expected(program, section, kind);
    expected.insert(expected.end(), part.begin(), part.end());
  };
  append(Section::kInit, kOnly);
  append(Section::kSave, kOnly);
  append(Section::kLoad, kOnly);
  ForEachStepSection(program.setup.batch.grad_accum,
                     [&](Section section, When kind, int64_t) { append(section, kind); });
  append(Section::kDrain, kOnly);
  append(Section::kEval, kOnly);
  REQUIRE(trace.size() == expected.size());
  for (size_t i = 0; i < trace.size(); ++i) {
    const bool same = trace[i].section == expected[i].first && trace[i].index == expected[i].second;
    REQUIRE_MESSAGE(same, "instruction " << i << " of the trace");
  }
}

void CheckCell(const testing::Cell& cell, bool flash_attention = true,
               const ModelSpec& model = testing::TinyModel(), bool async_save = false,
               bool document_borders = false, int64_t tile_rows = 0) {
  CAPTURE(cell.name);
  CAPTURE(tile_rows);
  CAPTURE(async_save);
  CAPTURE(model.family->name());
  LowerOptions lower = SmallChunks();
  lower.flash_attention = flash_attention;
  lower.async_save = async_save;
  lower.document_borders = document_borders;
  if (tile_rows > 0) lower.tile_rows = tile_rows;
  const Program program = Lower(model, cell.setup, lower);
  const MemoryReport memory = WalkMemory(program);
  EngineOptions options;
  options.threads_per_rank = 1;
  options.swap_dir = "/tmp";
  options.record_trace = true;
  options.pattern_arenas = true;
  Engine engine(program, options);
  engine.Init();
  testing::MemoryState saved(program.layout);
  std::vector<StateSink*> sinks(static_cast<size_t>(program.setup.batch.world_size), &saved);
  engine.Save(sinks);
  engine.Load(saved, true, nullptr);
  engine.TakeTraffic();
  const StepState state = engine.Step(testing::RandomBatch(program, 0));
  const Engine::Traffic traffic = engine.TakeTraffic();
  CHECK(state.loss_sum > 0);
  CHECK(state.skip == 0);
  engine.Evaluate(testing::RandomBatch(program, 1));

  const auto touched = engine.high_water().touched_bytes;
  const auto pattern = engine.PatternHighWater();
  for (size_t s = 0; s < kSpaces; ++s) {
    CAPTURE(s);
    CHECK(program.arena_bytes[s] == memory.arena_bytes[s]);
    CHECK(touched[s] == program.arena_bytes[s]);
    // A last byte that happens to be what the pattern had hides itself: one in 256, so allow one
    // word.
    if (program.arena_bytes[s] > 0) CHECK(pattern[s] + 8 > program.arena_bytes[s]);
    CHECK(pattern[s] <= program.arena_bytes[s]);
  }
  const StepTraffic planned = WalkTraffic(program);
  CHECK(traffic.collective_bytes == planned.collective_bytes);
  CHECK(traffic.scalar_bytes == planned.scalar_bytes);
  CHECK(traffic.host_to_device_bytes == planned.host_to_device_bytes);
  CHECK(traffic.device_to_host_bytes == planned.device_to_host_bytes);
  CHECK(traffic.file_read_bytes == planned.file_read_bytes);
  CHECK(traffic.file_write_bytes == planned.file_write_bytes);
  for (int rank : {0, program.setup.batch.world_size - 1}) {
    CheckTrace(program, engine.ExecutedTrace(rank));
  }
}

TEST_CASE("memory, instructions and traffic are the plan's: bf16") {
  for (const auto& cell : testing::AllCells({1, 2, 3, 4, 8}, {Dtype::kBF16})) CheckCell(cell);
}
TEST_CASE("memory, instructions and traffic are the plan's: blocks of integers are sent") {
  using testing::QuantizedCells;
  for (const auto& cell : QuantizedCells(testing::AllCells({2, 4}, {Dtype::kBF16})))
    CheckCell(cell);
  for (const auto& cell : QuantizedCells(testing::HybridCells({{4, 2}, {8, 4}}, Dtype::kBF16))) {
    CheckCell(cell);
  }
}
TEST_CASE("memory, instructions and traffic are the plan's: shard groups") {
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32}) {
    for (const auto& cell :
         testing::HybridCells({std::begin(testing::kGroups), std::end(testing::kGroups)}, dtype))
      CheckCell(cell);
  }
  // Sums over ranks in fp32 of gradients that are kept in 16 bit, sums over micro-steps in fp32 of
  // gradients that are sent in 16 bit, and all-reduces and broadcasts in place of their halves.
  for (auto cell : testing::HybridCells({{4, 2}}, Dtype::kBF16)) {
    cell.setup.precision.fp32_reduction = true;
    CheckCell(cell);
    cell.setup.precision.fp32_reduction = false;
    cell.setup.precision.grad_accum_dtype = Dtype::kF32;
    CheckCell(cell);
    cell.setup.precision.grad_accum_dtype = Dtype::kBF16;
    cell.setup.zero.reduce_scatter = cell.setup.zero.allgather_partitions = false;
    CheckCell(cell);
    cell.setup.zero.overlap_comm = cell.setup.zero.contiguous_gradients = false;
    CheckCell(cell);
  }
}
// What dtypes have of their own is the same on any number of ranks: one, an even and an odd one.
TEST_CASE("memory, instructions and traffic are the plan's: fp16") {
  for (const auto& cell : testing::AllCells({1, 2, 3}, {Dtype::kF16})) CheckCell(cell);
}
TEST_CASE("memory, instructions and traffic are the plan's: fp32") {
  for (const auto& cell : testing::AllCells({1, 2, 3}, {Dtype::kF32})) CheckCell(cell);
}

TEST_CASE("memory, instructions and traffic are the plan's: with a copy to save from") {
  for (const auto& cell : testing::AllCells({1, 3}, {Dtype::kBF16})) {
    CheckCell(cell, true, testing::TinyModel(), /*async_save=*/true);
  }
}

TEST_CASE("memory, instructions and traffic are the plan's: light states") {
  using testing::StatesCells;
  for (const auto& cell : StatesCells(testing::AllCells({1, 3}, {Dtype::kBF16}))) CheckCell(cell);
  for (const auto& cell : StatesCells(testing::HybridCells({{4, 2}}, Dtype::kBF16))) {
    CheckCell(cell);
  }
  for (const auto& cell : StatesCells(testing::AllCells({2}, {Dtype::kF16}, {1}))) {
    CheckCell(cell, true, testing::TinyModel(), /*async_save=*/true);
  }
  const ModelSpec lora = testing::WithLora(testing::TinyLlama(Llama()), "all-linear");
  for (const auto& cell : StatesCells(testing::AllCells({2}, {Dtype::kBF16}, {1}))) {
    CheckCell(cell, true, lora);
  }
}

TEST_CASE("memory, instructions and traffic are the plan's: homes of activations") {
  using testing::HomesCells;
  for (const auto& cell : HomesCells(testing::AllCells({1, 3}, {Dtype::kBF16}))) {
    CheckCell(cell, true, testing::TinyModel(5));
  }
  ModelSpec llama = testing::TinyLlama(Llama());
  llama.layers = 5;
  for (const auto& cell : HomesCells(testing::HybridCells({{4, 2}}, Dtype::kF32))) {
    CheckCell(cell, true, llama);
  }
  for (const auto& cell : HomesCells(testing::AllCells({2}, {Dtype::kF16}, {1}))) {
    CheckCell(cell, false, testing::WithLora(llama, "all-linear"));
  }
}

TEST_CASE("memory, instructions and traffic are the plan's: rows are tiled") {
  using testing::HomesCells;
  const auto cells = testing::AllCells({1, 3}, {Dtype::kBF16});
  for (const auto& cell : cells) {
    CheckCell(cell, true, testing::TinyModel(), false, false, /*tile_rows=*/6);
  }
  ModelSpec llama = testing::TinyLlama(Qwen2());
  llama.layers = 5;
  for (const auto& cell : HomesCells(cells)) CheckCell(cell, true, llama, false, false, 8);
}

TEST_CASE("memory, instructions and traffic are the plan's: products of eight bits") {
  for (auto cell : testing::AllCells({1, 3}, {Dtype::kBF16}, {1, 2})) {
    cell.setup = testing::WithFp8(cell.setup, Fp8Recipe::kTensor);
    CheckCell(cell, true, testing::Fp8Gpt2(Fp8Recipe::kTensor));
    if (cell.setup.zero.stage < 3 || cell.setup.zero.param_persistence_threshold != 60) continue;
    cell.setup.zero.param_persistence_threshold = 100;  // gathers in eight bits
    CheckCell(cell, true, testing::Fp8Llama(Fp8Recipe::kTensor));
  }
  for (auto cell : testing::HybridCells({{4, 2}}, Dtype::kBF16, {2})) {
    cell.setup = testing::WithFp8(cell.setup, Fp8Recipe::kTensor, Dtype::kE5M2);
    cell.setup.zero.param_persistence_threshold = 100;
    CheckCell(cell, true, testing::Fp8Gpt2(Fp8Recipe::kTensor));
  }
  for (const bool lora : {false, true}) {
    const ModelSpec llama = testing::Fp8Llama(Fp8Recipe::kTensor);
    for (auto cell : testing::SomeCells({Dtype::kF16})) {
      cell.setup = testing::WithFp8(cell.setup, Fp8Recipe::kTensor);
      CheckCell(cell, !lora, lora ? testing::WithLora(llama, "all-linear") : llama, false, lora);
    }
  }
  for (const int stage : {0, 3}) {
    for (const RecomputeConfig& recompute : {kNoRecompute, kSelectiveRecompute, FullRecompute()}) {
      testing::Cell cell{"blocks", testing::BaseSetup(stage, 2, Dtype::kBF16, 1, recompute)};
      cell.setup = testing::WithFp8(cell.setup, Fp8Recipe::kBlocks);
      CheckCell(cell, true, testing::Fp8Gpt2(Fp8Recipe::kBlocks, 1));
    }
  }
}

TEST_CASE("memory, instructions and traffic are the plan's: sequences over ranks") {
  using testing::SequenceCells;
  ModelSpec llama = testing::TinyLlama(Llama());
  for (const ModelSpec& model : {llama, testing::TinyLlama(Qwen3())}) {
    for (const auto& cell : SequenceCells(testing::AllCells({2, 4}, {Dtype::kBF16}), 2)) {
      CheckCell(cell, true, model);
    }
  }
  for (const auto& cell : SequenceCells(testing::AllCells({6}, {Dtype::kF32}, {2}), 6)) {
    CheckCell(cell, false, llama);
  }
  for (const auto& cell : SequenceCells(testing::HybridCells({{4, 2}, {8, 4}}, Dtype::kBF16), 2)) {
    CheckCell(cell, true, llama);
  }
  const ModelSpec lora =
      testing::WithDropout(testing::WithQlora(testing::TinyLlama(Qwen2()), "all-linear"));
  for (const bool flash_attention : {true, false}) {
    for (const auto& cell : SequenceCells(testing::SomeCells({Dtype::kBF16}), 2)) {
      CheckCell(cell, flash_attention, lora, false, /*document_borders=*/true);
    }
  }
  llama.layers = 5;
  using testing::HomesCells;
  for (const auto& cell : HomesCells(SequenceCells(testing::AllCells({2}, {Dtype::kBF16}), 2))) {
    CheckCell(cell, true, llama);
    CheckCell(cell, true, llama, false, false, /*tile_rows=*/5);
  }
}

TEST_CASE("memory, instructions and traffic are the plan's: borders of documents") {
  for (const ModelSpec& model :
       {testing::TinyModel(), testing::TinyLlama(Llama()), testing::TinyLlama(Qwen3())}) {
    for (const bool flash_attention : {true, false}) {
      for (const auto& cell : testing::SomeCells({Dtype::kBF16})) {
        CheckCell(cell, flash_attention, model, false, /*document_borders=*/true);
      }
    }
  }
}

TEST_CASE("memory, instructions and traffic are the plan's: families of llama's kind") {
  for (const ModelFamily* family : {&Llama(), &Qwen2(), &Qwen3()}) {
    const ModelSpec model = testing::TinyLlama(*family);
    // Shards are cut alike for all of them.
    const std::vector<int> ranks = family == &Llama() ? std::vector{1, 3} : std::vector{2};
    for (const auto& cell : testing::AllCells(ranks, {Dtype::kBF16})) CheckCell(cell, true, model);
  }
}

// One has a shared expert, one layers without experts; both have auxiliary losses.
std::vector<ModelSpec> Mixtures() {
  std::vector<ModelSpec> models = {testing::TinyMixture(Qwen2Moe()),
                                   testing::TinyMixture(Qwen3Moe())};
  models.back().layers = 3;
  models.back().dense_layers = "1";
  for (ModelSpec& model : models) {
    model.router_aux_loss = 0.02f;
    model.router_z_loss = 0.001f;
  }
  return models;
}

TEST_CASE("memory, instructions and traffic are the plan's: mixtures of experts") {
  for (const ModelSpec& model : Mixtures()) {
    const std::vector<int> ranks = model.dense_layers.empty() ? std::vector{1, 3} : std::vector{2};
    const auto cells = testing::AllCells(ranks, {Dtype::kBF16});
    for (const auto& cell : cells) CheckCell(cell, true, model);
    for (const auto& cell : testing::HomesCells(cells)) {
      CheckCell(cell, true, model, false, /*document_borders=*/true, /*tile_rows=*/8);
    }
    for (const auto& cell : testing::StatesCells(testing::AllCells({2}, {Dtype::kBF16}, {1}))) {
      CheckCell(cell, true, model, /*async_save=*/true);
    }
    for (const auto& cell : testing::HybridCells({{4, 2}}, Dtype::kBF16)) {
      CheckCell(cell, true, model);
    }
    for (const auto& cell : testing::SequenceCells(testing::SomeCells({Dtype::kBF16}), 2)) {
      CheckCell(cell, true, model);
    }
    for (const auto& cell : testing::SomeCells({Dtype::kF16, Dtype::kF32})) {
      CheckCell(cell, false, model);
    }
  }
}

TEST_CASE("mixtures of experts: the program lowered for a GPU runs on the CPU with its arenas") {
  for (const ModelSpec& model : Mixtures()) {
    for (int stage = 0; stage <= 3; ++stage) {
      CAPTURE(stage);
      LowerOptions lower = SmallChunks();
      lower.backend = Backend::kCuda;
      const TrainSetup setup = testing::BaseSetup(stage, 2, Dtype::kBF16, 2, FullRecompute());
      const Program program = Lower(model, setup, lower);
      VerifyOrThrow(program);
      Engine engine(program, {});
      engine.Init();
      engine.Step(testing::RandomBatch(program, 0));
      CHECK(engine.high_water().touched_bytes[0] == program.arena_bytes[0]);
    }
  }
}

TEST_CASE("memory, instructions and traffic are the plan's: adapters") {
  for (const char* targets : {"all-linear", "q_proj,down_proj"}) {
    const ModelSpec model = testing::WithLora(testing::TinyLlama(Llama()), targets);
    for (const auto& cell : testing::AllCells({1, 3}, {Dtype::kBF16})) {
      CheckCell(cell, true, model, /*async_save=*/std::string_view(targets) != "all-linear");
    }
  }
  const ModelSpec gpt2 = testing::WithLora(testing::TinyModel(), "all-linear");
  for (const auto& cell : testing::AllCells({2}, {Dtype::kF16})) CheckCell(cell, true, gpt2);
  // Of some layers, of several ranks and scales within a matrix.
  for (const char* targets : {"q_proj:2/5,k_proj@1:4,v_proj:2/5,down_proj@0", "up_proj@1:8"}) {
    const ModelSpec model = testing::WithLora(testing::TinyLlama(Qwen2()), targets);
    for (const auto& cell : testing::AllCells({2}, {Dtype::kBF16})) CheckCell(cell, true, model);
  }
  for (const ModelSpec& model : {gpt2, testing::WithQlora(testing::TinyLlama(Llama()), "o_proj")}) {
    for (const auto& cell : testing::SomeCells({Dtype::kBF16})) {
      CheckCell(cell, true, testing::WithDropout(model), false, /*document_borders=*/true);
    }
  }
}

TEST_CASE("memory, instructions and traffic are the plan's: adapters over a base in NF4") {
  const ModelSpec llama = testing::WithQlora(testing::TinyLlama(Llama()), "all-linear");
  for (const auto& cell : testing::AllCells({1, 3}, {Dtype::kBF16})) CheckCell(cell, true, llama);
  const ModelSpec gpt2 = testing::WithQlora(testing::TinyModel(), "c_attn,mlp.c_proj");
  for (const auto& cell : testing::AllCells({2}, {Dtype::kF32})) CheckCell(cell, true, gpt2);
}

// Sums over micro-steps and over ranks in fp32, of gradients in 16 bit.
TEST_CASE("memory, instructions and traffic are the plan's: fp32 sums of gradients") {
  struct Sums {
    Dtype grad_accum_dtype;
    bool fp32_reduction;
    int ranks;
  };
  ModelSpec tied = testing::TinyLlama(Llama());
  tied.tied_head = true;
  for (const Sums& sums :
       {Sums{Dtype::kF32, false, 1}, {Dtype::kBF16, true, 3}, {Dtype::kF32, true, 2}}) {
    for (testing::Cell& cell : testing::AllCells({sums.ranks}, {Dtype::kBF16})) {
      TrainSetup& setup = cell.setup;
      if (setup.recompute != kNoRecompute || setup.zero.max_reuse_distance > 0) continue;
      setup.precision.grad_accum_dtype = sums.grad_accum_dtype;
      setup.precision.fp32_reduction = sums.fp32_reduction;
      setup.zero.overlap_comm = setup.batch.grad_accum > 1;
      cell.name += fmt::format(" summed in {} reduced in fp32 {}", DtypeName(sums.grad_accum_dtype),
                               sums.fp32_reduction);
      CheckCell(cell, true, setup.zero.stage % 2 == 0 ? testing::TinyModel() : tied);
    }
  }
}

TEST_CASE("memory, instructions and traffic are the plan's: attention not fused") {
  const std::vector<Dtype> dtypes = {Dtype::kBF16, Dtype::kF16, Dtype::kF32};
  for (const auto& cell : testing::SomeCells(dtypes)) CheckCell(cell, false);
}

TEST_CASE("the program lowered for a GPU runs on the CPU with the GPU's arenas") {
  for (int stage = 0; stage <= 3; ++stage) {
    for (bool flash_attention : {true, false}) {
      TrainSetup setup = testing::BaseSetup(stage, 2, Dtype::kBF16, 1, FullRecompute());
      CAPTURE(stage);
      CAPTURE(flash_attention);
      LowerOptions lower = SmallChunks();
      lower.backend = Backend::kCuda;
      lower.flash_attention = flash_attention;
      const Program program = Lower(testing::TinyModel(), setup, lower);
      Engine engine(program, {});
      engine.Init();
      engine.Step(testing::RandomBatch(program, 0));
      CHECK(engine.high_water().touched_bytes[0] == program.arena_bytes[0]);
    }
  }
}

TEST_CASE(
    "the program lowered for a GPU trains like the CPU's, though GELU rides on its products") {
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    for (const RecomputeConfig& recompute : {kNoRecompute, kSelectiveRecompute, FullRecompute()}) {
      CAPTURE(DtypeName(dtype));
      CAPTURE(RecomputeName(recompute));
      const TrainSetup setup = testing::BaseSetup(1, 2, dtype, 2, recompute);
      const auto losses = [&](Backend backend) {
        LowerOptions lower = SmallChunks();
        lower.backend = backend;
        const Program program = Lower(testing::TinyModel(), setup, lower);
        Engine engine(program, {});
        engine.Init();
        std::vector<double> all;
        for (int step = 0; step < 4; ++step) {
          all.push_back(engine.Step(testing::RandomBatch(program, step)).loss_sum);
        }
        all.push_back(engine.Evaluate([&](int rank, int64_t, auto inputs, auto targets) {
          testing::RandomBatch(program, 9)(rank, 0, inputs, targets);
        }));
        return all;
      };
      const std::vector<double> gpu = losses(Backend::kCuda), cpu = losses(Backend::kCpu);
      // One rounding fewer a layer; a rounding of bf16 is 2^-9 of the value, and the loss is a mean
      // over many.
      for (size_t i = 0; i < gpu.size(); ++i) CHECK(std::abs(gpu[i] - cpu[i]) < 0x1p-9 * cpu[i]);
    }
  }
}

}  // namespace
}  // namespace zeroplan
