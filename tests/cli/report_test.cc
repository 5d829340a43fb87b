// --report, run as a user runs it.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/run_binary.h"
#include "tests/cli/train_workspace.h"
#include "tests/planner/page/page_reading.h"
#include "tests/temp_dir.h"
#include "tests/tiny_config.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

TEST_CASE("estimate --report: the page shows what the JSON says, and prints what it printed") {
  const TempDir folder;
  const std::string asked = "estimate --model gpt2 --gpus 2 --seq-len 128";
  const RunResult plain = RunZeroplan(asked);
  const RunResult run = RunZeroplan(asked + " --report " + folder.path("page.html"));
  REQUIRE(run.exit_code == 0);
  CHECK(run.out == plain.out);
  const std::string html = ReadWhole(folder.path("page.html"));
  CHECK(Attributes(html, "section", "id") ==
        Strings{"gpu-memory", "step-time", "front", "step-memory"});
  CHECK(html.find("zeroplan estimate --model gpt2 --gpus 2 --seq-len 128 --report ") !=
        std::string::npos);
  CHECK(html.find("Assumed: ") != std::string::npos);
  const auto json = nlohmann::json::parse(RunZeroplan(asked + " --format json").out);
  const std::string svg = html.substr(html.find("<svg "), html.find("</svg>") - html.find("<svg "));
  const std::map<int, double> sums = BarSums(svg);
  REQUIRE(sums.size() == json["choices"].size());
  for (const auto& [bar, sum] : sums) {
    CHECK(sum == json["choices"][static_cast<size_t>(bar)]["gpu_bytes"]["total"].get<double>());
  }
}

TEST_CASE("what a user calls things is text on the page") {
  const TempDir folder;
  const std::string name = "a<script>b&c'd.json";
  testing::WriteGpt2Config(folder.path(name));
  const RunResult run = RunZeroplan("estimate --stage 1 --model \"" + folder.path(name) +
                                    "\" --report " + folder.path("page.html"));
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  const std::string html = ReadWhole(folder.path("page.html"));
  CHECK(html.find("<script") == std::string::npos);
  CHECK(html.find("a&lt;script&gt;b&amp;c") != std::string::npos);
  // As a shell takes it.
  CHECK(html.find("b&amp;c&#39;\\&#39;&#39;d.json&#39;") != std::string::npos);
}

TEST_CASE("plan --report has the answer, its stages and where it changes") {
  const TempDir folder;
  const RunResult run = RunZeroplan("plan --model gpt2 --gpus 2 --gpu-memory 8GB --report " +
                                    folder.path("page.html"));
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  const std::string html = ReadWhole(folder.path("page.html"));
  for (const char* id : {"gpu-memory", "step-time", "front", "flips", "step-memory"}) {
    CAPTURE(id);
    CHECK(Count(html, std::string("<section id=\"") + id + "\">") == 1);
  }
  CHECK(html.find("Chosen: stage") != std::string::npos);
  CHECK(Count(html, "class=\"ring\"") == 2);  // the chosen dot, in each width
}

TEST_CASE("train --report has each step, and what was planned beside what was touched") {
  const Workspace workspace;
  const std::string page = workspace.path("run.html"), metrics = workspace.path("run.jsonl");
  const RunResult run = RunZeroplan(workspace.Train(
      "--backend cpu --validate-every 3 --metrics " + metrics + " --report " + page, 8));
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  const std::string html = ReadWhole(page);
  CHECK(Attributes(html, "section", "id") == Strings{"loss", "speed", "arenas"});
  CHECK(html.find("zeroplan train --model ") != std::string::npos);
  // The losses are those of the metrics.
  Strings losses;
  std::istringstream lines(ReadWhole(metrics));
  std::string touched;
  for (std::string line; std::getline(lines, line);) {
    const auto event = nlohmann::json::parse(line);
    if (event["event"] == "step")
      losses.push_back(fmt::format("{:.4f}", event["loss"].get<double>()));
    if (event["event"] == "end") {
      touched = std::to_string(event["high_water_bytes"]["device"].get<uint64_t>());
    }
  }
  REQUIRE(losses.size() == 8);
  for (size_t i = 0; i < losses.size(); ++i) {
    CHECK(html.find(fmt::format("<tr><td>{}</td><td class=\"n\">{}</td>", i + 1, losses[i])) !=
          std::string::npos);
  }
  CHECK(html.find(fmt::format("<tr><td>device</td><td class=\"n\">{}</td><td class=\"n\">{}</td>",
                              touched, touched)) != std::string::npos);
}

TEST_CASE("a run that diverges leaves its page") {
  const Workspace workspace;
  const std::string page = workspace.path("run.html");
  const RunResult run = RunZeroplan(workspace.Train(
      "--backend cpu --skip-loss-spike 1.0001 --max-bad-steps 1 --report " + page, 20));
  INFO(run.err);
  CHECK(run.exit_code == 5);
  const std::string html = ReadWhole(page);
  CHECK(html.find("The run did not end: ") != std::string::npos);
}

TEST_CASE("where the page cannot be written is said before the work") {
  const TempDir folder;
  const std::string page = folder.path("none/page.html");
  for (const char* command :
       {"estimate --model gpt2", "plan --model gpt2", "train --model gpt2 --data LICENSE",
        "estimate --model gpt2 --runtime deepspeed", "plan --model gpt2 --runtime fsdp2"}) {
    CAPTURE(command);
    const RunResult run = RunZeroplan(std::string(command) + " --report " + page);
    CHECK(run.exit_code == 2);
    CHECK(run.out.empty());
    CHECK(run.err.find("--report: " + page + ": there is no folder") != std::string::npos);
  }
  const RunResult same =
      RunZeroplan("estimate --model gpt2 -o " + folder.path("x") + " --report " + folder.path("x"));
  CHECK(same.exit_code == 2);
  CHECK(same.err.find("is also what --out writes") != std::string::npos);
}

}  // namespace
}  // namespace zeroplan
