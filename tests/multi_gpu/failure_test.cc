// Runs on several GPUs that end early: a rank killed, Ctrl-C and SIGTERM.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "tests/multi_gpu/gpu_training.h"

namespace zeroplan {
namespace {

using std::chrono::seconds;

constexpr int kEndless = 1'000'000;  // steps
constexpr seconds kStartLimit{60};

TEST_CASE("one rank's death ends the run everywhere within 30 s, named") {
  for (const size_t victim : {size_t{0}, size_t{1}}) {
    CAPTURE(victim);
    const TrainingFolder folder;
    GpuTraining run(folder.Train("killed", "--gpus 2 --stage 3 --micro-batch 4", kEndless),
                    folder.path("log"));
    const bool started = run.AwaitOutput("step ", kStartLimit);
    CAPTURE(run.output());
    REQUIRE(started);
    const std::vector<pid_t> ranks = run.Ranks();
    REQUIRE(ranks.size() == 2);
    kill(ranks[victim], SIGKILL);
    const int code = run.Wait(seconds(30));
    CAPTURE(run.output());
    CHECK(code == static_cast<int>(ExitCode::kRuntime));
    CHECK(run.output().find("rank " + std::to_string(victim)) != std::string::npos);
    CHECK(run.output().find("bug in zeroplan") == std::string::npos);
    for (const pid_t rank : ranks) CHECK(kill(rank, 0) != 0);  // none lives on
  }
}

TEST_CASE("a stopped rank ends the run everywhere, named") {
  for (const size_t victim : {size_t{0}, size_t{1}}) {
    CAPTURE(victim);
    const TrainingFolder folder;
    GpuTraining run(folder.Train("stopped", "--gpus 2 --stage 2 --micro-batch 4", kEndless),
                    folder.path("log"));
    const bool started = run.AwaitOutput("step ", kStartLimit);
    CAPTURE(run.output());
    REQUIRE(started);
    const std::vector<pid_t> ranks = run.Ranks();
    REQUIRE(ranks.size() == 2);
    kill(ranks[victim], SIGSTOP);
    // 20 s of silence, then the launcher's patience with the rank that does not end.
    const int code = run.Wait(seconds(75));
    CAPTURE(run.output());
    CHECK(code == static_cast<int>(ExitCode::kRuntime));
    CHECK(run.output().find("rank " + std::to_string(victim) + ": lost") != std::string::npos);
    for (const pid_t rank : ranks) CHECK(kill(rank, 0) != 0);
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
  const bool started = run.AwaitOutput("step ", kStartLimit);
  CAPTURE(run.output());
  REQUIRE(started);
  const int code = run.Wait(seconds(110));
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
      const bool started = run.AwaitOutput("step ", kStartLimit);
      CAPTURE(run.output());
      REQUIRE(started);
      run.Signal(signal);
      CHECK(run.Wait(seconds(30)) == 130);
      CAPTURE(run.output());
      const auto losses = folder.Losses("stopped");
      REQUIRE(!losses.empty());
      done = losses.rbegin()->first;
    }
    GpuTraining more(folder.Train("stopped", saved, done + 10), folder.path("more.log"));
    const int more_code = more.Wait(seconds(60));
    CAPTURE(more.output());
    REQUIRE(more_code == 0);
    GpuTraining control(folder.Train("control", layout, done + 10), folder.path("control.log"));
    const int control_code = control.Wait(seconds(120));
    CAPTURE(control.output());
    REQUIRE(control_code == 0);
    CHECK(folder.Losses("stopped") == folder.Losses("control"));
  }
}

}  // namespace
}  // namespace zeroplan
