// Runs whose states are not all fp32: saved, resumed, resumed with states of another kind,
// exported.
#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <optional>

#include "core/base/log.h"
#include "core/base/split_master.h"
#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/checkpoint/checkpoint_source.h"
#include "executor/checkpoint/hf_weights.h"
#include "executor/checkpoint/safetensors.h"
#include "executor/engine/engine.h"
#include "executor/process/process_group.h"
#include "executor/train/group_save.h"
#include "tests/agreement/memory_state.h"
#include "tests/core/lowering/matrix.h"
#include "tests/executor/train/train_fixture.h"
#include "tests/has.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;
using testing::kStatesKinds;
using testing::StatesKind;

PrecisionConfig PrecisionOf(const StatesKind& kind) {
  PrecisionConfig precision;
  precision.dtype = precision.grad_accum_dtype = Dtype::kBF16;
  precision.master_weights = kind.masters;
  precision.moment_dtype = kind.moments;
  return precision;
}

// Every element of every state of the latest checkpoint.
std::vector<float> LatestStates(const Program& program, const fs::path& save) {
  const auto source = CheckpointSource::Open(save, program.model, *program.layout.tensors);
  source.Verify();
  std::vector<float> all;
  for (size_t t = 0; t < program.layout.tensors->size(); ++t) {
    for (const StateKind kind : kStateKinds) {
      std::vector<float> values((*program.layout.tensors)[t].elements());
      source.Read({static_cast<int>(t), kind, 0, values.size()}, values);
      all.insert(all.end(), values.begin(), values.end());
    }
  }
  return all;
}

bool AreSameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The warnings of a run.
std::string g_warnings;
void KeepWarnings(std::string_view text, const char*) {
  if (text.starts_with("warning: ")) g_warnings += std::string(text) + "\n";
}
template <typename Fn>
std::string WarningsOf(const Fn& run) {
  g_warnings.clear();
  const LogLevel before = GetLogLevel();
  SetLogLevel(LogLevel::kWarning);
  SetMessageWriter(KeepWarnings);
  run();
  SetMessageWriter([](std::string_view text, const char* end) {
    std::fprintf(stderr, "%.*s%s", static_cast<int>(text.size()), text.data(), end);
  });
  SetLogLevel(before);
  return g_warnings;
}

TEST_CASE("states of every kind: a resumed run ends with the bits of one that was not stopped") {
  const TrainFixture fixture;
  const std::string data = fixture.WriteText("text", 9, {});
  struct Place {
    int stage;
    bool offload, async_save;
  };
  for (const StatesKind& kind : kStatesKinds) {
    CAPTURE(testing::StatesLabel(kind));
    for (const auto& [stage, offload, async_save] :
         {Place{0, false, false}, Place{2, true, true}, Place{3, false, true},
          Place{3, true, false}}) {
      CAPTURE(stage);
      CAPTURE(offload);
      const std::string name =
          testing::StatesLabel(kind) + std::to_string(stage) + (offload ? "o" : "");
      const Program program = fixture.Lowered(stage, offload, 1e-2, async_save, PrecisionOf(kind));
      Recorder whole, first, rest;
      Train(program, fixture.Options(data, 9, name + " whole"), whole);
      TrainOptions options = fixture.Options(data, 9, name + " parts");
      options.save_every = 4;
      options.steps = 4;
      Train(program, options, first);
      options.steps = 9;
      options.resume = true;
      CHECK(WarningsOf([&] { Train(program, options, rest); }).empty());
      REQUIRE(rest.steps.size() == 5);
      for (size_t i = 0; i < 5; ++i) {
        CHECK(rest.steps[i].state.loss_sum == whole.steps[4 + i].state.loss_sum);
      }
      CHECK(AreSameBits(LatestStates(program, fixture.path(name + " whole")),
                        LatestStates(program, fixture.path(name + " parts"))));
      CHECK(whole.steps.back().state.loss_sum < whole.steps.front().state.loss_sum);
    }
  }
}

TEST_CASE("states of every kind: a checkpoint is the same from any ranks, stage and place") {
  const auto lower = [](int stage, testing::Offload offload, int ranks, const StatesKind& kind) {
    TrainSetup setup = testing::BaseSetup(stage, ranks, Dtype::kBF16, 1, kNoRecompute);
    testing::SetOffload(setup, offload);
    setup.precision.master_weights = kind.masters;
    setup.precision.moment_dtype = kind.moments;
    LowerOptions options;
    options.checkpoint_chunk_elements = 700;
    return Lower(testing::TinyModel(), setup, options);
  };
  const auto engine_options = [] {
    EngineOptions options;
    options.threads_per_rank = 1;
    options.swap_dir = "/tmp";
    return options;
  };
  const auto save = [](Engine& engine, const Program& program, const std::string& dir) {
    GroupSave to;
    to.save_dir = dir;
    to.layout = &program.layout;
    to.local_rank_count = program.setup.batch.world_size;
    CheckpointMeta meta;
    meta.step = 3;
    meta.model = program.model;
    meta.world_size = to.local_rank_count;
    SingleProcess alone;
    SaveTogether(alone, to, meta, [&](std::span<StateSink* const> sinks) {
      engine.Save(sinks);
      return engine.state();
    });
  };
  for (const StatesKind& kind : kStatesKinds) {
    CAPTURE(testing::StatesLabel(kind));
    const FastTempDir trained;
    const Program program = lower(2, testing::Offload::kNone, 2, kind);
    {
      Engine engine(program, engine_options());
      engine.Init();
      for (uint64_t step = 0; step < 3; ++step) engine.Step(testing::RandomBatch(program, step));
      save(engine, program, trained.path());
    }
    const std::vector<float> states = LatestStates(program, trained.path());
    for (int stage = 0; stage <= 3; ++stage) {
      for (const testing::Offload offload : testing::OffloadsOf(stage)) {
        for (const int ranks : {1, 3, 4}) {
          CAPTURE(stage);
          CAPTURE(testing::OffloadLabel(offload));
          CAPTURE(ranks);
          const FastTempDir again;
          const Program other = lower(stage, offload, ranks, kind);
          Engine engine(other, engine_options());
          engine.Init();
          const auto source =
              CheckpointSource::Open(trained.path(), other.model, *other.layout.tensors);
          engine.Load(source, true, &source.meta().state);
          save(engine, other, again.path());
          CHECK(AreSameBits(LatestStates(other, again.path()), states));
        }
      }
    }
  }
}

TEST_CASE("states of another kind: a resume takes them, rounds once and says so") {
  const TrainFixture fixture;
  const std::string data = fixture.WriteText("text", 8, {});
  const StatesKind whole{MasterWeights::kFp32, Dtype::kF32};
  const auto resume = [&](const StatesKind& from, const StatesKind& to) {
    const std::string name = testing::StatesLabel(from) + " to " + testing::StatesLabel(to);
    CAPTURE(name);
    Recorder nobody, rest;
    TrainOptions options = fixture.Options(data, 4, name);
    Train(fixture.Lowered(1, false, 1e-2, false, PrecisionOf(from)), options, nobody);
    options.steps = 8;
    options.resume = true;
    std::string warnings = WarningsOf(
        [&] { Train(fixture.Lowered(3, false, 1e-2, false, PrecisionOf(to)), options, rest); });
    CHECK(rest.steps.size() == 4);
    CHECK(rest.steps.back().state.skip == kTaken);
    CHECK(rest.steps.back().state.loss_sum < nobody.steps.front().state.loss_sum);
    return warnings;
  };
  CHECK(resume(whole, {MasterWeights::kFp32, Dtype::kBF16}) ==
        "warning: optimizer states: fp32 in the checkpoint, bf16 from here on: rounded once\n");
  CHECK(resume(whole, {MasterWeights::kParam, Dtype::kDynamic8}) ==
        "warning: master weights: fp32 in the checkpoint, 16bit from here on: rounded once\n"
        "warning: optimizer states: fp32 in the checkpoint, 8bit from here on: rounded once\n");
  CHECK(resume({MasterWeights::kParam, Dtype::kDynamic8}, whole) ==
        "warning: master weights: 16bit in the checkpoint, fp32 from here on: the same numbers\n"
        "warning: optimizer states: 8bit in the checkpoint, fp32 from here on: the same numbers\n");
}

TEST_CASE("masters in halves: a resume from fp32 ones, and back, changes no bit") {
  const TrainFixture fixture;
  const std::string data = fixture.WriteText("text", 9, {});
  const auto program = [&](MasterWeights masters, int stage) {
    return fixture.Lowered(stage, false, 1e-2, false, PrecisionOf({masters, Dtype::kBF16}));
  };
  Recorder nobody;
  const Program whole = program(MasterWeights::kFp32, 2), split = program(MasterWeights::kSplit, 2);
  Train(whole, fixture.Options(data, 9, "whole"), nobody);
  TrainOptions options = fixture.Options(data, 3, "parts");
  Train(whole, options, nobody);
  options.resume = true;
  options.steps = 6;
  CHECK(WarningsOf([&] { Train(split, options, nobody); }) ==
        "warning: master weights: fp32 in the checkpoint, split from here on: the same numbers\n");
  options.steps = 9;
  CHECK(Has(WarningsOf([&] { Train(whole, options, nobody); }), "split in the checkpoint, fp32"));
  CHECK(AreSameBits(LatestStates(whole, fixture.path("whole")),
                    LatestStates(whole, fixture.path("parts"))));
}

TEST_CASE("states of every kind: bf16 weights at the end are the run's parameters") {
  const TrainFixture fixture;
  const std::string data = fixture.WriteText("text", 4, {});
  for (const StatesKind& kind : kStatesKinds) {
    const std::string name = testing::StatesLabel(kind);
    CAPTURE(name);
    const Program program = fixture.Lowered(3, false, 1e-2, false, PrecisionOf(kind));
    TrainOptions options = fixture.Options(data, 4, name);
    options.final_weights.dtype = Dtype::kBF16;
    Recorder nobody;
    Train(program, options, nobody);
    const std::vector<ParamTensor>& table = *program.layout.tensors;
    const auto masters = CheckpointSource::Open(fixture.path(name), program.model, table);
    const HfWeightsSource weights(fixture.path(name), program.model, table);
    size_t wrong = 0;
    for (size_t t = 0; t < table.size(); ++t) {
      const uint64_t count = table[t].elements();
      std::vector<float> master(count), weight(count);
      masters.Read({static_cast<int>(t), StateKind::kMaster, 0, count}, master);
      weights.Read({static_cast<int>(t), StateKind::kMaster, 0, count}, weight);
      for (size_t i = 0; i < count; ++i) {
        const uint32_t param = uint32_t{Split(master[i]).param} << 16;
        wrong += param == std::bit_cast<uint32_t>(weight[i]) ? 0 : 1;
      }
    }
    CHECK(wrong == 0);
  }
}

}  // namespace
}  // namespace zeroplan
