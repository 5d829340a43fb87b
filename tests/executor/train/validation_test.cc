// Validation files, the best checkpoint and patience, on whole runs.
#include "executor/train/validation.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <limits>

#include "core/base/stop_signals.h"
#include "executor/checkpoint/checkpoint_folder.h"
#include "tests/error_of.h"
#include "tests/executor/train/train_fixture.h"
#include "tests/has.h"
#include "tests/quiet_log.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// A run whose validation loss falls first and rises when it has learned its few samples by heart.
class BestFixture : public TrainFixture {
 public:
  static constexpr int kSteps = 24;

  BestFixture() : data_(WriteText("text", 2, {})) {
    std::ofstream(path("other")) << "bridge across the sea, and many a wave upon the stones; some "
                                    "words that no run is trained on, but for their letters.......";
  }
  TrainOptions BestOptions(const std::string& save) const {
    TrainOptions options = Options(data_, kSteps, save);
    options.validation_data = {path("other")};
    options.validate_every = 2;
    options.keep_best = true;
    options.keep = 1;
    return options;
  }
  fs::path Best(const TrainOptions& options) const {
    return CheckpointsFolder(options.save_dir) / ReadBest(options.save_dir).value_or("none");
  }

 private:
  const std::string data_;
};

std::string FileText(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The validation with the lowest loss, and its step.
std::pair<int64_t, double> Lowest(const Recorder& recorder) {
  const auto& losses = recorder.validation_losses;
  const auto lowest = std::min_element(losses.begin(), losses.end());
  return {recorder.validated[static_cast<size_t>(lowest - losses.begin())], *lowest};
}

TEST_CASE("best validation: the lowest is the first of equals, and no number never is") {
  BestValidation best("x");
  CHECK_FALSE(best.record());
  best.Note(2, std::numeric_limits<double>::quiet_NaN());
  CHECK_FALSE(best.IsAt(2));
  CHECK(best.worse() == 1);
  best.Note(4, 3.0);
  CHECK(best.IsAt(4));
  CHECK(best.worse() == 0);
  best.Note(6, 3.0);
  best.Note(8, std::numeric_limits<double>::infinity());
  CHECK(best.IsAt(4));
  CHECK(best.worse() == 2);
  BestValidation other("y");
  CHECK_FALSE(other.Resume(*best.record()));
  CHECK_FALSE(other.record());
  BestValidation same("x");
  CHECK(same.Resume(*best.record()));
  CHECK(same.NotedAt(8));
  CHECK(same.worse() == 2);
}

TEST_CASE(
    "--keep-best: the checkpoint with the lowest loss stays, and its weights can be the last") {
  const BestFixture fixture;
  for (const bool beside : {false, true}) {
    CAPTURE(beside);
    TrainOptions options = fixture.BestOptions(beside ? "beside" : "waiting");
    options.save_every = 5;
    options.best_weights = true;
    Recorder recorder;
    Train(fixture.Lowered(2, false, 3e-2, beside), options, recorder);
    const auto [step, loss] = Lowest(recorder);
    REQUIRE(recorder.validated.size() == BestFixture::kSteps / 2);
    REQUIRE(step < BestFixture::kSteps - 4);  // or it would have stayed anyhow
    CHECK(fixture.Best(options).filename() == StepFolderName(step));
    const CheckpointMeta meta = ReadCheckpointMeta(fixture.Best(options));
    REQUIRE(meta.validation);
    CHECK(meta.validation->best_loss == loss);
    CHECK(ReadLatest(options.save_dir) == StepFolderName(BestFixture::kSteps));
    CHECK(ListCheckpoints(options.save_dir).size() == 2);
    // The weights are those of a run that ends there.
    TrainOptions shorter = fixture.Options(options.data[0], step, beside ? "short2" : "short1");
    Recorder nobody;
    Train(fixture.Lowered(2, false, 3e-2), shorter, nobody);
    CHECK(FileText(options.save_dir / "model.safetensors") ==
          FileText(shorter.save_dir / "model.safetensors"));
  }
}

TEST_CASE("--keep-best: interrupted anywhere and resumed, a run keeps the same checkpoint") {
  const QuietLog quiet;
  const BestFixture fixture;
  const Program program = fixture.Lowered(2, false, 3e-2);
  TrainOptions options = fixture.BestOptions("whole");
  Recorder whole;
  Train(program, options, whole);
  const std::string best = fixture.Best(options).filename();
  for (const int64_t stop : {1, 2, 3, 4, 7, 12, 15, 20, 23}) {
    CAPTURE(stop);
    options = fixture.BestOptions("stopped" + std::to_string(stop));
    Recorder first, rest;
    {
      const InterruptScope scope;
      first.on_step = [&](const StepReport& step) {
        if (step.step == stop) std::raise(SIGUSR1);
      };
      CHECK(Train(program, options, first).interrupted);
    }
    const InterruptScope again;
    options.resume = true;
    Train(program, options, rest);
    std::vector<int64_t> validated = first.validated;
    std::vector<double> losses = first.validation_losses;
    validated.insert(validated.end(), rest.validated.begin(), rest.validated.end());
    losses.insert(losses.end(), rest.validation_losses.begin(), rest.validation_losses.end());
    CHECK(validated == whole.validated);
    CHECK(losses == whole.validation_losses);
    CHECK(fixture.Best(options).filename() == best);
    CHECK(rest.steps.back().state.loss_sum == whole.steps.back().state.loss_sum);
  }
}

// Dies before the `at`-th step of all saves.
class DeathAt : public IoHook {
 public:
  explicit DeathAt(int at) : at_(at) {}
  int Before(IoStep, const fs::path&) override {
    if (count_++ == at_) _exit(9);
    return 0;
  }

 private:
  const int at_;
  int count_ = 0;
};

TEST_CASE(
    "--keep-best: killed between any two writes of a save, a resume ends with the same best") {
  const QuietLog quiet;
  const BestFixture fixture;
  const Program program = fixture.Lowered(0, false, 3e-2);
  TrainOptions options = fixture.BestOptions("whole");
  options.steps = 6;
  Recorder whole;
  Train(program, options, whole);
  const std::string best = fixture.Best(options).filename();
  bool died = true;
  int at = 0, with_best = 0;
  for (; died; at += 7) {
    CAPTURE(at);
    options = fixture.BestOptions("killed" + std::to_string(at));
    options.steps = 6;
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      DeathAt hook(at);
      options.save_hook = &hook;
      Recorder nobody;
      Train(program, options, nobody);
      _exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    died = WEXITSTATUS(status) == 9;
    // What is named is there, and whole.
    if (const auto named = ReadBest(options.save_dir)) {
      ++with_best;
      const auto all = ListCheckpoints(options.save_dir);
      CHECK(std::any_of(all.begin(), all.end(), [&](const CheckpointListing& one) {
        return one.folder.filename() == *named && one.is_whole;
      }));
    }
    options.resume = true;
    Recorder rest;
    Train(program, options, rest);
    REQUIRE(ReadBest(options.save_dir));
    const CheckpointMeta meta = ReadCheckpointMeta(fixture.Best(options));
    CHECK(StepFolderName(meta.step) == best);
    fs::remove_all(options.save_dir);
  }
  CHECK(at > 60);  // of all that was written
  CHECK(with_best > 5);
}

TEST_CASE("--patience: the run ends after so many validations that were not the lowest") {
  const BestFixture fixture;
  TrainOptions options = fixture.BestOptions("patient");
  options.patience = 3;
  options.steps = 200;
  Recorder recorder;
  const RunReport report = Train(fixture.Lowered(2, false, 3e-2), options, recorder);
  CHECK(report.out_of_patience);
  CHECK(report.steps == Lowest(recorder).first + 6);
  CHECK(ReadLatest(options.save_dir) == StepFolderName(report.steps));
  // A resume has nothing left to do.
  options.resume = true;
  Recorder rest;
  CHECK(Train(fixture.Lowered(2, false, 3e-2), options, rest).out_of_patience);
  CHECK(rest.steps.empty());
}

TEST_CASE("validation data: whole batches of the files, none held back, each error with its fix") {
  const BestFixture fixture;
  TrainOptions options = fixture.BestOptions("");
  options.keep_best = false;
  options.shuffle = true;
  Recorder recorder;
  Train(fixture.Lowered(2, false), options, recorder);
  CHECK(recorder.start.train_samples == 4);  // two global batches of two, all trained on
  CHECK(recorder.validated.size() == BestFixture::kSteps / 2);
  // The same samples in other batches have the same mean.
  options.validation_batches = 2;  // of 2 samples; 4 of 7
  Recorder two;
  Train(fixture.Lowered(2, false), options, two);
  CHECK(two.validation_losses.front() != recorder.validation_losses.front());

  std::ofstream(fixture.path("short")) << "less than a batch";
  options.validation_data = {fixture.path("short")};
  Recorder nobody;
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { Train(fixture.Lowered(2, false), options, nobody); }),
            "⟦validation_data⟧: 17 tokens, but a batch of 2 sequences of 16 tokens needs 33"));
  options.validation_data.clear();
  options.shuffle = false;
  options.patience = 1;
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { Train(fixture.Lowered(2, false), options, nobody); }),
            "⟦patience⟧: there is nothing to validate with"));
}

TEST_CASE("--epochs: as many steps as visit each sample so often") {
  const BestFixture fixture;
  TrainOptions options = fixture.BestOptions("");
  options.keep_best = false;
  options.epochs = 2.5;  // of 4 samples, in batches of 2
  Recorder recorder;
  const RunReport report = Train(fixture.Lowered(2, false), options, recorder);
  CHECK(report.steps == 5);
  CHECK(recorder.start.steps == 5);
}

}  // namespace
}  // namespace zeroplan
