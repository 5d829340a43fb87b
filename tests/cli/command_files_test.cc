// What a command line reads is not written over, and neither is what zeroplan did not write.
#include "cli/common/command_files.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "cli/common/command.h"
#include "cli/common/commands.h"
#include "tests/cli/run_binary.h"
#include "tests/cli/train_workspace.h"
#include "tests/has.h"
#include "tests/temp_dir.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

void Put(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// Every command of the program with options of its own, its words first: "hw measure".
void VisitCommands(
    const std::function<void(const std::string&, const CommandDescription&)>& visit) {
  CLI::App app("", "zeroplan");
  Command root(app);
  RegisterEstimate(root, nullptr);
  RegisterPlan(root, nullptr);
  for (const auto add : {RegisterConfig, RegisterModel, RegisterHardware, RegisterData,
                         RegisterTrain, RegisterCheckpoint, RegisterExplain, RegisterGenerate,
                         RegisterMerge, RegisterDoctor, RegisterManual}) {
    add(root);
  }
  const std::function<void(const std::string&, const CommandDescription&)> below =
      [&](const std::string& words, const CommandDescription& command) {
        visit(words, command);
        for (const auto& inner : command.commands) below(words + " " + inner->name, *inner);
      };
  for (const auto& command : root.description()->commands) below(command->name, *command);
}

using Use = PathRole::Use;

// "--data FILE", or the file alone for what has no name.
std::string AsGiven(const OptionDescription& option, const std::string& value) {
  return " " + (option.positional() ? "" : option.names.back() + " ") + value;
}

// The command with what it requires but `left_out`; `any` is a file.
std::string Least(const std::string& words, const CommandDescription& command,
                  const std::vector<const OptionDescription*>& left_out, const std::string& any,
                  const std::string& output) {
  std::string line = words;
  for (const OptionDescription& option : command.options) {
    if (!option.required ||
        std::find(left_out.begin(), left_out.end(), &option) != left_out.end()) {
      continue;
    }
    const std::vector<std::string> known = OffersOf(option).words;
    line += AsGiven(option, option.path.use == Use::kWrite ? output
                            : option.leads_to_path()       ? any
                                                           : known.front());
  }
  return line;
}

TEST_CASE("no command writes over what it reads, nor over what zeroplan did not write") {
  const TempDir folder;
  // Token files need this ending.
  const std::string both = folder.path("both.bin"), any = folder.path("any.txt"),
                    output = folder.path("new.bin"), text = "what must not be lost\n";
  Put(any, "any\n");
  int outputs = 0, pairs = 0;
  VisitCommands([&](const std::string& words, const CommandDescription& command) {
    for (const OptionDescription& out : command.options) {
      if (!out.leads_to_path() || out.path.use != Use::kWrite) continue;
      ++outputs;
      const auto check = [&](const std::string& line, const std::string& why) {
        CAPTURE(line);
        Put(both, text);
        const RunResult run = RunZeroplan(line);
        CHECK(run.exit_code == 2);
        CHECK(Has(run.err, out.names.back() + ": " + both + ": " + why));
        CHECK(ReadWhole(both) == text);
      };
      check(Least(words, command, {&out}, any, output) + AsGiven(out, both),
            "is there already and");
      for (const OptionDescription& in : command.options) {
        if (!in.leads_to_path() || in.path.use == Use::kWrite || in.path.use == Use::kFill) {
          continue;
        }
        ++pairs;
        check(Least(words, command, {&out, &in}, any, output) + AsGiven(in, both) +
                  AsGiven(out, both),
              "is the file that ");
      }
    }
  });
  CHECK(outputs >= 14);
  CHECK(pairs >= 40);
}

TEST_CASE("options that write say so") {
  VisitCommands([&](const std::string& words, const CommandDescription& command) {
    for (const OptionDescription& option : command.options) {
      if (!option.leads_to_path()) continue;
      CAPTURE(words);
      CAPTURE(option.names.back());
      const bool by_help = option.help.starts_with("Write ") || option.help.starts_with("File for");
      const bool is_file = option.type.starts_with("FILE");
      CHECK((option.path.use == Use::kWrite) ==
            ((by_help || option.names.back() == "--out") && is_file));
      CHECK((option.path.use == Use::kWrite) == (option.path.kind != nullptr));
    }
  });
}

TEST_CASE("what an option wrote it may write again") {
  const TempDir folder;
  const auto twice = [&](const std::string& line) {
    CAPTURE(line);
    for (int i = 0; i < 2; ++i) {
      const RunResult run = RunZeroplan(line);
      CHECK_MESSAGE(run.exit_code == 0, run.err);
    }
  };
  const auto file = [&](const char* name) { return " " + folder.path(name); };
  const std::string small = " --model gpt2 --hw dgx-h100 --gpus 2";
  twice("estimate" + small + " --stage 1 --offload-optimizer none --offload-param none -o" +
        file("e.txt") + " --trace" + file("t.json") + " --report" + file("r.html"));
  twice("estimate" + small + " --format json -o" + file("e.json"));
  twice("estimate" + small + " --format csv -o" + file("e.csv"));
  twice("estimate" + small + " --runtime deepspeed -o" + file("d.txt"));
  twice("plan" + small + " --quick --plan-out" + file("p.json") + " --report" + file("p.html") +
        " --trace" + file("pt.json"));
  twice("plan" + small + " --quick --out" + file("ds.json"));
  twice("plan" + small + " --quick --runtime zeroplan --out" + file("own.json"));
  twice("plan" + small + " --quick --runtime fsdp2 --out" + file("fsdp.json"));
  twice("plan" + small + " --quick --for hf-trainer --out" + file("hf.json"));
  twice("plan" + small + " --quick --for accelerate --out" + file("a.yaml"));
  twice("plan --model llama3.2-1b --hw dgx-h100 --gpus 2 --quick --for torchtitan --out" +
        file("t.toml"));
  twice("explain" + file("p.json") + " -o" + file("x.txt") + " --trace" + file("xt.json"));
  for (const char* kind : {"config", "profile", "plan", "metrics"}) {
    twice(std::string("config schema ") + kind + " -o" + file("schema.json"));
  }
  for (const char* shell : {"bash", "zsh", "fish"}) {
    twice(std::string("completion ") + shell + " -o " + folder.path(shell));
  }
  Put(folder.path("text.txt"), "some text");
  twice("data tokenize" + file("text.txt") + " -o" + file("text.bin"));
  const std::string check =
      "hw check " + SourcePath("benchmarks/measure/results/runs/2x/gpt2-xl-2gpu-stage2.jsonl") +
      " --hw hgx-h200 ";
  twice(check + "-o" + file("table.md"));
  twice(check + "--format text -o" + file("table.txt"));
  const Workspace work;
  twice(work.Train("--trace" + file("run.json") + " --report" + file("run.html"), 3));
}

TEST_CASE("links and folders hide nothing") {
  const TempDir folder;
  const std::string config = folder.path("config.json"), link = folder.path("link.json"),
                    hard = folder.path("hard.json");
  testing::WriteGpt2Config(config);
  const std::string text = ReadWhole(config);
  fs::create_symlink(config, link);
  REQUIRE(::link(config.c_str(), hard.c_str()) == 0);
  const auto refused = [&](const std::string& line, const std::string& why) {
    CAPTURE(line);
    const RunResult run = RunZeroplan(line);
    CHECK(run.exit_code == 2);
    CHECK(Has(run.err, why));
    CHECK(ReadWhole(config) == text);
  };
  for (const std::string& other : {link, hard, folder.path() + "/./config.json"}) {
    refused("plan --model " + config + " --report " + other,
            "--report: " + other + ": is the file that --model reads, " + config);
  }
  refused("plan --model " + folder.path() + " --report " + link,
          ", a file of the folder that --model reads");
  // Data: nothing is made below a folder that is read as a whole.
  const std::string data = folder.path("data");
  fs::create_directories(data + "/inner");
  Put(data + "/inner/text.txt", "some text");
  const std::string train = "train --model " + config + " --data " + data;
  refused(train + " --metrics " + data + "/inner/text.txt",
          "lies below the folder " + data + ", all of which --data reads");
  refused(train + " --metrics " + data + "/new.jsonl", "--metrics: ");
  refused(train + " --save " + data + "/inner/out", "--save: ");
  refused(train + " --tensorboard " + data, "--tensorboard: ");
  refused("data tokenize " + data + " -o " + data + "/x.bin", "--out: ");
  CHECK_FALSE(fs::exists(data + "/x.bin"));
  CHECK(ReadWhole(data + "/inner/text.txt") == "some text");
  // The same file under two names.
  refused("estimate --model gpt2 -o " + folder.path("r") + " --report " + folder.path() + "/./r",
          "is also what --out writes");
  // Files beside the one that --out names.
  Put(folder.path("run.deepspeed.json"), "{}");
  const RunResult beside = RunZeroplan(
      "plan --model gpt2 --gpus 2 --hw dgx-h100 --quick "
      "--for accelerate --out " +
      folder.path("run.yaml"));
  CHECK(beside.exit_code == 2);
  CHECK(Has(beside.err, wording::kRunDeepspeedJsonIsThere));
}

TEST_CASE("train: metrics of an earlier run are added to, or nothing is") {
  const Workspace work;
  for (const char* name : {"m.jsonl", "m.csv"}) {
    const std::string metrics = " --metrics " + work.path(name);
    const std::string out = work.path(std::string("out-") + name);
    REQUIRE(RunZeroplan(work.Train("--save " + out + metrics, 3)).exit_code == 0);
    const std::string before = ReadWhole(work.path(name));
    const RunResult again = RunZeroplan(work.Train(metrics, 3));
    CHECK(again.exit_code == 2);
    CHECK(Has(again.err, wording::kHoldsTheMetricsOfAn));
    CHECK(ReadWhole(work.path(name)) == before);
    CHECK(RunZeroplan(work.Train("--resume --save " + out + metrics, 5)).exit_code == 0);
    CHECK(ReadWhole(work.path(name)).starts_with(before));
  }
  // Neither is something else added to.
  Put(work.path("notes.txt"), "my notes, without an end");
  const RunResult notes = RunZeroplan(work.Train(
      "--resume --save " + work.path("new") + " --metrics " + work.path("notes.txt"), 3));
  CHECK(notes.exit_code == 2);
  CHECK(ReadWhole(work.path("notes.txt")) == "my notes, without an end");
  // An empty file, such as mktemp makes, and devices are nobody's.
  Put(work.path("empty"), "");
  CHECK(RunZeroplan(work.Train("--metrics " + work.path("empty"), 3)).exit_code == 0);
  CHECK(RunZeroplan(work.Train("--metrics /dev/null --trace /dev/null", 3)).exit_code == 0);
}

TEST_CASE("train: weights are not saved over those of another folder") {
  const Workspace work;
  const std::string out = work.path("out");
  REQUIRE(RunZeroplan(work.Train("--save " + out, 2)).exit_code == 0);
  const std::string published = work.path("published");
  fs::create_directory(published);
  for (const char* name : {"config.json", "model.safetensors"}) {
    fs::copy_file(out + "/" + name, published + "/" + name);
  }
  const std::string weights = ReadWhole(published + "/model.safetensors");
  for (const std::string& model : {published, work.path("config.json")}) {
    const RunResult run = RunZeroplan("train --model " + model + " --data " +
                                      SourcePath("LICENSE") + " --steps 2 --save " + published);
    CHECK(run.exit_code == 2);
    CHECK(Has(run.err, "--save " + published + ": holds config.json, and no checkpoints of a run"));
    CHECK(ReadWhole(published + "/model.safetensors") == weights);
    CHECK_FALSE(fs::exists(published + "/checkpoints"));
  }
  // A run's own folder goes on.
  const RunResult on = RunZeroplan("train --model " + out + " --data " + SourcePath("LICENSE") +
                                   " --lr 3e-3 --steps 3 --resume --save " + out);
  CHECK_MESSAGE(on.exit_code == 0, on.err);
  // Nor is a licence that lies there replaced.
  Put(published + "/LICENSE", "of the model");
  const std::string project = work.path("project");
  fs::create_directory(project);
  Put(project + "/LICENSE", "of the project");
  const RunResult licence = RunZeroplan("train --model " + published + " --data " +
                                        SourcePath("LICENSE") + " --steps 2 --save " + project);
  CHECK(licence.exit_code == 2);
  CHECK(Has(licence.err, "holds LICENSE"));
}

}  // namespace
}  // namespace zeroplan
