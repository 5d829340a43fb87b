// docs/hybrid-sharding.md: what its table says is what `plan` chooses.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/strings.h"
#include "tests/cli/run_binary.h"
#include "tests/core/lowering/golden_text.h"

namespace zeroplan {
namespace {

nlohmann::json PlanOf(const std::string& model, int nodes, const std::string& more) {
  const int gpus = 8 * nodes;
  const RunResult run = RunZeroplan(
      fmt::format("plan --model {} --gpus {} --hw dgx-h100 --seq-len 4096 --global-batch {} {} "
                  "--format json",
                  model, gpus, std::max(1024, gpus), more));
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  return nlohmann::json::parse(run.out);
}

// "3 in 8, optimizer: 1.28".
std::string Cell(const std::string& model, int nodes, const std::string& network) {
  const std::string given = "--network " + network;
  const nlohmann::json best = PlanOf(model, nodes, given);
  const nlohmann::json alone = PlanOf(model, nodes, given + " --shard-group all");
  const nlohmann::json* choice = nullptr;
  const int stage = best.at("config").at("zero_optimization").at("stage");
  for (const nlohmann::json& of_stage : best.at("stages")) {
    if (of_stage.at("stage") == stage) choice = &of_stage.at("choice");
  }
  REQUIRE(choice != nullptr);
  const int group = choice->at("shard_group");
  if (group == 8 * nodes) return fmt::format("{}", stage);
  const auto speed = [](const nlohmann::json& plan) {
    return plan.at("predicted").at("tokens_per_second").get<double>();
  };
  return fmt::format("{} in {}, {}: {:.2f}", stage, group,
                     choice->at("across_groups").get<std::string>(), speed(best) / speed(alone));
}

// Some minutes. With ZEROPLAN_UPDATE_GOLDEN=1 the table is written anew.
TEST_CASE("hybrid: the page's table holds when typed back" * doctest::skip()) {
  const std::string file = SourcePath("docs/hybrid-sharding.md");
  const std::string page = ReadWhole(file);
  std::string now;
  int rows = 0;
  for (const std::string_view line : Split(page, '\n')) {
    if (!line.starts_with("| llama")) {
      now += std::string(line) + "\n";
      continue;
    }
    ++rows;
    CAPTURE(std::string(line));
    const std::vector<std::string_view> cells = Split(line.substr(2), '|');
    const std::string model(cells[0].substr(0, cells[0].size() - 1));
    const int nodes = std::stoi(std::string(cells[1]));
    now += fmt::format("| {} | {} |", model, nodes);
    for (const char* network : {"25Gb", "100Gb", "400Gb"}) {
      now += " " + Cell(model, nodes, network) + " |";
    }
    now += "\n";
  }
  CHECK(rows == 12);
  testing::CheckGolden(file, now);
}

}  // namespace
}  // namespace zeroplan
