// zeroplan train --restarts: killed at any instant, the run ends with the weights of one that was
// not.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>

#include <chrono>
#include <functional>
#include <optional>
#include <thread>

#include "core/base/files.h"
#include "tests/cli/run_binary.h"
#include "tests/cli/train_workspace.h"
#include "tests/paths.h"
#include "tests/patience.h"
#include "tests/run_metrics.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

constexpr int kSteps = 300;

class RunFolder : public Workspace {
 public:
  std::string Train(const std::string& more, int steps = kSteps) const {
    return Workspace::Train("--backend cpu --stage 2 --gpus 2 " + more, steps);
  }
  std::string Weights(const std::string& run) const {
    return ReadWhole(path(run + "/model.safetensors"));
  }
};

// A process of zeroplan's and what it prints.
class Supervised {
 public:
  Supervised(const std::string& arguments, const std::string& environment = "") {
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    read_ = UniqueFd(ends[0]);
    const UniqueFd write_end(ends[1]);
    const std::string command =
        "exec env ZEROPLAN_NO_DETECT=1 " + environment + " " + BinaryPath("zeroplan ") + arguments;
    pid_ = fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      dup2(write_end.get(), STDERR_FILENO);
      execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
      _exit(127);
    }
    fcntl(read_.get(), F_SETFL, O_NONBLOCK);
  }
  ~Supervised() {
    if (pid_ > 0) End();
  }

  pid_t pid() const { return pid_; }
  // Of the process that trains; -1 while there is none.
  pid_t Child() const {
    const std::string task = "/proc/" + std::to_string(pid_) + "/task/" + std::to_string(pid_);
    const std::string children = ReadWhole(task + "/children");
    return children.empty() ? -1 : std::stoi(children);
  }
  // Kills the child, another one than `but`, as soon as it is there and `now` says so. 0 if the run
  // was over before this process came to it.
  pid_t KillChild(pid_t but, const std::function<bool()>& now) {
    while (!HasEnded(pid_)) {
      Read();
      const pid_t child = Child();
      if (child > 0 && child != but && now()) {
        kill(child, SIGKILL);
        return child;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return 0;
  }
  int End() {
    int status = 0;
    while (waitpid(pid_, &status, WNOHANG) == 0) {
      Read();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    Read();
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  const std::string& text() const { return text_; }
  bool Said(const std::string& what) const { return text_.find(what) != std::string::npos; }

 private:
  void Read() {
    char buffer[4096];
    ssize_t got = 0;
    while ((got = read(read_.get(), buffer, sizeof buffer)) > 0) {
      text_.append(buffer, static_cast<size_t>(got));
    }
  }

  pid_t pid_ = -1;
  UniqueFd read_;
  std::string text_;
};

TEST_CASE("a run that is killed goes on by itself, bit for bit") {
  const RunFolder folder;
  REQUIRE(RunZeroplan(folder.Train("--save-every 30 --save " + folder.path("plain"))).exit_code ==
          0);
  const std::string weights = folder.Weights("plain");
  REQUIRE(!weights.empty());

  std::optional<Supervised> started;
  // Before anything is saved, and after two and five checkpoints.
  const auto killed_thrice = [&] {
    fs::remove_all(folder.path("killed"));
    fs::remove(folder.path("m.jsonl"));
    started.emplace(folder.Train("--save-every 30 --restarts 3 --metrics " +
                                 folder.path("m.jsonl") + " --save " + folder.path("killed")));
    pid_t killed = started->KillChild(-1, [] { return true; });
    for (const char* saved : {"step-00000060", "step-00000150"}) {
      if (killed != 0) killed = started->KillChild(killed, [&] { return started->Said(saved); });
    }
    return killed != 0;
  };
  Await(killed_thrice);
  Supervised& run = *started;
  const int code = run.End();
  CAPTURE(run.text());
  CHECK(code == 0);
  CHECK(
      run.Said("restart 1 of 3, since the process was killed by signal 9 (Killed): going on from "
               "the start, as nothing is saved yet"));
  CHECK(
      run.Said("restart 2 of 3, since the process was killed by signal 9 (Killed): going on from " +
               folder.path("killed/checkpoints/step-000000")));
  CHECK(run.Said("restart 3 of 3"));
  CHECK(folder.Weights("killed") == weights);
  // The metrics of all parts are there: every step at least once.
  std::vector<int> seen(kSteps + 1, 0);
  for (const auto& line : ReadMetricsLines(folder.path("m.jsonl"))) {
    if (line.contains("loss") && line.contains("step")) ++seen[line["step"].get<size_t>()];
  }
  for (int step = 1; step <= kSteps; ++step) CHECK(seen[static_cast<size_t>(step)] >= 1);
}

TEST_CASE("restarts end, and so does what they are for") {
  const RunFolder folder;
  std::optional<Supervised> started;
  const auto killed_twice = [&] {
    fs::remove_all(folder.path("out"));
    started.emplace(folder.Train("--save-every 30 --restarts 1 --save " + folder.path("out")));
    const pid_t first = started->KillChild(-1, [] { return true; });
    return first != 0 &&
           started->KillChild(first, [&] { return started->Said("step-00000060"); }) != 0;
  };
  Await(killed_twice);
  Supervised& run = *started;
  CHECK(run.End() == 4);
  CAPTURE(run.text());
  CHECK(run.Said("all 1 restarts are used up"));
  // By hand it still goes on.
  CHECK(RunZeroplan(folder.Train("--resume --save " + folder.path("out"))).exit_code == 0);

  // Asked to stop, it stops.
  Supervised stopped(
      folder.Train("--save-every 30 --restarts 3 --save " + folder.path("stopped"), 10'000'000));
  Await([&] { return fs::exists(folder.path("stopped/checkpoints/latest")); });
  kill(stopped.pid(), SIGTERM);
  CHECK(stopped.End() == 130);
  CAPTURE(stopped.text());
  CHECK_FALSE(stopped.Said("restart 1"));
  CHECK(stopped.Said("interrupted after step"));
}

TEST_CASE("--restarts where it has no sense is refused, and mistakes start nothing again") {
  const RunFolder folder;
  const auto refused = [&](const std::string& more, const std::string& why,
                           const std::string& environment = "ZEROPLAN_NO_DETECT=1") {
    const RunResult run = RunZeroplan(folder.Train(more), environment);
    CAPTURE(run.err);
    CHECK(run.exit_code == 2);
    CHECK(run.err.find(why) != std::string::npos);
    CHECK(run.err.find("restart 1") == std::string::npos);
  };
  refused("--restarts 3", "--restarts: 3 needs --save DIR");
  refused("--restarts -1 --save " + folder.path("a"), "--restarts");
  // Found by the process that trains: the vocabulary has no such tokens.
  refused("--restarts 3 --seq-len 100000 --save " + folder.path("b"), "--seq-len");
  REQUIRE(RunZeroplan(folder.Train("--save " + folder.path("old"))).exit_code == 0);
  refused("--restarts 3 --save " + folder.path("old"), "checkpoints of an earlier run");
}

// What torchrun 2.x sets for the one worker of a run, and how its agent starts it again.
TEST_CASE("torchrun's restarts resume a run bit for bit") {
  const RunFolder folder;
  REQUIRE(RunZeroplan(folder.Train("--save-every 30 --save " + folder.path("plain"))).exit_code ==
          0);
  const auto environment = [](int restart) {
    return "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_RANK=0 GROUP_WORLD_SIZE=1 "
           "ROLE_RANK=0 ROLE_WORLD_SIZE=1 ROLE_NAME=default MASTER_ADDR=127.0.0.1 "
           "MASTER_PORT=29500 TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_MAX_RESTARTS=3 "
           "TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=" +
           std::to_string(restart);
  };
  const std::string train = folder.Train("--save-every 30 --resume --save " + folder.path("out"));
  const auto killed_twice = [&] {
    fs::remove_all(folder.path("out"));
    for (int restart = 0; restart < 2; ++restart) {
      Supervised run(train, environment(restart));
      const int want = 60 + 90 * restart;
      const std::string name = "step-00000" + std::to_string(1000 + want).substr(1);
      Await([&] {
        return HasEnded(run.pid()) || fs::exists(folder.path("out/checkpoints/" + name));
      });
      kill(run.pid(), SIGKILL);
      const int code = run.End();
      if (code == 0) return false;  // it was over before this process came to kill it
      CHECK(code == 1000 + SIGKILL);
    }
    return true;
  };
  Await(killed_twice);
  Supervised last(train, environment(2));
  CHECK(last.End() == 0);
  CAPTURE(last.text());
  CHECK(last.Said("resumed from "));
  CHECK(folder.Weights("out") == folder.Weights("plain"));
}

}  // namespace
}  // namespace zeroplan
