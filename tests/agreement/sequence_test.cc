// Ranks that share sequences train like one rank: the same losses and gradients on the same global
// batch. In fp32 what differs is the order of sums alone: gradients over ranks, and those of key
// and value heads that several ranks have.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "core/families/mixtral/mixtral.h"
#include "core/families/qwen2_moe/qwen2_moe.h"
#include "core/families/qwen3_moe/qwen3_moe.h"
#include "core/lowering/lower.h"
#include "core/program/collectives.h"
#include "core/program/step_order.h"
#include "core/settings/setup_facts.h"
#include "cost_models/memory_walk.h"
#include "cost_models/traffic.h"
#include "executor/engine/engine.h"
#include "tests/agreement/engine_gradients.h"
#include "tests/agreement/packed_training.h"
#include "tests/core/families/llama/tiny_llama.h"
#include "tests/core/families/tiny_mixture.h"
#include "tests/core/lowering/matrix.h"
#include "tests/core/model/with_lora.h"
#include "tests/error_of.h"

namespace zeroplan::sequence_ranks {
namespace {

constexpr int64_t kSequences = 4;  // of a global batch

// Of six query heads two of keys and values; of eight, as many as said.
ModelSpec EightHeads(int64_t kv_heads) {
  ModelSpec model = testing::TinyLlama(Llama());
  model.heads = 8;
  model.kv_heads = kv_heads;
  model.head_size = 4;
  return model;
}

struct Cut {
  int ranks, shared;
  int64_t grad_accum = 1;
};

TrainSetup SetupFor(int stage, testing::Offload offload, const Cut& cut,
                    const RecomputeConfig& recompute = kNoRecompute, Dtype dtype = Dtype::kF32) {
  TrainSetup setup = testing::BaseSetup(stage, cut.ranks, dtype, cut.grad_accum, recompute);
  setup.batch.seq_len = 12;
  setup.batch.sequence_ranks = cut.shared;
  setup.batch.micro_batch = kSequences / (setup.batch.data_ranks() * cut.grad_accum);
  testing::SetOffload(setup, offload);
  setup.optimizer.lr = 3e-3;
  setup.optimizer.weight_decay = 0.1;
  if (stage == 3) {
    setup.zero.param_persistence_threshold = 60;
    setup.zero.max_reuse_distance = 3000;
  }
  return setup;
}
TrainSetup OneRank() { return SetupFor(0, testing::Offload::kNone, {1, 1}); }

EngineOptions OneThread(uint64_t order_seed = 0) {
  EngineOptions options;
  options.threads_per_rank = 1;
  options.swap_dir = "/tmp";
  options.random_order_seed = order_seed;
  return options;
}

// Of each step, then of a validation.
std::vector<double> Losses(const ModelSpec& model, const TrainSetup& setup, uint64_t order_seed = 0,
                           bool flash_attention = true, uint64_t steps = 6) {
  LowerOptions lower;
  lower.flash_attention = flash_attention;
  const Program program = Lower(model, setup, lower);
  Engine engine(program, OneThread(order_seed));
  engine.Init();
  std::vector<double> losses;
  for (uint64_t step = 0; step < steps; ++step) {
    losses.push_back(engine.Step(testing::RandomBatch(program, step)).loss_sum);
  }
  if (setup.batch.grad_accum == 1) {  // else a batch of another size
    losses.push_back(engine.Evaluate(testing::RandomBatch(program, steps)));
  }
  return losses;
}

// As in parity_test.cc: sums of fp32 in another order, over steps of Adam.
constexpr double kTolerance = 2e-4;

void CheckFollows(const std::vector<double>& control, const std::vector<double>& losses) {
  REQUIRE(losses.size() <= control.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(losses[i] - control[i]) <= kTolerance * control[i]);
  }
  // The first is of the same weights: its mean alone is summed in another order.
  CHECK(std::abs(losses[0] - control[0]) <= 1e-6 * control[0]);
}

TEST_CASE("ranks that share sequences follow one rank: stages and offloads") {
  const ModelSpec model = testing::TinyLlama(Llama());
  const std::vector<double> control = Losses(model, OneRank());
  CHECK(control[5] < control[0]);
  for (int stage = 0; stage <= 3; ++stage) {
    for (const testing::Offload offload : testing::OffloadsOf(stage)) {
      CAPTURE(stage);
      CAPTURE(testing::OffloadLabel(offload));
      for (const Cut& cut : {Cut{2, 2}, Cut{4, 2}, Cut{8, 2}, Cut{6, 6}, Cut{4, 2, 2}}) {
        CAPTURE(cut.ranks);
        CAPTURE(cut.shared);
        CAPTURE(cut.grad_accum);
        CheckFollows(control, Losses(model, SetupFor(stage, offload, cut)));
      }
    }
  }
}

TEST_CASE("ranks that share sequences follow one rank: heads of every kind") {
  for (const ModelSpec& model :
       {EightHeads(8), EightHeads(4), EightHeads(2), EightHeads(1), testing::TinyLlama(Qwen2()),
        testing::TinyLlama(Qwen3()), testing::TinyMixture(Qwen3Moe()),
        testing::TinyMixture(Mixtral()), testing::TinyMixture(Qwen2Moe()),
        testing::WithLora(testing::TinyLlama(Qwen3()), "all-linear")}) {
    CAPTURE(model.family->name());
    CAPTURE(model.heads);
    CAPTURE(model.KvHeads());
    for (const bool flash_attention : {true, false}) {
      const std::vector<double> control = Losses(model, OneRank(), 0, flash_attention);
      for (const Cut& cut : {Cut{2, 2}, Cut{4, 4}, Cut{8, 4}, Cut{6, 6}}) {
        if (model.heads % cut.shared != 0) continue;
        CAPTURE(cut.ranks);
        CAPTURE(cut.shared);
        for (const int stage : {0, 3}) {
          CheckFollows(control, Losses(model, SetupFor(stage, testing::Offload::kNone, cut), 0,
                                       flash_attention));
        }
      }
    }
  }
}

TEST_CASE("ranks that share sequences follow one rank: shard groups of any size beside them") {
  TrainSetup alone = OneRank();
  alone.batch.seq_len = 8;
  const std::vector<double> control = Losses(EightHeads(2), alone);
  for (const int shared : {2, 4, 8}) {
    for (const auto& cell : testing::HybridCells({{8, 2}, {8, 4}}, Dtype::kF32, {1})) {
      CAPTURE(shared);
      CAPTURE(cell.name);
      TrainSetup setup = SetupFor(cell.setup.zero.stage, testing::Offload::kNone, {8, shared});
      setup.batch.seq_len = 8;
      setup.zero = cell.setup.zero;
      CheckFollows(control, Losses(EightHeads(2), setup));
    }
  }
}

TEST_CASE("ranks that share sequences: gradients are those of one rank") {
  for (const ModelSpec& model :
       {testing::TinyLlama(Llama()), testing::TinyLlama(Qwen3()), EightHeads(2)}) {
    const auto gradients = [&](const Cut& cut, const RecomputeConfig& recompute, int rank) {
      const Program program = Lower(model, SetupFor(0, testing::Offload::kNone, cut, recompute));
      const testing::RandomState start(*program.layout.tensors, 5);
      testing::MemoryState state(program.layout);
      start.WriteTo(state);
      Engine engine(program, OneThread());
      engine.Init();
      engine.Load(state, true, nullptr);
      engine.Step(testing::RandomBatch(program, 3));
      return testing::EngineGradients(program, engine, rank);
    };
    const testing::Tensors wanted = gradients({1, 1}, kNoRecompute, 0);
    for (const Cut& cut : {Cut{2, 2}, Cut{4, 4}, Cut{4, 2, 2}, Cut{6, 6}}) {
      if (model.heads % cut.shared != 0) continue;
      for (const RecomputeConfig& recompute :
           {kNoRecompute, kSelectiveRecompute, kProductsRecompute, FullRecompute(2)}) {
        CAPTURE(model.family->name());
        CAPTURE(cut.ranks);
        CAPTURE(cut.shared);
        CAPTURE(RecomputeName(recompute));
        const testing::Tensors grads = gradients(cut, recompute, cut.ranks - 1);
        REQUIRE(grads.size() == wanted.size());
        for (size_t t = 0; t < wanted.size(); ++t) {
          CAPTURE(t);
          double worst = 0;
          for (size_t i = 0; i < wanted[t].size(); ++i) {
            worst = std::max(worst, std::abs(grads[t][i] - wanted[t][i]));
          }
          // Twice gradient_test.cc's: both are sums of fp32.
          CHECK(worst < 3e-5 * testing::LargestMagnitude(wanted[t]));
        }
      }
    }
  }
}

// The models, the batch and the step of llama_families_test.cc.
TEST_CASE("ranks that share sequences: gradients are the slopes of their own loss") {
  for (const ModelFamily* family : {&Llama(), &Qwen2(), &Qwen3()}) {
    TrainSetup setup = testing::BaseSetup(0, 2, Dtype::kF32, 1, kNoRecompute);
    setup.batch.sequence_ranks = 2;
    testing::ForEachEngineSlope(
        Lower(testing::TinyLlama(*family), setup), 2,
        [](const ParamTensor& tensor, double slope, double gradient) {
          CAPTURE(tensor.name);
          CHECK(std::abs(slope - gradient) < 2e-5 + 1e-4 * std::abs(gradient));
        },
        1.0 / 64);
  }
}

TEST_CASE("ranks that share sequences: homes of activations and any legal order, to the bit") {
  for (ModelSpec model : {testing::TinyLlama(Llama()), testing::TinyLlama(Qwen3())}) {
    model.layers = 5;
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      for (const int stage : {0, 2, 3}) {
        const auto losses = [&](const RecomputeConfig& recompute, uint64_t order_seed) {
          return Losses(model, SetupFor(stage, testing::Offload::kNone, {4, 2}, recompute, dtype),
                        order_seed, true, 4);
        };
        const std::vector<double> kept = losses(kNoRecompute, 0);
        std::vector<RecomputeConfig> homes = testing::Homes();
        homes.push_back(kSelectiveRecompute);
        homes.push_back(FullRecompute(2));
        for (const RecomputeConfig& recompute : homes) {
          CAPTURE(testing::HomesName(recompute));
          CHECK(losses(recompute, 0) == kept);
          CHECK(losses(recompute, 11) == kept);
        }
      }
    }
  }
}

TEST_CASE("ranks that share sequences see the borders of their rows' documents") {
  namespace packed = packed_training;
  std::mt19937 random(4);
  for (const ModelSpec& model : {packed::LlamaModel(Llama()), packed::LlamaModel(Qwen3())}) {
    std::vector<testing::Sequence> documents;
    do {
      documents = packed::RandomDocuments(random, 10);
    } while (packed::Packed(documents, 4).count() != 4);
    const packed::Rows rows = packed::Packed(documents, 4);
    const auto train = [&](const Cut& cut, bool borders, const RecomputeConfig& recompute) {
      TrainSetup setup = testing::BaseSetup(2, cut.ranks, Dtype::kF32, cut.grad_accum, recompute);
      setup.batch.sequence_ranks = cut.shared;
      return packed::Train(model, setup, borders, {rows});
    };
    const packed::Outcome control = train({1, 1}, true, kNoRecompute);
    const auto check = [&](const packed::Outcome& outcome) {
      const double loss = control.steps[0].loss_sum;
      CHECK(std::abs(outcome.steps[0].loss_sum - loss) < 2e-6 * loss);
      CHECK(testing::FarthestTensor(outcome.moments, control.moments) < 2e-5);
    };
    for (const Cut& cut : {Cut{2, 2}, Cut{4, 2, 2}, Cut{8, 2}}) {
      CAPTURE(cut.ranks);
      check(train(cut, true, kNoRecompute));
      check(train(cut, true, kProductsRecompute));
    }
    // It would not pass without the borders.
    CHECK(testing::FarthestTensor(train({2, 2}, false, kNoRecompute).moments, control.moments) >
          0.1);
  }
}

TEST_CASE("ranks that share sequences: a checkpoint goes on at any number of them") {
  const ModelSpec model = EightHeads(2);
  const Program first = Lower(model, SetupFor(3, testing::Offload::kBoth, {4, 2}));
  testing::MemoryState saved(first.layout);
  Engine engine(first, OneThread());
  engine.Init();
  for (uint64_t step = 0; step < 3; ++step) engine.Step(testing::RandomBatch(first, step));
  engine.Save(std::vector<StateSink*>(4, &saved));
  const StepState state = engine.state();
  const StepState wanted = engine.Step(testing::RandomBatch(first, 3));
  for (const Cut& cut : {Cut{4, 2}, Cut{1, 1}, Cut{8, 4}, Cut{2, 2, 2}}) {
    CAPTURE(cut.ranks);
    CAPTURE(cut.shared);
    const Program program =
        Lower(model, SetupFor(cut.ranks == 1 ? 0 : 2, testing::Offload::kNone, cut));
    Engine resumed(program, OneThread());
    resumed.Init();
    resumed.Load(saved, true, &state);
    testing::MemoryState again(program.layout);
    resumed.Save(std::vector<StateSink*>(static_cast<size_t>(cut.ranks), &again));
    CHECK(again == saved);
    const StepState next = resumed.Step(testing::RandomBatch(program, 3));
    CHECK(std::abs(next.loss_sum - wanted.loss_sum) <= 1e-6 * wanted.loss_sum);
  }
}

// A layer has four exchanges: of query, key and value, of attention's output, and of the gradients
// of both. A rank keeps one part of S.
TEST_CASE("ranks that share sequences: what they exchange, by hand") {
  struct Case {
    ModelSpec model;
    int shared;
    int64_t kv_heads;  // of a rank
  };
  for (const Case& c : {Case{testing::TinyLlama(Llama()), 2, 1}, Case{EightHeads(2), 4, 1},
                        Case{EightHeads(8), 4, 2}}) {
    TrainSetup setup =
        SetupFor(2, testing::Offload::kNone, {8, c.shared}, kNoRecompute, Dtype::kBF16);
    const auto sent = [&] {
      return WalkTraffic(Lower(c.model, setup))
          .axis_bytes[static_cast<size_t>(RankAxis::kSequence)];
    };
    const BatchSpec& batch = setup.batch;
    const auto heads_sent = [&](int64_t heads) {
      return static_cast<uint64_t>(batch.micro_batch * batch.local_seq() * heads *
                                   c.model.HeadSize() * 2 * (c.shared - 1));
    };
    const int64_t queries = c.model.heads / c.shared;
    const uint64_t of_qkv = heads_sent(queries + 2 * c.kv_heads), of_output = heads_sent(queries);
    const auto layers = static_cast<uint64_t>(c.model.layers);
    CHECK(sent() == layers * 2 * (of_qkv + of_output));
    // Attention's inputs and output are made again, and what it made is exchanged again.
    setup.recompute = kProductsRecompute;
    CHECK(sent() == layers * 3 * (of_qkv + of_output));
    setup.recompute = FullRecompute();
    CHECK(sent() == layers * 3 * (of_qkv + of_output));
    const Program program = Lower(c.model, setup);
    const std::vector<CommunicatorKey> keys = CommunicatorsOf(program);
    CHECK(keys.back() == CommunicatorKey{RankAxis::kSequence, Stream::kGather});
    // Of them one exchanges, over connections to each other rank of the node that take as much
    // again.
    const OutsideArenas outside = OutsideArenasOf(program);
    const int made = static_cast<int>(keys.size());
    CHECK(outside.communicators == made);
    CHECK(outside.exchanges == std::vector<OutsideArenas::Exchange>{{c.shared, 1}});
    CHECK(outside.Communicators({2 * c.shared, 8}) == made + c.shared - 1);
    CHECK(outside.Communicators({2 * c.shared, 2}) == made + 1);
    CHECK(outside.Communicators({2 * c.shared, 1}) == made);
  }
}

TEST_CASE("ranks that share sequences: where nothing below is trained, nothing is exchanged back") {
  ModelSpec model = testing::TinyLlama(Llama());
  model.frozen = "model.embed_tokens.*,model.layers.0.*";
  const Program program = Lower(model, SetupFor(2, testing::Offload::kNone, {4, 2}));
  int forward = 0, backward = 0;
  for (const Instruction& instruction : program.section(Section::kMicroStep)) {
    const auto* collective = std::get_if<Collective>(&instruction.op);
    if (collective == nullptr || collective->kind != CollectiveKind::kAllToAll) continue;
    ++(instruction.phase == Phase::kForward ? forward : backward);
    if (instruction.phase == Phase::kBackward) CHECK(instruction.layer == 1);
  }
  CHECK(forward == 4);
  CHECK(backward == 2);
}

TEST_CASE("sequence ranks that a batch or a model cannot have are refused") {
  const auto problem = [](const BatchSpec& batch) {
    TrainSetup setup;
    setup.batch = batch;
    const auto found = FindSetupProblem(setup);
    return found ? found->key + ": " + found->message : "";
  };
  CHECK(problem({1, 1, 8, 64, 4}).empty());
  CHECK(problem({1, 1, 8, 64, 3}) ==
        "sequence_parallel_size: 3 is not allowed with 8 ranks; use a divisor of these");
  CHECK(problem({1, 1, 8, 66, 4}) ==
        "sequence_parallel_size: 4 is not allowed with sequences of 66 tokens; use a divisor of "
        "these, or "
        "a multiple of it as ⟦seq_len⟧");
  const auto of_model = [](const ModelSpec& model, int shared) {
    const auto found = FindSequenceProblem(model, {1, 1, 24, 48, shared});
    return found ? found->key + ": " + found->message : "";
  };
  CHECK(of_model(testing::TinyModel(), 1).empty());
  CHECK(of_model(testing::TinyModel(), 2) ==
        "sequence_parallel_size: 2 is not allowed: models of type gpt2 learn their positions, of "
        "which "
        "each rank would need its own; use 1, or a model with rotary positions");
  for (const int shared : {1, 2, 6}) CHECK(of_model(testing::TinyLlama(Llama()), shared).empty());
  CHECK(of_model(testing::TinyLlama(Llama()), 4) ==
        "sequence_parallel_size: 4 is not allowed: tiny has 6 query heads; use a divisor of these");
  CHECK(of_model(testing::TinyLlama(Llama()), 3) ==
        "sequence_parallel_size: 3 is not allowed: tiny has 2 key and value heads; use a divisor "
        "or a "
        "multiple of these");
}

}  // namespace
}  // namespace zeroplan::sequence_ranks
