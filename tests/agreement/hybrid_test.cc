// Shard groups: whatever they are, a checkpoint goes on at another grouping, models of which a part
// is frozen train as at stage 0, no order of events can make ranks wait for one another for ever,
// and a grouping of all ranks is none.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "core/config/deepspeed_writer.h"
#include "core/lowering/lower.h"
#include "core/program/step_order.h"
#include "executor/engine/engine.h"
#include "tests/agreement/memory_state.h"
#include "tests/core/families/llama/tiny_llama.h"
#include "tests/core/lowering/matrix.h"
#include "tests/core/model/with_lora.h"

namespace zeroplan {
namespace {

EngineOptions HybridOptions() {
  EngineOptions options;
  options.threads_per_rank = 1;
  options.swap_dir = "/tmp";
  return options;
}

void SaveTo(Engine& engine, const Program& program, testing::MemoryState& state) {
  const std::vector<StateSink*> sinks(static_cast<size_t>(program.setup.batch.world_size), &state);
  engine.Save(sinks);
}

// ---- checkpoints ----

TEST_CASE("shard groups: a checkpoint is the same at any grouping, and goes on at another") {
  std::vector<TrainSetup> setups;
  for (auto cell : testing::HybridCells({{4, 2}}, Dtype::kF32, {2})) {
    cell.setup.batch.micro_batch = 1;
    setups.push_back(cell.setup);
  }
  for (const int stage : {0, 3}) {
    setups.push_back(testing::BaseSetup(stage, 4, Dtype::kF32, 2, kNoRecompute));
    setups.back().batch.micro_batch = 1;
  }
  const Program first = Lower(testing::TinyModel(), setups.front());
  testing::MemoryState saved(first.layout);
  Engine engine(first, HybridOptions());
  engine.Init();
  for (uint64_t step = 0; step < 3; ++step) engine.Step(testing::RandomBatch(first, step));
  SaveTo(engine, first, saved);
  const StepState state = engine.state();
  const double wanted = engine.Step(testing::RandomBatch(first, 3)).loss_sum;
  const double after = engine.Step(testing::RandomBatch(first, 4)).loss_sum;

  for (const TrainSetup& setup : setups) {
    CAPTURE(setup.zero.stage);
    CAPTURE(setup.zero.shard_group);
    CAPTURE(AcrossName(setup.zero.across_stage));
    const Program program = Lower(testing::TinyModel(), setup);
    testing::MemoryState again(program.layout);
    Engine other(program, HybridOptions());
    other.Init();
    other.Load(saved, true, &state);
    SaveTo(other, program, again);
    for (size_t t = 0; t < program.layout.tensors->size(); ++t) {
      const uint64_t elements = (*program.layout.tensors)[t].elements();
      std::vector<float> a(elements), b(elements);
      for (const StateKind kind : kStateKinds) {
        saved.Read({static_cast<int>(t), kind, 0, elements}, a);
        again.Read({static_cast<int>(t), kind, 0, elements}, b);
        CHECK(a == b);
      }
    }
    // The forward pass of the same weights has the same bits; sums of gradients are in another
    // order.
    CHECK(other.Step(testing::RandomBatch(program, 3)).loss_sum == wanted);
    CHECK(std::abs(other.Step(testing::RandomBatch(program, 4)).loss_sum - after) <= 1e-5 * after);
  }
}

TEST_CASE("shard groups: a run that goes on at its own grouping has the same bits") {
  for (const auto& cell : testing::HybridCells({{4, 2}}, Dtype::kBF16, {1, 2})) {
    CAPTURE(cell.name);
    const Program program = Lower(testing::TinyModel(), cell.setup);
    testing::MemoryState saved(program.layout);
    Engine engine(program, HybridOptions());
    engine.Init();
    for (uint64_t step = 0; step < 2; ++step) engine.Step(testing::RandomBatch(program, step));
    SaveTo(engine, program, saved);
    const StepState state = engine.state();
    Engine resumed(program, HybridOptions());
    resumed.Init();
    resumed.Load(saved, true, &state);
    for (uint64_t step = 2; step < 5; ++step) {
      const StepState a = engine.Step(testing::RandomBatch(program, step));
      const StepState b = resumed.Step(testing::RandomBatch(program, step));
      CHECK(a.loss_sum == b.loss_sum);
      CHECK(a.grad_norm == b.grad_norm);
    }
  }
}

// ---- what is frozen ----

TEST_CASE("shard groups: adapters, over a base in 16 bit or in NF4, follow stage 0") {
  ModelSpec wide = testing::TinyLlama(Llama());
  wide.hidden = 192;
  wide.ffn = 512;
  for (const ModelSpec& model : {testing::WithLora(testing::TinyLlama(Llama()), "all-linear"),
                                 testing::WithQlora(wide, "q_proj,down_proj")}) {
    const auto losses = [&](TrainSetup setup) {
      setup.batch.micro_batch = 8 / (setup.batch.world_size * setup.batch.grad_accum);
      setup.optimizer.lr = 1e-2;
      const Program program = Lower(model, setup);
      Engine engine(program, HybridOptions());
      engine.Init();
      std::vector<double> of_steps;
      for (uint64_t step = 0; step < 6; ++step) {
        of_steps.push_back(engine.Step(testing::RandomBatch(program, step)).loss_sum);
      }
      return of_steps;
    };
    const std::vector<double> control =
        losses(testing::BaseSetup(0, 1, Dtype::kF32, 1, kNoRecompute));
    CHECK(control.back() < control.front());
    for (const auto& cell : testing::HybridCells({{4, 2}}, Dtype::kF32, {2})) {
      CAPTURE(cell.name);
      const std::vector<double> found = losses(cell.setup);
      for (size_t i = 0; i < found.size(); ++i) {
        CHECK(std::abs(found[i] - control[i]) <= 2e-4 * control[i]);
      }
    }
  }
}

// ---- order ----

// Ranks that each issue a program's instructions to their streams, in any order that streams and
// events leave open: a collective begins once its whole group has come to it.
class RanksInAnyOrder {
 public:
  // `last`: what the last rank runs, if it is another program.
  RanksInAnyOrder(const Program& program, uint32_t seed, const Program* last = nullptr)
      : axes_(program.axes()),
        random_(seed),
        queues_(static_cast<size_t>(axes_.ranks())),
        recorded_(static_cast<size_t>(axes_.ranks())) {
    for (auto& queues : queues_) {
      const bool other = last != nullptr && &queues == &queues_.back();
      Issue(other ? *last : program, queues);
    }
    for (auto& recorded : recorded_) recorded.assign(issued_records_.size(), false);
  }

  // Whether all ranks come to the end.
  bool Finish() {
    for (bool moved = true; moved;) {
      moved = false;
      std::vector<std::pair<size_t, size_t>> order;
      for (size_t r = 0; r < queues_.size(); ++r) {
        for (size_t s = 0; s < kStreams; ++s) order.emplace_back(r, s);
      }
      std::shuffle(order.begin(), order.end(), random_);
      for (const auto& [rank, stream] : order) {
        // Any number of instructions, so that streams get apart.
        for (uint32_t n = random_() % 20; n > 0 && Advance(rank, stream); --n) moved = true;
      }
      if (!moved) {
        for (const auto& [rank, stream] : order) moved = Advance(rank, stream) || moved;
      }
    }
    for (const auto& queues : queues_) {
      for (const Queue& queue : queues) {
        if (queue.at < queue.steps.size()) return false;
      }
    }
    return true;
  }

 private:
  // Of an event: which of its records, as a wait sees it when it is issued.
  struct Step {
    const Instruction* instruction;
    size_t record = SIZE_MAX;
  };
  struct Queue {
    std::vector<Step> steps;
    size_t at = 0;
  };

  void Issue(const Program& program, std::array<Queue, kStreams>& queues) {
    issued_records_.clear();
    std::map<EventId, size_t> latest;
    const auto issue = [&](Section section, uint8_t kind) {
      for (const Instruction& instruction : program.section(section)) {
        if (section == Section::kMicroStep && (instruction.when & kind) == 0) continue;
        Step step{&instruction};
        if (const auto* record = std::get_if<RecordEvent>(&instruction.op)) {
          step.record = latest[record->event] = issued_records_.size();
          issued_records_.push_back(record->event);
        } else if (const auto* wait = std::get_if<WaitEvent>(&instruction.op)) {
          const auto found = latest.find(wait->event);
          if (found != latest.end()) step.record = found->second;
        }
        queues[static_cast<size_t>(instruction.stream)].steps.push_back(step);
      }
    };
    for (int step = 0; step < 2; ++step) {
      ForEachStepSection(program.setup.batch.grad_accum,
                         [&](Section section, uint8_t kind, int64_t) { issue(section, kind); });
    }
    issue(Section::kDrain, kEvery);
  }

  bool Advance(size_t rank, size_t stream) {
    Queue& queue = queues_[rank][stream];
    if (queue.at == queue.steps.size()) return false;
    const Step& step = queue.steps[queue.at];
    if (std::holds_alternative<WaitEvent>(step.instruction->op)) {
      if (step.record != SIZE_MAX && !recorded_[rank][step.record]) return false;
    } else if (std::holds_alternative<RecordEvent>(step.instruction->op)) {
      recorded_[rank][step.record] = true;
    } else if (const auto* collective = std::get_if<Collective>(&step.instruction->op)) {
      const RankAxis axis = collective->axis;
      const int group = axes_.Group(axis, static_cast<int>(rank));
      std::vector<Queue*> of_group;
      for (size_t r = 0; r < queues_.size(); ++r) {
        if (axes_.Group(axis, static_cast<int>(r)) != group) continue;
        Queue& other = queues_[r][stream];
        if (other.at == other.steps.size()) return false;
        const auto* theirs = std::get_if<Collective>(&other.steps[other.at].instruction->op);
        if (theirs == nullptr || theirs->first_segment != collective->first_segment) return false;
        of_group.push_back(&other);
      }
      for (Queue* other : of_group) ++other->at;
      return true;
    }
    ++queue.at;
    return true;
  }

  const RankAxes axes_;
  std::mt19937 random_;
  std::vector<std::array<Queue, kStreams>> queues_;  // by rank
  std::vector<EventId> issued_records_;
  std::vector<std::vector<bool>> recorded_;  // by rank and record
};

TEST_CASE("shard groups: ranks come to the end in any order that streams and events leave open") {
  uint32_t seed = 1;
  for (const auto& cell : testing::HybridCells({{4, 2}, {6, 3}}, Dtype::kBF16)) {
    CAPTURE(cell.name);
    const Program program = Lower(testing::TinyModel(), cell.setup);
    for (int run = 0; run < 3; ++run) CHECK(RanksInAnyOrder(program, seed++).Finish());
  }
  // One rank that issues two collectives the other way round is found.
  TrainSetup setup = testing::BaseSetup(3, 4, Dtype::kBF16, 1, kNoRecompute);
  setup.zero.shard_group = 2;
  const Program program = Lower(testing::TinyModel(), setup);
  Program swapped = program;
  std::vector<Instruction>& list = swapped.section(Section::kMicroStep);
  std::vector<size_t> reductions;
  for (size_t i = 0; i < list.size(); ++i) {
    const bool reduces = list[i].stream == Stream::kReduce && list[i].when == kEvery;
    if (reduces && std::holds_alternative<Collective>(list[i].op)) reductions.push_back(i);
  }
  REQUIRE(reductions.size() >= 2);
  std::swap(list[reductions[0]].op, list[reductions[1]].op);
  CHECK(RanksInAnyOrder(program, seed).Finish());
  CHECK_FALSE(RanksInAnyOrder(program, seed, &swapped).Finish());
}

TEST_CASE("ranks that share sequences come to the end in any order that is left open") {
  uint32_t seed = 1;
  const ModelSpec model = testing::TinyLlama(Llama());
  // Within a shard group, across two, and as one.
  for (const auto& [groups, shared] :
       {std::pair(testing::Groups{8, 4}, 2), {testing::Groups{8, 2}, 4}, {{6, 2}, 6}}) {
    for (const auto& cell :
         testing::SequenceCells(testing::HybridCells({groups}, Dtype::kBF16), shared)) {
      CAPTURE(cell.name);
      ModelSpec spec = model;
      spec.heads = shared == 4 ? 8 : 6;
      spec.head_size = 4;
      TrainSetup setup = cell.setup;
      if (seed % 2 == 0) setup.recompute = FullRecompute();
      const Program program = Lower(spec, setup);
      for (int run = 0; run < 2; ++run) CHECK(RanksInAnyOrder(program, seed++).Finish());
    }
  }
}

// ---- one group ----

TEST_CASE("shard groups: one group of all ranks is the program without groups") {
  for (int stage = 1; stage <= 3; ++stage) {
    TrainSetup setup = testing::BaseSetup(stage, 4, Dtype::kBF16, 2, kNoRecompute);
    const Program pure = Lower(testing::TinyModel(), setup);
    setup.zero.shard_group = 4;
    const Program grouped = Lower(testing::TinyModel(), setup);
    CHECK(FormatProgram(grouped) == FormatProgram(pure));
    CHECK(CanonicalSetup(setup, 2).zero.shard_group == 0);
  }
}

}  // namespace
}  // namespace zeroplan
