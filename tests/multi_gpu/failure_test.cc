// Runs on several GPUs that end early: a rank killed, Ctrl-C and SIGTERM.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/files.h"
#include "tests/multi_gpu/gpu_training.h"

namespace zeroplan {
namespace {

constexpr int kEndless = 1'000'000;  // steps

// Two runs beside each other: rank 0 of the first and rank 1 of the second get `signal` after their
// first step. Each run has to end, all its ranks with it. What they printed.
std::vector<std::string> OutputsAfter(int signal, const std::string& choice) {
  struct Run {
    TrainingFolder folder;
    std::unique_ptr<GpuTraining> training;
    std::vector<pid_t> ranks;
  };
  std::vector<std::unique_ptr<Run>> runs;
  for (const size_t victim : {size_t{0}, size_t{1}}) {
    runs.push_back(std::make_unique<Run>());
    Run& run = *runs.back();
    run.training = std::make_unique<GpuTraining>(run.folder.Train("signalled", choice, kEndless),
                                                 run.folder.path("log"));
    CAPTURE(victim);
    const bool started = run.training->AwaitOutput("step ");
    CAPTURE(run.training->output());
    REQUIRE(started);
    run.ranks = run.training->Ranks();
    REQUIRE(run.ranks.size() == 2);
    kill(run.ranks[victim], signal);
  }
  std::vector<std::string> outputs;
  for (const auto& run : runs) {
    const size_t victim = outputs.size();
    CAPTURE(victim);
    const int code = run->training->Wait();
    outputs.push_back(run->training->output());
    CAPTURE(outputs.back());
    CHECK(code == static_cast<int>(ExitCode::kRuntime));
    for (const pid_t rank : run->ranks) CHECK(kill(rank, 0) != 0);  // none lives on
  }
  return outputs;
}

TEST_CASE("one rank's death ends the run everywhere, named") {
  const auto outputs = OutputsAfter(SIGKILL, "--gpus 2 --stage 3 --micro-batch 4");
  for (size_t victim = 0; victim < outputs.size(); ++victim) {
    CAPTURE(outputs[victim]);
    CHECK(outputs[victim].find("rank " + std::to_string(victim)) != std::string::npos);
    CHECK(outputs[victim].find("bug in zeroplan") == std::string::npos);
  }
}

TEST_CASE("a stopped rank ends the run everywhere, named") {
  // After 20 s of silence, the limit of ranks that are stuck, and the launcher's patience.
  const auto outputs = OutputsAfter(SIGSTOP, "--gpus 2 --stage 2 --micro-batch 4");
  for (size_t victim = 0; victim < outputs.size(); ++victim) {
    CAPTURE(outputs[victim]);
    CHECK(outputs[victim].find("rank " + std::to_string(victim) + ": lost") != std::string::npos);
  }
}

TEST_CASE("a rank that does not come to a collective is named once the step's time is up") {
  const TrainingFolder folder;
  // Rank 0 alone writes metrics. Nobody reads this pipe: once it is full, the rank is stuck.
  const std::string pipe = folder.path("stuck.jsonl");
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  const UniqueFd reader(open(pipe.c_str(), O_RDONLY | O_NONBLOCK));
  REQUIRE(static_cast<bool>(reader));
  GpuTraining run(
      folder.Train("stuck", "--gpus 2 --stage 3 --micro-batch 4 --step-timeout 20", kEndless),
      folder.path("log"));
  const bool started = run.AwaitOutput("step ");
  CAPTURE(run.output());
  REQUIRE(started);
  const int code = run.Wait();
  CAPTURE(run.output());
  CHECK(code == static_cast<int>(ExitCode::kRuntime));
  CHECK(run.output().find("rank 0 holds it up: it is between two calls of the engine") !=
        std::string::npos);
  // The other one says what it waits for.
  CHECK(run.output().find("zeroplan: rank 1 ") != std::string::npos);
  CHECK(run.output().find("under way on its GPU") != std::string::npos);
}

TEST_CASE("Ctrl-C and SIGTERM save and exit 130; the run goes on as if uninterrupted") {
  for (const int signal : {SIGINT, SIGTERM}) {
    CAPTURE(signal);
    const TrainingFolder folder;
    const std::string layout = "--gpus 2 --stage 2 --micro-batch 4 --dtype bf16 --deterministic ";
    const std::string saved = layout + "--resume --save " + folder.path("out");
    int done = 0;
    {
      GpuTraining run(folder.Train("stopped", saved, kEndless), folder.path("log"));
      const bool started = run.AwaitOutput("step ");
      CAPTURE(run.output());
      REQUIRE(started);
      run.Signal(signal);
      CHECK(run.Wait() == 130);
      CAPTURE(run.output());
      const auto losses = folder.Losses("stopped");
      REQUIRE(!losses.empty());
      done = losses.rbegin()->first;
    }
    GpuTraining more(folder.Train("stopped", saved, done + 10), folder.path("more.log"));
    const int more_code = more.Wait();
    CAPTURE(more.output());
    REQUIRE(more_code == 0);
    GpuTraining control(folder.Train("control", layout, done + 10), folder.path("control.log"));
    const int control_code = control.Wait();
    CAPTURE(control.output());
    REQUIRE(control_code == 0);
    CHECK(folder.Losses("stopped") == folder.Losses("control"));
  }
}

}  // namespace
}  // namespace zeroplan
