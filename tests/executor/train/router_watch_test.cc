// The figures of routing in metrics.jsonl, and the warning of experts that get no token any more.
#include "executor/train/router_watch.h"

#include <doctest/doctest.h>

#include <vector>

#include "core/families/load_model.h"

namespace zeroplan {
namespace {

// 3 layers of 8 experts, the middle one dense.
ModelSpec SmallMixture() {
  ModelSpec model = LoadModel("qwen3-30b-a3b");
  model.layers = 3;
  model.experts = 8;
  model.experts_per_token = 2;
  model.dense_layers = "1";
  return model;
}

// Totals as the engine gives them: two losses, targets, and the rows of layers 0 and 2.
std::vector<double> Totals(const std::vector<double>& rows) {
  std::vector<double> totals = {6, 10, 4};
  totals.insert(totals.end(), rows.begin(), rows.end());
  return totals;
}

std::vector<double> Even() { return std::vector<double>(16, 4); }

TEST_CASE("router watch: the losses are means, the fullest expert is over its layer's mean") {
  RouterWatch watch(SmallMixture());
  std::vector<double> rows = Even();
  rows[9] = 12, rows[10] = 0, rows[11] = 0;  // layer 2
  const auto report = watch.Note(Totals(rows));
  REQUIRE(report.has_value());
  CHECK(report->balance_loss == 1.5);
  CHECK(report->z_loss == 2.5);
  CHECK(report->most == 3);
  CHECK(report->without == 2);
  CHECK(report->experts == 16);
  CHECK_FALSE(report->warning.has_value());
}

TEST_CASE("router watch: an expert is called dead once, each time that it dies") {
  RouterWatch watch(SmallMixture());
  std::vector<double> rows = Even();
  const auto warnings = [&](int64_t steps) {
    std::vector<std::string> all;
    for (int64_t step = 0; step < steps; ++step) {
      const auto report = watch.Note(Totals(rows));
      REQUIRE(report.has_value());
      if (report->warning) all.push_back(*report->warning);
    }
    return all;
  };
  rows[13] = 0;
  CHECK(warnings(RouterWatch::kDeadSteps - 1).empty());
  const auto first = warnings(1);
  REQUIRE(first.size() == 1);
  CHECK(
      first[0].starts_with("1 of 16 experts is dead: without a token in the last 50 steps, such as "
                           "expert 5 of layer 2; "));
  CHECK(warnings(100).empty());
  // Another one dies: it is the one that is named, of two.
  rows[3] = 0;
  const auto second = warnings(RouterWatch::kDeadSteps);
  REQUIRE(second.size() == 1);
  CHECK(second[0].starts_with(
      "2 of 16 experts are dead: without a token in the last 50 steps, such as "
      "expert 3 of layer 0; "));
  // One comes back and dies again.
  rows[13] = 1;
  CHECK(warnings(1).empty());
  rows[13] = 0;
  CHECK(warnings(RouterWatch::kDeadSteps).size() == 1);
}

TEST_CASE("router watch: experts that die one after the other are warned of together") {
  RouterWatch watch(SmallMixture());
  std::vector<double> rows = Even();
  std::vector<int64_t> warned;
  for (int64_t step = 0; step < 4 * RouterWatch::kDeadSteps; ++step) {
    if (step < 8) rows[static_cast<size_t>(step)] = 0;
    const auto report = watch.Note(Totals(rows));
    REQUIRE(report.has_value());
    if (!report->warning) continue;
    warned.push_back(step);
    CHECK(report->warning->starts_with(warned.size() == 1 ? "1 of 16 experts is" : "8 of 16"));
  }
  // The first one, and the other seven, which died in the seven steps behind.
  CHECK(warned ==
        std::vector<int64_t>{RouterWatch::kDeadSteps - 1, 2 * RouterWatch::kDeadSteps - 1});
}

TEST_CASE("router watch: nothing is said of a model without experts, nor of no totals") {
  RouterWatch dense(LoadModel("gpt2"));
  CHECK_FALSE(dense.Note({}).has_value());
  RouterWatch watch(SmallMixture());
  CHECK_FALSE(watch.Note({}).has_value());
}

}  // namespace
}  // namespace zeroplan
