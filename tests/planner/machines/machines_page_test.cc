// The page of compared machines: its sentence, what its pictures show, and what they leave out.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "planner/machines/machines.h"
#include "planner/runtime.h"
#include "tests/planner/page/page_reading.h"
#include "tests/planner/plan_fixture.h"

namespace zeroplan {
namespace {

struct MadeUpRow {
  std::string title;
  double hours = 0;
  std::optional<double> price;
};

// A comparison with such rows, in the order of `objective`.
MachineComparison MadeUp(const std::vector<MadeUpRow>& made_up,
                         std::optional<double> deadline_hours, std::optional<double> budget,
                         MachineObjective objective = MachineObjective::kTime) {
  static const Plan plan = SmallPlan();
  MachineComparison all;
  all.model = plan.model;
  all.seq_len = 32;
  all.runtime = plan.runtime;
  all.run = "A run of 300B tokens";
  all.run_given = true;
  all.tokens = 300'000'000'000;
  all.objective = objective;
  if (deadline_hours) all.deadline = *deadline_hours * 3600;
  all.budget = budget;
  all.currency = "USD";
  for (const MadeUpRow& of : made_up) {
    MachineRow row;
    row.hw = "typed-" + of.title;
    row.title = of.title;
    row.gpus = row.rented = 8;
    row.cluster = plan.cluster;
    row.choice = plan.choice;
    row.choice->time.tokens_per_second = 1e6 / of.hours;
    row.run.seconds = of.hours * 3600;
    row.price = of.price;
    row.in_time = !deadline_hours || of.hours <= *deadline_hours;
    row.in_budget = !budget || (of.price && *of.price <= *budget);
    all.rows.push_back(row);
  }
  for (MachineRow& row : all.rows) {
    row.front = row.within() && row.price &&
                std::none_of(all.rows.begin(), all.rows.end(), [&](const MachineRow& of) {
                  return of.within() && of.price && of.run.seconds <= row.run.seconds &&
                         *of.price <= *row.price && of.title != row.title;
                });
  }
  std::stable_sort(all.rows.begin(), all.rows.end(), [&](const MachineRow& a, const MachineRow& b) {
    if (a.within() != b.within()) return a.within();
    return MeritOf(a, objective) < MeritOf(b, objective);
  });
  return all;
}

const std::vector<MadeUpRow> kMachines = {
    {"8 x DGX B200 (64 GPUs)", 41, 17'900}, {"16 x DGX B200 (128 GPUs)", 24, 23'000},
    {"8 x DGX H100 (64 GPUs)", 75, 25'000}, {"1 x L40S 48 GB", 2993, 14'000},
    {"1 x T4 16 GB", 30'000, 60'000},       {"DGX B300 (8 GPUs)", 60, std::nullopt}};

std::smatch Parsed(const std::string& text, const char* pattern) {
  static std::string kept;
  kept = text;
  std::smatch match;
  CAPTURE(text);
  REQUIRE(std::regex_match(kept, match, std::regex(pattern)));
  return match;
}

double Amount(std::string text) {
  std::erase(text, ',');
  return std::stod(text);
}

const Picture* PictureOf(const Page& page, const std::string& id) {
  const auto found = std::find_if(page.pictures.begin(), page.pictures.end(),
                                  [&](const Picture& picture) { return picture.id == id; });
  return found == page.pictures.end() ? nullptr : &*found;
}

// Values in the column called `head`, down the table.
std::vector<std::string> Column(const PageTable& table, const std::string& head) {
  const auto at = std::find(table.heads.begin(), table.heads.end(), head);
  REQUIRE(at != table.heads.end());
  std::vector<std::string> cells;
  for (const auto& row : table.rows) {
    REQUIRE(row.size() == table.heads.size());
    cells.push_back(row[static_cast<size_t>(at - table.heads.begin())]);
  }
  return cells;
}

TEST_CASE("machines page: the sentence names the best, its figures and the limits that it meets") {
  using Objective = MachineObjective;
  const auto answer = [](std::optional<double> deadline, std::optional<double> budget) {
    return MachinesAnswer(MadeUp(kMachines, deadline, budget, Objective::kCost));
  };
  constexpr const char* kPattern = "small on 300B tokens: (.*), ([0-9.]+) h, ([0-9,]+) USD(.*)\\.";
  std::smatch parts = Parsed(answer(72, std::nullopt), kPattern);
  CHECK(parts[1] == "8 x DGX B200 (64 GPUs)");
  CHECK(Amount(parts[2]) == 41);
  CHECK(parts[3] == "17,900");
  CHECK(parts[4] == "; deadline met");
  parts = Parsed(answer(30, 24'000), kPattern);
  CHECK(parts[1] == "16 x DGX B200 (128 GPUs)");
  CHECK(parts[4] == "; deadline and budget met");
  parts = Parsed(answer(std::nullopt, 20'000), kPattern);
  CHECK(parts[1] == "1 x L40S 48 GB");
  CHECK(parts[4] == "; budget met");
  CHECK(Parsed(answer(std::nullopt, std::nullopt), kPattern)[4] == "");

  // A margin of error that reaches beyond the limit is named.
  MachineComparison close = MadeUp(kMachines, 42, std::nullopt, Objective::kCost);
  close.rows.front().margin = 0.02;
  CHECK(MachinesAnswer(close).ends_with("; deadline met."));
  close.rows.front().margin = 0.15;
  CHECK(MachinesAnswer(close).find("15 %") != std::string::npos);

  // Without a price or a run the sentence has none.
  MachineComparison none = MadeUp({{"DGX B300 (8 GPUs)", 60, std::nullopt}}, {}, {});
  none.run_given = false;
  CHECK(MachinesAnswer(none).find("USD") == std::string::npos);
  CHECK(MachinesAnswer(none).find("300B tokens, as no run is given:") != std::string::npos);
}

TEST_CASE("machines page: where nothing is within the limits the sentence says by how much") {
  const std::smatch late =
      Parsed(MachinesAnswer(MadeUp(kMachines, 20, std::nullopt)),
             "small on 300B tokens: no machine here meets a deadline of 20 h; the fastest, (.*), "
             "takes ([0-9.]+) h and costs ([0-9,]+) USD: ([0-9.]+) h too late\\.");
  CHECK(late[1] == "16 x DGX B200 (128 GPUs)");
  CHECK(Amount(late[2]) - 20 == doctest::Approx(Amount(late[4])));
  CHECK(Amount(late[3]) == 23'000);

  const std::smatch both = Parsed(
      MachinesAnswer(MadeUp(kMachines, 30, 15'000)),
      ".*meets a deadline of 30 h and a budget of 15,000 USD; the fastest, (.*), takes .*: "
      "([0-9,]+) USD over the budget; the cheapest, (.*), takes ([0-9]+) h and .*: ([0-9]+) h "
      "too late\\.");
  CHECK(both[1] == "16 x DGX B200 (128 GPUs)");
  CHECK(Amount(both[2]) == 23'000 - 15'000);
  CHECK(both[3] == "1 x L40S 48 GB");
  CHECK(Amount(both[4]) - Amount(both[5]) == doctest::Approx(30));

  MachineComparison nothing = MadeUp(kMachines, 20, std::nullopt);
  for (MachineRow& row : nothing.rows) row.choice.reset();
  CHECK(MachinesAnswer(nothing).find("no plan was found that fits") != std::string::npos);
  CHECK(RenderPage(MachinesPage(nothing, {})).find("no plan was found") != std::string::npos);
}

TEST_CASE("machines page: pictures show what meets the limits, their lines, and count the others") {
  const Page page =
      MachinesPage(MadeUp(kMachines, 72, 24'000, MachineObjective::kCost), {"command", {}, {}});
  const Picture* prices = PictureOf(page, "prices");
  REQUIRE(prices == &page.pictures.front());
  for (const std::string& svg : {prices->wide, prices->narrow}) {
    // Upright at the deadline, level at the budget.
    const auto x0 = Attributes(svg, "line class=\"limit\"", "x1"),
               x1 = Attributes(svg, "line class=\"limit\"", "x2"),
               y0 = Attributes(svg, "line class=\"limit\"", "y1"),
               y1 = Attributes(svg, "line class=\"limit\"", "y2");
    REQUIRE(x0.size() == 2);
    CHECK((x0[0] == x1[0] && y0[0] != y1[0]));
    CHECK((y0[1] == y1[1] && x0[1] != x1[1]));
    CHECK(svg.find("deadline 72 h") != std::string::npos);
    CHECK(svg.find("budget 24,000 USD") != std::string::npos);
    // Dots within the limits and just beyond them; not those that would make the others a strip.
    std::vector<double> hours;
    for (const std::string& x : Attributes(svg, "circle", "data-x")) {
      if (!x.empty()) hours.push_back(std::stod(x) / 3600);
    }
    std::sort(hours.begin(), hours.end());
    CHECK(hours == std::vector<double>{24, 41, 75});
  }
  CHECK(prices->about.find("2 others lie outside the picture.") != std::string::npos);
  CHECK(prices->about.find("1 without a price.") != std::string::npos);
  CHECK(prices->wide.find(">8 x DGX B200 (64 GPUs)</text>") != std::string::npos);
  // Keys are where they are typed alone.
  CHECK(prices->wide.find("typed-") == std::string::npos);
  CHECK(page.answer.find("typed-") == std::string::npos);
  CHECK(PictureOf(page, "sources")->table.rows.front()[1].find("⟦hw⟧") == 0);

  // If nothing is within them, the closest is shown.
  const Page late = MachinesPage(MadeUp(kMachines, 20, std::nullopt), {});
  const std::string& svg = PictureOf(late, "prices")->wide;
  CHECK(svg.find("deadline 20 h") != std::string::npos);
  CHECK(svg.find("16 x DGX B200 (128 GPUs)") != std::string::npos);
  CHECK(Column(PictureOf(late, "prices")->table, "machine").front() == "16 x DGX B200 (128 GPUs)");
  // A limit far beyond all of them is no line.
  const Page early = MachinesPage(MadeUp({kMachines[0], kMachines[1]}, 10'000, std::nullopt), {});
  CHECK(PictureOf(early, "prices")->wide.find("deadline") == std::string::npos);
}

TEST_CASE("machines page: bars are in what was asked for") {
  const auto first_bar = [](const MachineComparison& all) {
    const Page page = MachinesPage(all, {});
    return BarSums(PictureOf(page, "machines")->wide).at(0);
  };
  MachineComparison cost = MadeUp(kMachines, 72, std::nullopt, MachineObjective::kCost);
  CHECK(first_bar(cost) == 17'900);
  MachineComparison time = MadeUp(kMachines, 72, std::nullopt);
  CHECK(first_bar(time) == 24 * 3600);
  time.run_given = false;
  CHECK(first_bar(time) == doctest::Approx(1e6 / 24));
  MachineComparison energy = MadeUp(kMachines, {}, {}, MachineObjective::kEnergy);
  for (MachineRow& row : energy.rows) row.run.gpu_kwh = 3000;
  CHECK(first_bar(energy) == 3000);
}

TEST_CASE("machines page: each row has its margin, its host's memory and what it misses") {
  MachineComparison all = MadeUp(kMachines, 72, 24'000, MachineObjective::kCost);
  all.rows[0].margin = 0.07;
  all.rows[0].choice->footprint.host.pinned = 12'000'000'000;
  all.rows[0].choice->footprint.host.pageable = 3'000'000'000;
  const Page page = MachinesPage(all, {});
  const PageTable& table = page.pictures.front().table;
  CHECK(Column(table, "machine").size() == kMachines.size());
  CHECK(Column(table, "margin")[0] == "7 %");
  CHECK(Column(table, "margin")[1] == "?");
  CHECK(Column(table, "host GB a node")[0] == "15.0");
  CHECK(Column(table, "limits")[0] == "met");
  const auto machines = Column(table, "machine"), limits = Column(table, "limits");
  const auto at = std::find(machines.begin(), machines.end(), "8 x DGX H100 (64 GPUs)");
  REQUIRE(at != machines.end());
  CHECK(limits[static_cast<size_t>(at - machines.begin())] == "3.00 h late, 1,000 over");
  bool margin = false, host = false;
  for (const auto& [name, value] : page.figures) {
    margin |= name == "margin of error" && value == "7 %";
    host |= name.starts_with("host memory") && value.starts_with("15.0 GB of ");
  }
  CHECK(margin);
  CHECK(host);
}

}  // namespace
}  // namespace zeroplan
