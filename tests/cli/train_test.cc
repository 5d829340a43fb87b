// zeroplan train as a user runs it: what it prints and writes, how it fails, and that a run killed
// at any instant goes on as if nothing had happened.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <thread>
#include <vector>

#include "tests/cli/run_binary.h"
#include "tests/paths.h"
#include "tests/run_metrics.h"

namespace zeroplan {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr int kSteps = 30;

class Workspace {
 public:
  Workspace() {
    std::string name = (fs::temp_directory_path() / "zeroplan_train_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    root_ = name;
    std::ofstream(root_ / "config.json")
        << R"({"model_type":"gpt2","n_layer":2,"n_embd":32,"n_head":2,"n_positions":32,"vocab_size":256})";
  }
  ~Workspace() {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }
  std::string path(const std::string& name) const { return (root_ / name).string(); }
  // The part of a command line that all runs share.
  std::string Train(const std::string& more, int steps = kSteps) const {
    return "train --model " + path("config.json") + " --data " + SourcePath("LICENSE") +
           " --threads 1 "
           "--lr 3e-3 --steps " +
           std::to_string(steps) + " " + more;
  }

 private:
  fs::path root_;
};

// Starts zeroplan and sends it `signal` after `delay`; the exit status as waitpid has it.
int RunAndSignal(const std::string& arguments, std::chrono::microseconds delay, int signal) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const int null = open("/dev/null", O_WRONLY);
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    const std::string command =
        "exec env ZEROPLAN_NO_DETECT=1 " + BinaryPath("zeroplan ") + arguments;
    execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  std::this_thread::sleep_for(delay);
  kill(child, signal);
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST_CASE("metrics, planned memory and final weights") {
  const Workspace work;
  const RunResult run = RunZeroplan(work.Train(
      "--gpus 2 --stage 2 --offload-optimizer cpu --validate-every 10 "
      "--metrics " +
      work.path("m.jsonl") + " --trace " + work.path("t.json") + " --save " + work.path("out")));
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(run.err.find("differs") == std::string::npos);  // planned against touched bytes
  const std::vector<Json> lines = ReadMetricsLines(work.path("m.jsonl"));
  REQUIRE(lines.size() > kSteps + 2);
  CHECK(lines.front()["schema"] == "zeroplan.metrics/1");
  const Json& gpu = lines.front()["planned_bytes"]["gpu"];
  const uint64_t classes = gpu["params"].get<uint64_t>() + gpu["grads"].get<uint64_t>() +
                           gpu["optimizer"].get<uint64_t>() + gpu["activations"].get<uint64_t>() +
                           gpu["buffers"].get<uint64_t>();
  CHECK(classes == gpu["total"].get<uint64_t>());
  CHECK(lines.back()["event"] == "end");
  CHECK(lines.back()["high_water_bytes"] == lines.back()["planned_arena_bytes"]);
  CHECK(lines.back()["device_used_bytes"].is_null());
  const auto losses = LossesByStep(work.path("m.jsonl"));
  CHECK(losses.at(kSteps) < 0.7 * losses.at(1));
  CHECK(fs::exists(work.path("out/model.safetensors")));
  const Json trace = Json::parse(ReadWhole(work.path("t.json")));
  CHECK(trace["traceEvents"].size() > 1000);
  const RunResult text =
      RunZeroplan("generate " + work.path("out") + " --prompt ab --tokens 20 --seed 3");
  CHECK(text.exit_code == 0);
  CHECK(text.out.size() == 23);  // prompt, 20 bytes, line feed
  CHECK(text.out ==
        RunZeroplan("generate " + work.path("out") + " --prompt ab --tokens 20 --seed 3").out);
}

TEST_CASE("a run killed again and again has the losses of an uninterrupted one, bit by bit") {
  const Workspace work;
  const std::string layout = "--gpus 2 --stage 3 --offload-optimizer nvme --nvme-path /tmp ";
  const auto begin = std::chrono::steady_clock::now();
  REQUIRE(RunZeroplan(work.Train(layout + "--metrics " + work.path("control.jsonl"))).exit_code ==
          0);
  const auto control = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::steady_clock::now() - begin);
  const std::string again =
      work.Train(layout + "--save-every 2 --resume --save " + work.path("out") + " --metrics " +
                 work.path("killed.jsonl"));
  std::mt19937 random(std::random_device{}());
  int kills = 0;
  for (; kills < 300; ++kills) {
    // The first one early enough to hit, the others anywhere.
    const int64_t latest = kills == 0 ? control.count() / 3 : 150'000;
    const std::chrono::microseconds delay(
        std::uniform_int_distribution<int64_t>(std::min<int64_t>(5'000, latest), latest)(random));
    const int status = RunAndSignal(again, delay, SIGKILL);
    if (WIFEXITED(status)) {
      REQUIRE(WEXITSTATUS(status) == 0);
      break;
    }
  }
  // However unlucky the kills were, the last run is left alone.
  if (kills == 300) REQUIRE(RunZeroplan(again).exit_code == 0);
  CHECK(kills > 0);
  CHECK(LossesByStep(work.path("killed.jsonl")) == LossesByStep(work.path("control.jsonl")));
}

TEST_CASE("Ctrl-C saves, exits 130, and --resume continues at another layout") {
  const Workspace work;
  REQUIRE(RunZeroplan(work.Train("--micro-batch 4 --metrics " + work.path("control.jsonl")))
              .exit_code == 0);
  const std::string save = " --save " + work.path("out") + " --metrics " + work.path("m.jsonl");
  // Long enough that the signal finds it at work, wherever it is by then.
  const std::string first = work.Train("--micro-batch 4" + save, 100'000);
  int status = 0;
  for (int delay_ms : {300, 1000, 4000}) {
    status = RunAndSignal(first, std::chrono::milliseconds(delay_ms), SIGINT);
    if (fs::exists(work.path("out/model.safetensors"))) break;
  }
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 130);
  const auto control = LossesByStep(work.path("control.jsonl"));
  const auto before = LossesByStep(work.path("m.jsonl"));
  const int done = before.rbegin()->first;
  for (const auto& [step, loss] : before) {
    if (control.count(step)) CHECK(loss == control.at(step));
  }
  const RunResult more =
      RunZeroplan(work.Train("--gpus 4 --micro-batch 1 --stage 3 --resume" + save, done + 5));
  CAPTURE(more.err);
  REQUIRE(more.exit_code == 0);
  CHECK(LossesByStep(work.path("m.jsonl")).rbegin()->first == done + 5);
}

TEST_CASE("what cannot be run is refused with the option, the value and the fix") {
  const Workspace work;
  const struct {
    std::string arguments;
    int exit_code;
    std::string needle;
  } cases[] = {
      {work.Train("--offload-optimizer cpu"), 2, "stage"},
      {work.Train("--stage 1 --offload-param cpu"), 2, "stage 3"},
      {work.Train("--stage 1 --offload-optimizer nvme"), 2, "nvme"},
      {work.Train("--stage 1 --offload-optimizer nvme --nvme-path /no/such/dir"), 2,
       "/no/such/dir"},
#ifndef ZEROPLAN_WITH_CUDA
      {work.Train("--backend cuda"), 2, "-DZEROPLAN_CUDA=ON"},
#endif
      {work.Train("--backend gpu"), 2, "cpu, cuda"},
      {work.Train("--hw h200x8 --backend cpu"), 2, "--hw"},
      {work.Train("--gpu-memory 8GB --backend cpu"), 2, "--gpu-memory"},
      {work.Train("--gpu-memory lots --backend cpu"), 2, "lots"},
      {work.Train("--stage all"), 2, "one"},
      {work.Train("--resume"), 2, "--save"},
      {"train --model gpt2 --data x --lr nan", 2, "--lr"},
      {work.Train("--seq-len 64"), 2, "64"},
      {"train --model gpt2 --data /no/such/file", 2, "/no/such/file"},
      {work.Train("--metrics /no/such/dir/m.jsonl"), 4, "/no/such/dir"},
      {work.Train("--init-from /no/such/dir"), 2, "/no/such/dir"},
      {"train --params 1M --data " + SourcePath("LICENSE") + " --seq-len 32 --lr 900", 5,
       "diverged"},
      {"train --model gpt3-13b --data " + SourcePath("LICENSE") + " --gpus 16", 3, "short by"},
      {"generate /no/such/dir", 2, "/no/such/dir"},
      {"train --data x", 2, "--model"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.arguments);
    const RunResult run = RunZeroplan(c.arguments);
    CAPTURE(run.err);
    CHECK(run.exit_code == c.exit_code);
    CHECK(run.err.find(c.needle) != std::string::npos);
    CHECK(run.err.find("bug in zeroplan") == std::string::npos);
  }
}

TEST_CASE("a folder with checkpoints is not overwritten by a new run") {
  const Workspace work;
  REQUIRE(RunZeroplan(work.Train("--save " + work.path("out"))).exit_code == 0);
  const RunResult run = RunZeroplan(work.Train("--save " + work.path("out")));
  CHECK(run.exit_code == 2);
  CHECK(run.err.find("--resume") != std::string::npos);
}

}  // namespace
}  // namespace zeroplan
