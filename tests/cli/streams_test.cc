// What comes from a pipe, and results that cannot be written.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/cli/run_binary.h"
#include "tests/cli/train_workspace.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

const std::string kNoDetect = "ZEROPLAN_NO_DETECT=1";

TEST_CASE("a config from a pipe is what it is from a file, however often it is read") {
  const std::string config = SourcePath("examples/byte_gpt/ds_config.json");
  for (const std::string command :
       {"plan --model gpt2 --gpus 2 --quick --format json",
        "estimate --explain --model gpt2 --gpus 2", "config check --gpus 2"}) {
    CAPTURE(command);
    const bool check = command.starts_with("config");
    const std::string option = check ? " " : " --config ";
    const RunResult file = RunZeroplan(command + option + config);
    REQUIRE(file.exit_code == 0);
    for (const std::string from : {"-", "/dev/stdin"}) {
      CAPTURE(from);
      const RunResult pipe =
          RunZeroplan(command + option + from, "cat " + config + " | " + kNoDetect);
      CAPTURE(pipe.err);
      CHECK(pipe.exit_code == 0);
      // Of a plan the time that the search took differs.
      if (command.starts_with("estimate")) CHECK(pipe.out == file.out);
      CHECK(pipe.out.size() > file.out.size() / 2);
    }
  }
}

TEST_CASE("a result for a closed stdout is an error, work without a result is none") {
  for (const std::string command :
       {"model list", "hw show dgx-h100", "estimate --model gpt2 --format json", "--version",
        "help plan"}) {
    for (const std::string end : {" >&-", " >/dev/full"}) {
      CAPTURE(command);
      CAPTURE(end);
      const RunResult run = RunZeroplan(command + end);
      CHECK(run.exit_code == 4);
      CHECK(Has(run.err, wording::kCannotWriteToStdout));
    }
  }
  const Workspace work;
  CHECK(RunZeroplan("estimate --model gpt2 -o " + work.path("e.txt") + " >&-").exit_code == 0);
  CHECK(std::filesystem::file_size(work.path("e.txt")) > 0);
}

TEST_CASE("a trace that cannot be written says why and leaves no half") {
  RunResult run = RunZeroplan("plan --model gpt2 --quick --trace /dev/full");
  CHECK(run.exit_code == 4);
  CHECK(Has(run.err, wording::kDevFullCannotWriteNo));
  const Workspace work;
  const std::string trace = work.path("t.json");
  // 20 blocks of 512 bytes.
  run = RunZeroplan("plan --model gpt2 --quick --trace " + trace, "ulimit -f 20; " + kNoDetect);
  CHECK(run.exit_code == 4);
  CHECK(Has(run.err, wording::kCannotWriteFileTooLarge));
  CHECK_FALSE(std::filesystem::exists(trace));
  // One that was there is kept.
  REQUIRE(RunZeroplan("plan --model gpt2 --quick --trace " + trace).exit_code == 0);
  const std::string before = ReadWhole(trace);
  run = RunZeroplan("plan --model gpt2-xl --quick --trace " + trace, "ulimit -f 20; " + kNoDetect);
  CHECK(run.exit_code == 4);
  CHECK(ReadWhole(trace) == before);
  CHECK_FALSE(std::filesystem::exists(work.path(".t.json.tmp")));
}

TEST_CASE("help COMMAND is COMMAND --help") {
  for (const std::string command : {"", "plan", "hw list", "train", "checkpoint verify"}) {
    CAPTURE(command);
    const RunResult help = RunZeroplan("help " + command);
    CHECK(help.exit_code == 0);
    CHECK(help.out == RunZeroplan(command + " --help").out);
    CHECK(Has(help.out, "Usage: zeroplan"));
  }
  // Each command's examples are its own.
  CHECK(RunZeroplan("checkpoint list --help").out.find("estimate") == std::string::npos);
  CHECK(RunZeroplan("man --help").out.find("estimate") == std::string::npos);
  // train runs one choice.
  const std::string train = RunZeroplan("train --help").out;
  for (const char* all : {"nvme|all", "full|all"}) CHECK(train.find(all) == std::string::npos);
  CHECK(Has(train, wording::kOnTheCpuFp));
}

TEST_CASE("broken profiles and metrics are named in words of ours") {
  const Workspace work;
  for (const char* text : {"\x1b[31m", "", "[1", "{\"schema\": "}) {
    CAPTURE(text);
    const std::string file = work.path("broken.json");
    std::ofstream(file) << text << "\n";
    for (const std::string command : {"hw show ", "hw check "}) {
      CAPTURE(command);
      const RunResult run = RunZeroplan(command + file);
      CHECK(run.exit_code == 2);
      CHECK(Has(run.err, file));
      CHECK(run.err.find("json.exception") == std::string::npos);
      CHECK(run.err.find("\x1b") == std::string::npos);
    }
  }
  const std::string list = work.path("list.jsonl");
  std::ofstream(list) << "[]\n";
  CHECK(Has(RunZeroplan("hw check " + list).err, ":1: not a line of 'train --metrics': no object"));
}

}  // namespace
}  // namespace zeroplan
