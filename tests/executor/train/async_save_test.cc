// Runs that save beside their steps: the same checkpoints as of runs whose steps wait, whatever
// ends them.
#include <doctest/doctest.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <thread>

#include "core/base/log.h"
#include "core/base/stop_signals.h"
#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/checkpoint/checkpoint_meta.h"
#include "executor/checkpoint/checkpoint_source.h"
#include "executor/checkpoint/safetensors.h"
#include "tests/error_of.h"
#include "tests/executor/train/train_fixture.h"
#include "tests/has.h"
#include "tests/patience.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// Holds or fails the files of one step's save.
class OfStep : public IoHook {
 public:
  OfStep(int64_t step, IoStep kind, std::string file)
      : folder_(StepFolderName(step)), kind_(kind), file_(std::move(file)) {}
  void FailWith(int error) { error_ = error; }
  int Before(IoStep kind, const fs::path& path) override {
    if (kind != kind_ || path.string().find(folder_) == std::string::npos ||
        path.filename().string().find(file_) == std::string::npos) {
      return 0;
    }
    if (error_ != 0) return error_;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return released_; });
    return 0;
  }
  void Release() {
    {
      const std::lock_guard lock(mutex_);
      released_ = true;
    }
    changed_.notify_all();
  }

 private:
  const std::string folder_;
  const IoStep kind_;
  const std::string file_;
  int error_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool released_ = false;
};

fs::path StepFolder(const std::string& save, int64_t step) {
  return CheckpointsFolder(save) / StepFolderName(step);
}

// But for the name of the save, which is another one every time.
void CheckSameCheckpoint(const fs::path& a, const fs::path& b) {
  CAPTURE(a.string());
  const CheckpointMeta of_a = ReadCheckpointMeta(a), of_b = ReadCheckpointMeta(b);
  CHECK(of_a.step == of_b.step);
  CHECK(of_a.samples_consumed == of_b.samples_consumed);
  CHECK(of_a.run == of_b.run);
  CHECK(std::memcmp(&of_a.state, &of_b.state, sizeof of_a.state) == 0);
  REQUIRE(of_a.files.size() == of_b.files.size());
  for (size_t i = 0; i < of_a.files.size(); ++i) {
    CHECK(of_a.files[i].name == of_b.files[i].name);
    CHECK(of_a.files[i].bytes == of_b.files[i].bytes);
    CHECK(of_a.files[i].checksums == of_b.files[i].checksums);
    const auto file_a = SafetensorsFile::Open(a / of_a.files[i].name);
    const auto file_b = SafetensorsFile::Open(b / of_b.files[i].name);
    REQUIRE(file_a.entries().size() == file_b.entries().size());
    for (size_t e = 0; e < file_a.entries().size(); ++e) {
      const SafetensorsEntry &entry_a = file_a.entries()[e], &entry_b = file_b.entries()[e];
      CHECK(entry_a.name == entry_b.name);
      const auto bytes_a = file_a.Bytes(entry_a), bytes_b = file_b.Bytes(entry_b);
      REQUIRE(bytes_a.size() == bytes_b.size());
      CHECK(std::memcmp(bytes_a.data(), bytes_b.data(), bytes_a.size()) == 0);
    }
  }
}

std::string Bytes(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_CASE("async save: every checkpoint and the weights at the end are those of a run that waits") {
  const TrainFixture fixture;
  for (const int stage : {0, 2, 3}) {
    for (const bool offload : {false, true}) {
      if (stage == 0 && offload) continue;
      CAPTURE(stage);
      CAPTURE(offload);
      const std::string name = std::to_string(stage) + (offload ? "o" : "");
      const auto run = [&](bool async_save) {
        TrainOptions options = fixture.Options(fixture.WriteText("text", 14, {}), 14,
                                               name + (async_save ? "-beside" : "-waiting"));
        options.save_every = 3;
        options.keep = 100;
        Recorder recorder;
        const Program program = fixture.Lowered(stage, offload, 1e-2, async_save);
        const RunReport report = Train(program, options, recorder);
        CHECK(recorder.saved == std::vector<int64_t>{3, 6, 9, 12, 14});
        CHECK(report.saves == 5);
        for (const SaveReport& save : recorder.saves) {
          CHECK(save.beside == (async_save && save.step < 14));
          CHECK(save.stall_seconds > 0);
          CHECK(save.write_seconds > 0);
          CHECK(save.folder.filename() == StepFolderName(save.step));
        }
        for (size_t s = 0; s < kSpaces; ++s) {
          CHECK(report.high_water.touched_bytes[s] == program.arena_bytes[s]);
        }
        return options.save_dir.string();
      };
      const std::string waiting = run(false), beside = run(true);
      for (const int64_t step : {3, 6, 9, 12, 14}) {
        CheckSameCheckpoint(StepFolder(waiting, step), StepFolder(beside, step));
      }
      CHECK(Bytes(waiting + "/model.safetensors") == Bytes(beside + "/model.safetensors"));
    }
  }
}

TEST_CASE(
    "async save: steps go on while a save hangs; the next one waits for it, and drops nothing") {
  const TrainFixture fixture;
  // The save of step 4 hangs for `delay` from the end of step 8 on, which the run has to have
  // waited for.
  const auto waits = [&](std::chrono::milliseconds delay) {
    TrainOptions options = fixture.Options(fixture.WriteText("text", 12, {}), 12,
                                           fmt::format("slow{}", delay.count()));
    options.save_every = 4;
    options.keep = 100;
    OfStep hook(4, IoStep::kSync, "rank-0001");
    options.save_hook = &hook;
    Recorder recorder;
    std::thread release;
    std::string locked;
    recorder.on_step = [&](const StepReport& step) {
      if (step.step == 7) {
        // Nothing of it is a checkpoint yet, and the folder is this run's.
        CHECK(recorder.saved.empty());
        CHECK_FALSE(HasCheckpoint(options.save_dir));
        locked = ErrorOf(ExitCode::kUsage, [&] { const SaveLock lock(options.save_dir); });
      }
      if (step.step == 8) {
        release = std::thread([&] {
          std::this_thread::sleep_for(delay);
          hook.Release();
        });
      }
      // The next save is done before the last begins.
      if (step.step == 9) {
        Await([&] {
          return HasCheckpoint(options.save_dir) &&
                 ReadLatest(options.save_dir) == StepFolderName(8);
        });
      }
      if (step.step > 9) std::this_thread::sleep_for(delay / 10);
    };
    const RunReport report = Train(fixture.Lowered(2, false, 1e-2, true), options, recorder);
    release.join();
    CHECK(Has(locked, "another run saves here"));
    CHECK(recorder.saved == std::vector<int64_t>{4, 8, 12});
    CHECK(report.saves == 3);
    CHECK(recorder.saves[0].stall_seconds >= recorder.saves[0].waited_seconds);
    CHECK(LookAtCheckpoints(options.save_dir, true, [](const CheckpointReport&) {}).damaged == 0);
    const double seconds = std::chrono::duration<double>(delay).count();
    return report.saves_waited_for == 1 && recorder.saves[0].waited_seconds > seconds * 2 / 3 &&
           recorder.saves[0].write_seconds > seconds * 2 / 3;
  };
  CHECK(WithLongerLimits(std::chrono::milliseconds(300), waits));
}

TEST_CASE("async save: what fails of it ends the run at a step's end, as where steps wait") {
  const TrainFixture fixture;
  const auto run = [&](bool async_save, const std::string& name, const char* file) {
    TrainOptions options = fixture.Options(fixture.WriteText("text", 4000, {}), 4000, name);
    options.save_every = 4;
    OfStep hook(8, IoStep::kSync, file);
    hook.FailWith(ENOSPC);
    options.save_hook = &hook;
    Recorder recorder;
    std::string message = ErrorOf(ExitCode::kRuntime, [&] {
      Train(fixture.Lowered(2, false, 1e-2, async_save), options, recorder);
    });
    CHECK(recorder.saved == std::vector<int64_t>{4});
    CHECK(recorder.steps.size() < 4000);
    CHECK(ReadLatest(options.save_dir) == StepFolderName(4));
    CHECK(LookAtCheckpoints(options.save_dir, true, [](const CheckpointReport&) {}).damaged == 0);
    for (const auto& entry : fs::directory_iterator(CheckpointsFolder(options.save_dir))) {
      CHECK_FALSE(entry.path().filename().string().starts_with(kStagingPrefix));
    }
    // But for the random part of the folder's name and the run's.
    const size_t random = message.find("/.tmp-step-00000008-");
    REQUIRE(random != std::string::npos);
    message.erase(0, random);
    return message.erase(20, 16);
  };
  for (const char* file : {"rank-0001", "meta.json"}) {
    const std::string at = file;
    const std::string waiting = run(false, "w" + at, file);
    CHECK(Has(waiting, "No space left"));
    CHECK(run(true, "b" + at, file) == waiting);
  }
}

TEST_CASE(
    "async save: a stop waits for the save under way, and saves the step that it stops after") {
  const TrainFixture fixture;
  TrainOptions options = fixture.Options(fixture.WriteText("text", 30, {}), 30, "stop");
  options.save_every = 4;
  OfStep hook(4, IoStep::kWrite, "rank-0000");
  options.save_hook = &hook;
  const InterruptScope scope;
  Recorder recorder;
  std::thread release;
  recorder.on_step = [&](const StepReport& step) {
    if (step.step != 6) return;
    std::raise(SIGTERM);
    release = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      hook.Release();
    });
  };
  const RunReport report = Train(fixture.Lowered(2, true, 1e-2, true), options, recorder);
  release.join();
  CHECK(report.interrupted);
  CHECK(recorder.saved == std::vector<int64_t>{4, 6});
  CHECK(ReadLatest(options.save_dir) == StepFolderName(6));
  CHECK(LookAtCheckpoints(options.save_dir, true, [](const CheckpointReport&) {}).damaged == 0);
}

TEST_CASE("async save: a run that diverges or whose observer fails saves what is whole first") {
  const TrainFixture fixture;
  for (const bool diverges : {true, false}) {
    CAPTURE(diverges);
    TrainOptions options = fixture.Options(fixture.WriteText("text", 12, {7, 8, 9, 10, 11, 12}), 12,
                                           diverges ? "diverged" : "observed");
    options.save_every = 5;
    options.max_bad_steps = 1;
    if (diverges) options.init_from = fixture.BadWeights();
    OfStep hook(5, IoStep::kSync, "rank-0000");
    options.save_hook = &hook;
    Recorder recorder;
    std::thread release;
    recorder.on_step = [&](const StepReport& step) {
      if (step.step != 6) return;
      release = std::thread([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        hook.Release();
      });
      if (!diverges) ThrowRuntime("no more progress");
    };
    const std::string message = ErrorOf(diverges ? ExitCode::kDiverged : ExitCode::kRuntime, [&] {
      Train(fixture.Lowered(2, false, 1e-2, true), options, recorder);
    });
    release.join();
    const int64_t last = diverges ? 8 : 6;
    CHECK(recorder.saved == std::vector<int64_t>{5, last});
    CHECK(ReadLatest(options.save_dir) == StepFolderName(last));
    if (diverges) CHECK(Has(message, "saved in " + StepFolder(options.save_dir, last).string()));
  }
}

TEST_CASE("async save: a run goes on from such a checkpoint bit by bit") {
  const TrainFixture fixture;
  const Program program = fixture.Lowered(3, true, 1e-2, true);
  const std::string data = fixture.WriteText("text", 12, {});
  Recorder whole, rest, nobody;
  Train(program, fixture.Options(data, 12, "whole"), whole);
  TrainOptions options = fixture.Options(data, 12, "parts");
  options.save_every = 5;
  const InterruptScope scope;
  nobody.on_saved = [](int64_t) { std::raise(SIGUSR1); };
  CHECK(Train(program, options, nobody).interrupted);
  // What the stop has saved is left out of account: the one before was written beside steps.
  const int64_t stopped = nobody.saved.back();
  if (stopped != 5) {
    fs::remove_all(StepFolder(options.save_dir, stopped));
    std::ofstream(CheckpointsFolder(options.save_dir) / "latest") << StepFolderName(5) << "\n";
  }
  const InterruptScope again;
  options.resume = true;
  Train(program, options, rest);
  REQUIRE(rest.steps.size() == 7);
  for (size_t i = 0; i < 7; ++i) {
    CHECK(rest.steps[i].state.loss_sum == whole.steps[5 + i].state.loss_sum);
  }
}

}  // namespace
}  // namespace zeroplan
