// Steps that are skipped because something is wrong with them, and how a run of them ends.
#include <doctest/doctest.h>

#include <cmath>

#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/checkpoint/checkpoint_meta.h"
#include "executor/checkpoint/checkpoint_source.h"
#include "executor/train/run_end.h"
#include "tests/agreement/memory_state.h"
#include "tests/error_of.h"
#include "tests/executor/train/train_fixture.h"
#include "tests/has.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// Every element of every state, as saved in `folder`.
std::vector<float> SavedState(const Program& program, const std::string& folder) {
  const auto source = CheckpointSource::Open(folder, program.model, *program.layout.tensors);
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

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct Layout {
  int stage;
  bool offload;
};
constexpr Layout kLayouts[] = {{0, false}, {3, true}};

TEST_CASE("bad steps: skipped ones leave no trace but their count") {
  const TrainFixture fixture;
  for (const auto [stage, offload] : kLayouts) {
    CAPTURE(stage);
    const Program program = fixture.Lowered(stage, offload);
    const auto name = [&](const char* of) { return of + std::to_string(stage); };
    const auto run = [&](const std::string& data, int64_t steps, const std::string& save) {
      TrainOptions options = fixture.Options(data, steps, save);
      options.init_from = fixture.BadWeights();
      Recorder recorder;
      const RunReport report = Train(program, options, recorder);
      CHECK(report.steps == steps);
      CHECK(report.skipped_steps == steps - 6);
      return recorder;
    };
    const std::string with_bad = fixture.WriteText("with_bad", 8, {3, 6});
    std::string without;
    for (const int step : {1, 2, 4, 5, 7, 8}) TrainFixture::AppendBatch(without, step, {});
    std::ofstream(fixture.path("without")) << without << '.';
    const Recorder bad = run(with_bad, 8, name("bad_run"));
    const Recorder good = run(fixture.path("without"), 6, name("good_run"));
    size_t g = 0;
    for (const StepReport& step : bad.steps) {
      CAPTURE(step.step);
      if (step.step == 3 || step.step == 6) {
        CHECK(step.state.skip == kGradientsNotFinite);
        continue;
      }
      CHECK(step.state.skip == kTaken);
      CHECK(step.state.loss_sum == good.steps.at(g++).state.loss_sum);
    }
    CHECK(SameBits(SavedState(program, fixture.path(name("bad_run"))),
                   SavedState(program, fixture.path(name("good_run")))));
  }
}

TEST_CASE("bad steps: too many in a row end the run, saved as it was before them") {
  const TrainFixture fixture;
  for (const auto [stage, offload] : kLayouts) {
    CAPTURE(stage);
    const Program program = fixture.Lowered(stage, offload);
    const auto name = [&](const char* of) { return of + std::to_string(stage); };
    TrainOptions options =
        fixture.Options(fixture.WriteText("late", 9, {4, 5, 6}), 9, name("late"));
    options.init_from = fixture.BadWeights();
    options.max_bad_steps = 2;
    Recorder recorder;
    const std::string message =
        ErrorOf(ExitCode::kDiverged, [&] { Train(program, options, recorder); });
    CHECK(Has(message, "diverged at step 6: 3 bad steps in a row"));
    CHECK(Has(message, "gradients that are not finite"));
    CHECK(Has(message, fixture.path(name("late"))));
    CHECK(recorder.saved == std::vector<int64_t>{6});
    CHECK(recorder.steps.size() == 6);
    const CheckpointMeta meta = ReadCheckpointMeta(FindCheckpoint(options.save_dir));
    CHECK(meta.step == 6);
    CHECK(meta.state.step == 3);
    CHECK(meta.state.skipped_steps == 3);
    CHECK(meta.samples_consumed == 12);

    TrainOptions before = fixture.Options(fixture.path("late"), 3, name("before"));
    before.init_from = fixture.BadWeights();
    Recorder nobody;
    Train(program, before, nobody);
    CHECK(SameBits(SavedState(program, fixture.path(name("late"))),
                   SavedState(program, fixture.path(name("before")))));

    // What follows is good: the run goes on behind what was bad.
    options.resume = true;
    options.init_from.clear();
    Recorder resumed;
    const RunReport report = Train(program, options, resumed);
    CHECK(report.steps == 9);
    CHECK(report.skipped_steps == 3);
    CHECK(resumed.steps.size() == 3);
    CHECK(std::isfinite(report.last_loss));
  }
}

TEST_CASE("bad steps: what the message says is there is there") {
  const TrainFixture fixture;
  const Program program = fixture.Lowered(1, true);
  const auto diverge = [&](const std::string& save, std::vector<int> bad, int64_t limit,
                           int64_t save_every) {
    TrainOptions options = fixture.Options(fixture.WriteText("text", 8, bad), 8, save);
    options.init_from = fixture.BadWeights();
    options.max_bad_steps = limit;
    options.save_every = save_every;
    Recorder recorder;
    return ErrorOf(ExitCode::kDiverged, [&] { Train(program, options, recorder); });
  };
  // Nothing good, nothing saved.
  const std::string from_start = diverge("none", {1, 2, 3}, 2, 0);
  CHECK(Has(from_start, "No step of this run was good; nothing was saved"));
  CHECK_FALSE(HasCheckpoint(fixture.path("none")));
  CHECK(Has(diverge("", {3, 4}, 1, 0), "Nothing was saved (no ⟦save⟧)"));
  // 0: the first ends it.
  CHECK(Has(diverge("first", {2}, 0, 0), "diverged at step 2: 1 bad step in a row"));
  // Not in a row: 1 of 2, 2 of 4.
  TrainOptions spread = fixture.Options(fixture.WriteText("text", 8, {2, 4, 6, 7}), 8, "");
  spread.init_from = fixture.BadWeights();
  spread.max_bad_steps = 2;
  Recorder recorder;
  CHECK(Train(program, spread, recorder).skipped_steps == 4);
}

TEST_CASE("bad steps: a learning rate that ruins the weights ends the run by itself") {
  const TrainFixture fixture;
  for (const auto [stage, offload] : kLayouts) {
    CAPTURE(stage);
    const Program program = fixture.Lowered(stage, offload, 1e30);
    TrainOptions options =
        fixture.Options(fixture.WriteText("text", 20, {}), 20, "ruined" + std::to_string(stage));
    Recorder recorder;
    const std::string message =
        ErrorOf(ExitCode::kDiverged, [&] { Train(program, options, recorder); });
    CHECK(Has(message, "6 bad steps in a row"));
    CHECK(Has(message, "Lower the learning rate"));
  }
}

TEST_CASE("bad steps: a loss spike is skipped where a factor is given") {
  const TrainFixture fixture;
  std::string text;
  for (int step = 1; step <= 40; ++step) {
    text += step == 30 ? std::string(32, 'q') : std::string(32, step % 2 == 0 ? 'a' : 'b');
  }
  std::ofstream(fixture.path("spike")) << text << '.';
  for (const auto [stage, offload] : kLayouts) {
    CAPTURE(stage);
    const Program program = fixture.Lowered(stage, offload);
    TrainOptions options = fixture.Options(fixture.path("spike"), 40, "");
    Recorder plain;
    CHECK(Train(program, options, plain).skipped_steps == 0);
    CHECK(plain.steps.at(29).state.loss_sum > 10 * plain.steps.at(28).state.loss_sum);
    options.skip_loss_spike = 8;
    Recorder watched;
    CHECK(Train(program, options, watched).skipped_steps == 1);
    CHECK(watched.steps.at(29).state.skip == kLossSpike);
    CHECK(watched.steps.at(30).state.skip == kTaken);
    CHECK(watched.steps.at(30).state.loss_sum < plain.steps.at(30).state.loss_sum);
  }
}

TEST_CASE("bad steps: an overflow is bad where the loss scale cannot go lower") {
  PrecisionConfig fp16;
  fp16.dtype = Dtype::kF16;
  fp16.min_loss_scale = 1;
  BadSteps steps(fp16, 2);
  StepState state;
  state.loss_scale = 4;
  steps.Start(state);
  state.skip = kGradientsNotFinite;
  for (const float scale : {2.0f, 1.0f, 1.0f, 1.0f, 1.0f}) {
    CHECK_FALSE(steps.too_many());
    state.loss_scale = scale;
    steps.Note(state);
  }
  CHECK(steps.in_a_row() == 3);  // with scale 1
  CHECK(steps.too_many());
  CHECK_FALSE(steps.any_taken());
  state.skip = kTaken;
  steps.Note(state);
  CHECK(steps.in_a_row() == 0);
  CHECK(steps.any_taken());
}

TEST_CASE("what fails between steps, or while a batch is read, leaves what was trained saved") {
  const TrainFixture fixture;
  for (const auto [stage, offload] : kLayouts) {
    CAPTURE(stage);
    const Program program = fixture.Lowered(stage, offload);
    TrainOptions options =
        fixture.Options(fixture.WriteText("text", 8, {}), 8, "observer" + std::to_string(stage));
    Recorder recorder;
    recorder.on_step = [](const StepReport& step) {
      if (step.step == 3) throw Error(ExitCode::kRuntime, "the observer is gone");
    };
    CHECK(Has(ErrorOf(ExitCode::kRuntime, [&] { Train(program, options, recorder); }),
              "the observer is gone"));
    CHECK(recorder.saved == std::vector<int64_t>{3});
    CHECK(ReadCheckpointMeta(FindCheckpoint(options.save_dir)).step == 3);
    CHECK(recorder.validated.empty());
  }
}

TEST_CASE("an abandoned step changes nothing on any rank, and the engine goes on") {
  const TrainFixture fixture;
  for (const auto [stage, offload] : kLayouts) {
    for (const int rank_of_failure : {0, 1}) {
      CAPTURE(stage);
      CAPTURE(rank_of_failure);
      const Program program = fixture.Lowered(stage, offload);
      EngineOptions options;
      options.threads_per_rank = 1;
      Engine engine(program, options), other(program, options);
      const auto batch = [&](int rank, int64_t m, std::span<int32_t> inputs,
                             std::span<int32_t> targets) {
        testing::FillRandom(program, 1, rank, m, inputs, targets);
      };
      engine.Init();
      other.Init();
      engine.Step(batch);
      other.Step(batch);
      const StepState state = engine.Step(
          [&](int rank, int64_t m, std::span<int32_t> inputs, std::span<int32_t> targets) {
            batch(rank, m, inputs, targets);
            if (rank == rank_of_failure) engine.AbandonStep(rank);
          });
      CHECK(state.skip == kAbandoned);
      CHECK(state.skipped_steps == 0);
      const StepState next = engine.Step(batch), expected = other.Step(batch);
      CHECK(next.skip == kTaken);
      CHECK(next.loss_sum == expected.loss_sum);
      CHECK(next.grad_norm == expected.grad_norm);
      CHECK(next.step == 2);
    }
  }
}

}  // namespace
}  // namespace zeroplan
