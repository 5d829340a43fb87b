// Whoever reads stdout goes away before the command has ended, as `head` does.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/cli/run_binary.h"
#include "tests/cli/train_workspace.h"
#include "tests/has.h"
#include "tests/patience.h"

namespace zeroplan {
namespace {

struct Ended {
  int code = -1;   // -1: by a signal
  int signal = 0;  // 0: by none
  std::string err;
};

// zeroplan with a stdout that nobody reads from the start: each write to it fails.
Ended RunWithoutReader(const Workspace& work, const std::string& arguments) {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  close(ends[0]);
  const std::string command = "exec env ZEROPLAN_NO_DETECT=1 " + BinaryPath("zeroplan ") +
                              arguments + " 2>" + work.path("err");
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    signal(SIGPIPE, SIG_DFL);
    execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  close(ends[1]);
  int status = 0;
  waitpid(child, &status, 0);
  Ended ended;
  if (WIFEXITED(status)) ended.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) ended.signal = WTERMSIG(status);
  ended.err = ReadWhole(work.path("err"));
  return ended;
}

TEST_CASE("a reader that goes away: files that were asked for are written, then SIGPIPE") {
  const Workspace work;
  const std::string plan = work.path("plan.json");
  const std::string small = " --model gpt2 --gpus 2 --hw hgx-h200";
  struct Case {
    std::string arguments;
    std::vector<std::string> files;
  };
  const std::vector<Case> cases = {
      {"plan --quick" + small + " --plan-out " + plan + " --report " + work.path("plan.html") +
           " --trace " + work.path("plan_trace.json"),
       {"plan.json", "plan.html", "plan_trace.json"}},
      {"plan --quick" + small + " --runtime deepspeed --out " + work.path("ds.json"), {"ds.json"}},
      {"estimate --stage 2 --offload-optimizer none --offload-param none --checkpointing none" +
           small + " --report " + work.path("estimate.html") + " --trace " +
           work.path("estimate_trace.json"),
       {"estimate.html", "estimate_trace.json"}},
      {"explain " + plan + " --trace " + work.path("explain_trace.json"), {"explain_trace.json"}},
  };
  for (const Case& c : cases) {
    CAPTURE(c.arguments);
    const Ended ended = RunWithoutReader(work, c.arguments);
    CAPTURE(ended.err);
    CHECK(ended.signal == SIGPIPE);
    CHECK(ended.err.find("pipe") == std::string::npos);
    CHECK(ended.err.find("cannot write") == std::string::npos);
    for (const std::string& file : c.files) {
      CAPTURE(file);
      CHECK(std::filesystem::exists(work.path(file)));
    }
  }
  CHECK(RunZeroplan("explain " + plan).exit_code == 0);  // whole
}

TEST_CASE("a reader that goes away: without files the command ends at once, without a word") {
  const Workspace work;
  for (const std::string arguments : {"estimate --model gpt2", "model list", "--help"}) {
    CAPTURE(arguments);
    const Ended ended = RunWithoutReader(work, arguments);
    CHECK(ended.signal == SIGPIPE);
    CHECK(ended.err.empty());
  }
}

TEST_CASE("a reader that goes away: a failure keeps its exit code") {
  const Workspace work;
  const Ended ended =
      RunWithoutReader(work, "plan --quick --largest --params 900B --hw hgx-h200 --plan-out " +
                                 work.path("plan.json"));
  CHECK(ended.code == 2);
  CHECK(Has(ended.err, "zeroplan: "));
}

TEST_CASE("a reader that goes away: a run goes on, its process and its launcher") {
  const Workspace work;
  for (const std::string more : {"", " --restarts 1"}) {
    CAPTURE(more);
    const std::string out = work.path("out" + std::to_string(more.size()));
    const std::string command =
        "(ZEROPLAN_NO_DETECT=1 " + BinaryPath("zeroplan ") +
        work.Train("--save " + out + " --metrics " + out + ".jsonl" + more) + "; echo $? >" + out +
        ".rc) 2>&1 | head -n 1 >/dev/null";
    REQUIRE(std::system(command.c_str()) == 0);
    Await([&] { return !ReadWhole(out + ".rc").empty(); });
    CHECK(ReadWhole(out + ".rc") == "0\n");
    CHECK(Has(ReadWhole(out + ".jsonl"), R"("event":"end")"));
    CHECK(RunZeroplan("checkpoint verify " + out).exit_code == 0);
  }
}

}  // namespace
}  // namespace zeroplan
