// Machines compared: rows are what single plans find, in their order, and what is marked is beaten
// by none.
#include "planner/machines/machines.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "planner/request/resolved.h"
#include "planner/search/search.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/temp_dir.h"
#include "tests/test_seed.h"
#include "tests/wordings/planner.h"

namespace zeroplan {
namespace {

PlanRequest Compared(const std::string& model, std::vector<std::string> hw, std::vector<int> gpus) {
  PlanRequest request;
  request.common.model.model = model;
  request.machines.hw = std::move(hw);
  request.machines.gpus = std::move(gpus);
  return request;
}

MachineComparison ComparedNow(const PlanRequest& request) {
  Assumptions unused;
  return CompareMachines(request, unused);
}

std::string RefusalOf(const PlanRequest& request) {
  return ErrorOf(ExitCode::kUsage, [&] { (void)ComparedNow(request); });
}

// Tokens a second of 'plan' with that machine; 0: nothing fits, or it cannot be asked.
double SinglePlan(const PlanRequest& asked, const std::string& hw, int gpus) {
  PlanRequest request = asked;
  request.machines = {};
  request.common.hardware.profile = hw;
  request.common.cluster.gpus.emplace(gpus);
  request.quick = true;
  Assumptions unused;
  try {
    const ResolvedPlan resolved(request, unused);
    const SearchResult result = MakeSearch(resolved.inputs())->Run();
    return result.best ? *result.stages[*result.best].estimate.time.tokens_per_second : 0;
  } catch (const Error& error) {
    REQUIRE(error.code() == ExitCode::kUsage);
    return 0;
  }
}

// A file with a price for each of `hw`.
struct MadeUpPrices {
  std::map<std::string, double> gpu_hour;
  bool whole_node = false;

  void Write(const std::string& file) const {
    nlohmann::json json = {{"schema", "zeroplan.prices/1"}, {"currency", "EUR"}};
    for (const auto& [hw, price] : gpu_hour) {
      json["prices"].push_back(
          {{"hw", hw}, {"on_demand", price}, {"rented_by", whole_node ? "node" : "gpu"}});
    }
    std::ofstream(file) << json;
  }
};

TEST_CASE("machines: random questions have the rows, the order and the marks of single plans") {
  const char* given = std::getenv("ZEROPLAN_SCENARIOS");  // how many questions
  const int questions = given != nullptr ? std::atoi(given) : 6;
  CAPTURE(TestSeed());
  std::mt19937_64 random(TestSeed());
  const auto any = [&](const auto& of) { return of[random() % of.size()]; };
  const std::vector<std::string> models = {"gpt2", "gpt2-large", "gpt2-xl", "qwen2.5-0.5b",
                                           "llama3.2-1b"};
  const std::vector<std::string> cards = {"rtx4090", "rtx3060", "l40s",          "t4",
                                          "a10g",    "l4",      "a100-80gb-sxm", "h100-80gb-sxm"};
  for (int q = 0; q < questions; ++q) {
    std::vector<std::string> hw = cards;
    std::shuffle(hw.begin(), hw.end(), random);
    hw.resize(2 + random() % 3);
    std::vector<int> gpus = {1, 2, 4, 8};
    gpus.erase(gpus.begin() + static_cast<std::ptrdiff_t>(random() % gpus.size()));
    PlanRequest request = Compared(any(models), hw, gpus);
    request.common.settings.seq_len.emplace(any(std::vector<int64_t>{512, 1024}));
    if (random() % 2 == 0)
      request.common.settings.global_batch.emplace(any(std::vector{32, 64, 24}));
    if (random() % 2 == 0) request.common.goal.tokens.emplace(20'000'000);
    request.machines.objective.emplace(
        any(std::vector{MachineObjective::kTime, MachineObjective::kCost}));
    TempDir folder;
    MadeUpPrices prices;
    // One card in three has none.
    for (const std::string& name : hw) {
      if (random() % 3 > 0) prices.gpu_hour[name] = 0.1 + static_cast<double>(random() % 500) / 100;
    }
    prices.gpu_hour["b300-288gb-sxm"] = 9;
    prices.Write(folder.path("prices.json"));
    request.machines.prices = folder.path("prices.json");
    INFO(request.common.model.model, " ", *request.common.settings.seq_len);

    const MachineComparison all = ComparedNow(request);
    REQUIRE(all.rows.size() == hw.size() * gpus.size());
    struct Row {
      double seconds, price;
    };
    std::vector<Row> rows;
    constexpr double kNone = std::numeric_limits<double>::infinity();
    bool priced = false;
    for (const MachineRow& row : all.rows) {
      INFO(row.hw, " ", row.gpus);
      const double rate = SinglePlan(request, row.hw, row.gpus);
      CHECK(row.choice.has_value() == (rate > 0));
      if (!row.choice) {
        CHECK_FALSE(row.why_not.empty());
        continue;
      }
      CHECK(*row.choice->time.tokens_per_second == rate);
      // Whole steps.
      const BatchSpec& batch = row.choice->setup.batch;
      const int64_t step = batch.global_batch() * batch.seq_len;
      const int64_t steps = (*all.tokens + step - 1) / step;
      const double seconds = static_cast<double>(steps * step) / rate;
      const auto price = prices.gpu_hour.find(row.hw);
      const bool has = price != prices.gpu_hour.end();
      rows.push_back({seconds, has ? price->second * seconds / 3600 * row.gpus : kNone});
      CHECK(row.run.seconds == doctest::Approx(seconds));
      CHECK(row.price.has_value() == has);
      if (has) CHECK(*row.price == doctest::Approx(rows.back().price));
      priced |= has;
    }
    for (size_t i = 1; i < rows.size(); ++i) {
      CAPTURE(i);
      const bool by_price = all.objective == MachineObjective::kCost;
      const double before = by_price ? rows[i - 1].price : rows[i - 1].seconds;
      const double now = by_price ? rows[i].price : rows[i].seconds;
      CHECK(before <= now * (1 + 1e-12));
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      INFO(all.rows[i].hw, " ", all.rows[i].gpus);
      const auto money = [&](size_t of) {
        return priced ? rows[of].price : static_cast<double>(all.rows[of].gpus);
      };
      bool beaten = priced && rows[i].price == kNone;
      for (size_t j = 0; j < rows.size() && !beaten; ++j) {
        const bool as_good = rows[j].seconds <= rows[i].seconds && money(j) <= money(i);
        // Beyond what sums in another order round to.
        constexpr double kLess = 1 - 1e-12;
        beaten =
            as_good && (rows[j].seconds < rows[i].seconds * kLess || money(j) < money(i) * kLess);
      }
      CHECK(all.rows[i].front == !beaten);
    }
  }
}

TEST_CASE("machines: of all built-in ones, those that are shown are those of whole searches") {
  PlanRequest request;
  request.common.model.model = "gpt2-large";
  request.machines.any = true;
  request.machines.gpus = {1, 8};
  const MachineComparison all = ComparedNow(request);
  CHECK(all.rows.size() > 80);
  std::vector<double> shown;
  for (size_t i = 0; i < kShownOfAny; ++i) {
    const MachineRow& row = all.rows[i];
    INFO(row.hw, " ", row.gpus);
    REQUIRE(row.choice);
    const double rate = SinglePlan(request, row.hw, row.gpus);
    CHECK(*row.choice->time.tokens_per_second == rate);
    shown.push_back(row.run.seconds);
  }
  CHECK(std::is_sorted(shown.begin(), shown.end()));
  // Rows that were not searched to their end are no better than the last that is shown, however
  // good they are. Searches do not tell choices apart within kTieMargin.
  for (size_t i = kShownOfAny; i < all.rows.size(); ++i) {
    const MachineRow& row = all.rows[i];
    INFO(row.hw, " ", row.gpus);
    if (row.choice) CHECK(row.run.seconds / (1 + row.gap) >= TieFloor(shown.back()));
    CHECK_FALSE((row.front && row.gap > 0));
  }
}

TEST_CASE("machines: cards whose kernels differ are searched by their own") {
  // Alike in what decides their programs, unlike in what kernels take.
  const PlanRequest request = Compared("gpt2", {"a40", "rtx5090", "l40s", "h200-141gb-sxm"}, {2});
  for (const MachineRow& row : ComparedNow(request).rows) {
    INFO(row.hw);
    REQUIRE(row.choice);
    CHECK(row.gap == 0);
    CHECK(*row.choice->time.tokens_per_second == SinglePlan(request, row.hw, row.gpus));
  }
}

TEST_CASE("machines: who names a card pays for cards, though a cloud rents such machines whole") {
  TempDir folder;
  MadeUpPrices prices{{{"g2-standard-96", 5}}, /*whole_node=*/true};
  prices.Write(folder.path("prices.json"));
  PlanRequest request = Compared("gpt2", {"l4", "g2-standard-96"}, {2});
  request.machines.prices = folder.path("prices.json");
  for (const MachineRow& row : ComparedNow(request).rows) {
    INFO(row.hw);
    CHECK(row.price.has_value() == (row.hw == "g2-standard-96"));
    CHECK(row.rented == (row.hw == "l4" ? 2 : 8));
  }
}

TEST_CASE("machines: what never ends is not within the limits") {
  PlanRequest request = Compared("gpt2", {"l40s", "l4"}, {1});
  request.common.goal.tokens.emplace(10'000'000'000);
  request.common.goal.interruptions.emplace(1);
  const MachineComparison all = ComparedNow(request);
  CHECK(all.best() == nullptr);
  for (const MachineRow& row : all.rows) {
    INFO(row.hw);
    CHECK_FALSE(row.open_ended.empty());
    CHECK_FALSE(row.front);
    CHECK(row.run.seconds < 1e9);
  }
  CHECK(Has(NothingWithin(all), "is not known"));
  CHECK(Has(MachinesText(all, 1000, false), wording::kOrTheRunMakesNo));
}

TEST_CASE(
    "machines: what a short run takes is no zero, and how batches are searched is said once") {
  PlanRequest request = Compared("gpt2", {"l40s", "l4"}, {1});
  request.common.goal.tokens.emplace(1'000'000);
  Assumptions assumptions;
  const MachineComparison all = CompareMachines(request, assumptions);
  const std::string text = MachinesText(all, 1000, false);
  CAPTURE(text);
  CHECK(Lacks(text, " 0.00 h"));
  CHECK(Lacks(text, " 0.00 USD"));
  const auto of_batch = [](const std::string& note) { return note.starts_with("Batch:"); };
  CHECK(std::count_if(assumptions.notes.begin(), assumptions.notes.end(), of_batch) == 1);
}

TEST_CASE("machines: a deadline and a budget leave out what is beyond them, and say what is not") {
  TempDir folder;
  MadeUpPrices prices{{{"l40s", 1}, {"h100-80gb-sxm", 4}}};
  prices.Write(folder.path("prices.json"));
  PlanRequest request = Compared("gpt2-xl", {"l40s", "h100-80gb-sxm"}, {1, 8});
  request.common.goal.tokens.emplace(1'000'000'000);
  request.machines.prices = folder.path("prices.json");
  const MachineComparison all = ComparedNow(request);
  REQUIRE(all.rows.size() == 4);
  REQUIRE(all.best() != nullptr);
  CHECK(all.best()->hw == "h100-80gb-sxm");
  CHECK(all.best()->gpus == 8);
  CHECK(all.currency == "EUR");
  const MachineRow slowest = all.rows.back();

  request.machines.budget.emplace(*all.best()->price * 0.99);
  const MachineComparison cheaper = ComparedNow(request);
  REQUIRE(cheaper.best() != nullptr);
  CHECK(cheaper.best()->hw == "l40s");
  CHECK(*cheaper.best()->price <= *request.machines.budget);

  request.machines.budget.reset();
  request.machines.deadline.emplace(slowest.run.seconds * 0.99);
  request.machines.objective.emplace(MachineObjective::kCost);
  const MachineComparison in_time = ComparedNow(request);
  CHECK(in_time.rows.back().hw == slowest.hw);
  CHECK_FALSE(in_time.rows.back().in_time);
  CHECK(in_time.best()->run.seconds <= *request.machines.deadline);
  CHECK(NothingWithin(in_time) == "");

  request.machines.deadline.emplace(1);
  const std::string nothing = NothingWithin(ComparedNow(request));
  CHECK(Has(nothing, wording::kTheFastestGbSxmWith));
}

TEST_CASE("machines: what is rented by the node is paid for as a whole") {
  TempDir folder;
  MadeUpPrices prices{{{"p4d-24xlarge", 2}}, /*whole_node=*/true};
  prices.Write(folder.path("prices.json"));
  PlanRequest request = Compared("gpt2", {"p4d-24xlarge", "t4"}, {1, 4, 16});
  request.machines.prices = folder.path("prices.json");
  for (const MachineRow& row : ComparedNow(request).rows) {
    if (row.hw != "p4d-24xlarge" || !row.choice) continue;
    CAPTURE(row.gpus);
    const int paid = row.gpus == 16 ? 16 : 8;
    CHECK(row.rented == paid);
    CHECK(*row.price == doctest::Approx(2 * row.run.seconds / 3600 * paid));
  }
}

TEST_CASE("machines: what cannot be compared is refused before anything is searched") {
  const auto with = [](auto change) {
    PlanRequest request = Compared("gpt2", {"t4", "l4"}, {});
    change(request);
    return RefusalOf(request);
  };
  CHECK(Has(with([](PlanRequest& r) { r.machines.hw = {"t4", "rtx9999"}; }), "rtx9999"));
  CHECK(Has(with([](PlanRequest& r) { r.machines.hw = {"rtx4090", "RTX 4090"}; }),
            "are the same machine"));
  CHECK(Has(with([](PlanRequest& r) {
              r.machines.any = true;
              r.machines.gpus = {9};
            }),
            wording::kNoBuiltInMachineHas));
  CHECK(Has(with([](PlanRequest& r) { r.machines.deadline.emplace(60); }),
            wording::kHasNoEffectWithout2));
  CHECK(Has(with([](PlanRequest& r) { r.machines.budget.emplace(60); }),
            wording::kHasNoEffectWithout3));
  CHECK(Has(with([](PlanRequest& r) { r.largest.emplace(Largest::kModel); }), "⟦largest⟧"));
  CHECK(
      Has(with([](PlanRequest& r) { r.objective.emplace(Objective::kHeadroom); }), "⟦objective⟧"));
  CHECK(Has(with([](PlanRequest& r) {
              r.common.goal.gpu_hour_price.emplace(2);
              r.common.goal.gpu_hour_price.text = "2";
            }),
            "⟦prices⟧ FILE"));
  CHECK(Has(with([](PlanRequest& r) { r.machines.prices = "/no/such/prices.json"; }),
            "/no/such/prices.json"));
  // What is wrong with every machine is wrong with the question; with one, it is that row's.
  CHECK(Has(with([](PlanRequest& r) { r.common.settings.seq_len.emplace(100'000); }), "seq_len"));
  PlanRequest odd = Compared("gpt2", {"t4", "l4"}, {1, 8});
  odd.common.settings.global_batch.emplace(4);
  odd.common.settings.sequence_ranks.emplace(std::vector{1});
  const MachineComparison all = ComparedNow(odd);
  CHECK(all.rows.front().gpus == 1);
  CHECK_FALSE(all.rows.back().choice);
  CHECK(Has(all.rows.back().why_not, "⟦global_batch⟧"));
}

}  // namespace
}  // namespace zeroplan
