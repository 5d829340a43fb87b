#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "core/base/units.h"
#include "planner/estimate/choices.h"
#include "planner/machines/machines.h"
#include "planner/page/charts.h"
#include "planner/page/svg.h"
#include "planner/report/report_text.h"

namespace zeroplan {
namespace {

// A value by which rows are drawn, and what limits it.
struct Measure {
  std::optional<double> (*of)(const MachineRow& row);
  std::optional<double> limit;
};

std::optional<double> SecondsOf(const MachineRow& row) { return row.run.seconds; }
std::optional<double> PriceOf(const MachineRow& row) { return row.price; }
std::optional<double> KwhOf(const MachineRow& row) { return row.run.gpu_kwh; }
std::optional<double> RateOfRow(const MachineRow& row) {
  return row.choice->time.tokens_per_second;
}

// The largest value that a picture shows. It holds all rows within the limits, but not those that
// make them a strip: of a value without a limit, at most three times what no other row beats. If
// no row is within the limits, it holds the one that is closest to each.
double MostShown(const MachineComparison& all, const Measure& measure) {
  constexpr double kFar = 3, kRoom = 1.15, kAround = 1.5;
  double within = 0, front = 0;
  const MachineRow *fastest = nullptr, *cheapest = nullptr;
  for (const MachineRow& row : all.rows) {
    if (!row.choice) continue;
    if (fastest == nullptr || row.run.seconds < fastest->run.seconds) fastest = &row;
    if (row.price && (cheapest == nullptr || *row.price < *cheapest->price)) cheapest = &row;
    const std::optional<double> value = measure.of(row);
    if (!value || !row.within()) continue;
    within = std::max(within, *value);
    if (row.front || &row == all.best()) front = std::max(front, *value);
  }
  double most = front > 0 && !measure.limit ? std::min(within, kFar * front) : within;
  if (within == 0) {
    if (!all.deadline) fastest = nullptr;
    if (!all.budget) cheapest = nullptr;
    for (const MachineRow* row : {fastest, cheapest}) {
      if (row != nullptr) most = std::max(most, kAround * measure.of(*row).value_or(0));
    }
  }
  if (!measure.limit || *measure.limit > kFar * most) return most;
  return kRoom * std::max(most, *measure.limit);
}

// The part of all rows that pictures show.
struct Frame {
  explicit Frame(const MachineComparison& all)
      : time{SecondsOf, all.deadline},
        price{PriceOf, all.budget},
        most_seconds(MostShown(all, time)),
        most_price(MostShown(all, price)) {}

  bool Holds(const MachineRow& row) const {
    return row.choice && row.run.seconds <= most_seconds &&
           (!row.price || *row.price <= most_price);
  }
  // The limit's line; none: the limit lies outside.
  static std::optional<Limit> LineOf(const Measure& measure, double most, std::string label) {
    if (!measure.limit || *measure.limit > most) return std::nullopt;
    return Limit{*measure.limit, std::move(label)};
  }

  Measure time, price;
  double most_seconds, most_price;
};

std::string BudgetText(const MachineComparison& all) {
  return fmt::format("budget {}{}", MoneyText(*all.budget),
                     all.currency.empty() ? "" : " " + all.currency);
}

std::optional<Limit> DeadlineLine(const MachineComparison& all, const Frame& frame) {
  if (!all.deadline) return std::nullopt;
  return Frame::LineOf(frame.time, frame.most_seconds, "deadline " + LimitText(*all.deadline));
}

std::optional<Limit> BudgetLine(const MachineComparison& all, const Frame& frame) {
  if (!all.budget) return std::nullopt;
  return Frame::LineOf(frame.price, frame.most_price, BudgetText(all));
}

// " 12 others lie outside the picture."; "": none does.
std::string OthersText(size_t count, const char* where) {
  if (count == 0) return "";
  return fmt::format(" {} {} {}.", count, count == 1 ? "other lies" : "others lie", where);
}

// "13 h late, 410 over": how far a row is from the limits; "": it is within them.
std::string LimitsCell(const MachineRow& row, const MachineComparison& all) {
  if (!row.open_ended.empty()) return row.open_ended;
  std::vector<std::string> texts;
  if (!row.in_time) texts.push_back(TimeText(row.run.seconds - *all.deadline) + " late");
  if (!row.in_budget) {
    texts.push_back(row.price ? MoneyText(*row.price - *all.budget) + " over" : "no price");
  }
  return texts.empty() ? "met" : fmt::format("{}", fmt::join(texts, ", "));
}

std::string MarginText(const MachineRow& row) {
  return row.margin > 0 ? fmt::format("{:.0f} %", 100 * row.margin) : "?";
}

// All rows that fit, the best first; if none is within the limits, first those that pictures show,
// as they are closest.
PageTable MachinesTable(const MachineComparison& all, const Frame& frame) {
  const bool limited = all.deadline || all.budget;
  const bool energy = std::any_of(all.rows.begin(), all.rows.end(), [](const MachineRow& row) {
    return row.choice && row.run.gpu_kwh;
  });
  PageTable table;
  table.heads = {"machine", "time"};
  table.heads.push_back(all.currency.empty() ? "price" : all.currency);
  if (limited) table.heads.emplace_back("limits");
  table.heads.insert(table.heads.end(), {"tokens/s", "margin", "GB a GPU", "host GB a node"});
  if (energy) table.heads.emplace_back("kWh");
  std::vector<const MachineRow*> rows;
  for (const MachineRow& row : all.rows) {
    if (row.choice) rows.push_back(&row);
  }
  if (all.best() == nullptr) {
    std::stable_partition(rows.begin(), rows.end(),
                          [&](const MachineRow* row) { return frame.Holds(*row); });
  }
  for (const MachineRow* shown : rows) {
    const MachineRow& row = *shown;
    const Footprint& footprint = row.choice->footprint;
    std::vector<std::string> cells = {row.title, TimeText(row.run.seconds),
                                      row.price ? MoneyText(*row.price) : "-"};
    if (limited) cells.push_back(LimitsCell(row, all));
    cells.push_back(FormatRate(*row.choice->time.tokens_per_second));
    cells.push_back(MarginText(row));
    cells.push_back(GigabyteCell(footprint.totals().gpu_bytes));
    cells.push_back(GigabyteCell(footprint.host.total()));
    if (energy) cells.push_back(row.run.gpu_kwh ? MoneyText(*row.run.gpu_kwh) : "-");
    if (row.front) table.marked.push_back(table.rows.size());
    table.rows.push_back(std::move(cells));
  }
  if (!table.marked.empty()) {
    table.note = "In bold: no other one is as fast and as cheap, and better in one of the two. ";
  }
  table.note +=
      "Margin: the largest error of a step's time beside measured runs, ? where none was compared.";
  return table;
}

// Price against time; nothing where fewer than two prices are known.
std::optional<Picture> PricePicture(const MachineComparison& all, const Frame& frame) {
  DotChart chart{.name = "Price of the run against its time",
                 .x_name = "time",
                 .y_name = all.currency.empty() ? "price" : all.currency,
                 .x = Quantity::kSeconds,
                 .y = Quantity::kMoney,
                 .limit = DeadlineLine(all, frame),
                 .limit_y = BudgetLine(all, frame),
                 .falls = true};
  size_t priced = 0, unpriced = 0;
  for (const MachineRow& row : all.rows) {
    if (!row.choice) continue;
    ++(row.price ? priced : unpriced);
    if (!row.price || !frame.Holds(row)) continue;
    const bool best = &row == all.best();
    chart.dots.push_back(
        {row.run.seconds, *row.price,
         fmt::format("{}: {}, {}", row.title, TimeText(row.run.seconds), MoneyText(*row.price)),
         best           ? Dot::Kind::kChosen
         : row.front    ? Dot::Kind::kFront
         : row.within() ? Dot::Kind::kOther
                        : Dot::Kind::kNoFit,
         row.title});
  }
  if (priced < 2 || chart.dots.empty()) return std::nullopt;
  Picture picture{.id = "prices", .title = "Price against time"};
  const bool answered = all.best() != nullptr, limited = all.deadline || all.budget;
  picture.about = fmt::format(
      "{}{}{}{}",
      answered ? "None is both faster and cheaper than one on the line; the ring is the answer."
               : "",
      limited ? " Hollow dots are beyond the limits." : "",
      OthersText(priced - chart.dots.size(), "outside the picture"),
      unpriced == 0 ? "" : fmt::format(" {} without a price.", unpriced));
  picture.Draw(DrawDots, chart);
  return picture;
}

// The rows as bars of their price, energy or time, as the objective is, or of their speed if no run
// is given.
Picture BarsPicture(const MachineComparison& all, const Frame& frame) {
  constexpr size_t kMostBars = 20;
  const auto known = [&](std::optional<double> (*of)(const MachineRow& row)) {
    return std::any_of(all.rows.begin(), all.rows.end(),
                       [&](const MachineRow& row) { return row.choice && of(row); });
  };
  BarChart chart{.name = "Time of the run on each machine",
                 .quantity = Quantity::kSeconds,
                 .parts = {"time"},
                 .limit = DeadlineLine(all, frame)};
  std::optional<double> (*of)(const MachineRow& row) = SecondsOf;
  if (all.objective == MachineObjective::kCost && known(PriceOf)) {
    of = PriceOf;
    chart.name = "Price of the run on each machine";
    chart.quantity = Quantity::kMoney;
    chart.parts = {all.currency.empty() ? "price" : all.currency};
    chart.limit = BudgetLine(all, frame);
  } else if (all.objective == MachineObjective::kEnergy && known(KwhOf)) {
    of = KwhOf;
    chart.name = "Energy of the run on each machine";
    chart.quantity = Quantity::kEnergy;
    chart.parts = {"kWh at most, of the GPUs"};
    chart.limit.reset();
  } else if (!all.run_given) {
    of = RateOfRow;
    chart.name = "Tokens a second on each machine";
    chart.quantity = Quantity::kTokenRate;
    chart.parts = {"tokens a second"};
    chart.limit.reset();
  }
  size_t fitting = 0;
  for (const MachineRow& row : all.rows) {
    if (!row.choice) continue;
    ++fitting;
    const std::optional<double> value = of(row);
    if (!value || !frame.Holds(row) || chart.bars.size() == kMostBars) continue;
    const std::string text = chart.quantity == Quantity::kSeconds ? TimeText(*value)
                             : chart.quantity == Quantity::kTokenRate
                                 ? FormatRate(*value)
                                 : FormatQuantity(*value, chart.quantity);
    chart.bars.push_back({row.title, {*value}, !row.within(), text});
  }
  Picture picture{.id = "machines", .title = "The run on each machine"};
  picture.about = fmt::format("{} by the best plan of each machine, the best first.", all.run);
  if (all.deadline || all.budget) picture.about += " Pale bars are not within the limits.";
  picture.about += OthersText(fitting - chart.bars.size(), "beyond, in the table");
  picture.legend = LegendOf(chart.parts);
  if (!chart.bars.empty()) picture.Draw(DrawBars, chart);
  return picture;
}

// Each machine as it is typed, and where its price stands.
std::optional<Picture> SourcesTable(const MachineComparison& all) {
  Picture picture{.id = "sources", .title = "Prices and names"};
  picture.about = "How each machine is typed, and the price of a GPU for an hour.";
  PageTable& table = picture.table;
  table.folded = table.last_is_text = true;
  table.text_columns = 2;
  table.heads = {"machine", "typed", "a GPU-hour", "by"};
  for (const MachineRow& row : all.rows) {
    if (!row.choice) continue;
    const std::string by = !row.gpu_hour                  ? "no price is known"
                           : row.gpu_hour->source.empty() ? "as it was said"
                                                          : SellerText(*row.gpu_hour);
    table.rows.push_back(
        {row.title, TypedText(row), row.gpu_hour ? NumberCell(row.gpu_hour->amount) : "-", by});
  }
  if (table.rows.empty()) return std::nullopt;
  return picture;
}

std::optional<Picture> PlansTable(const MachineComparison& all) {
  Picture picture{.id = "plans", .title = "The plan of each machine"};
  PageTable& table = picture.table;
  table.folded = table.last_is_text = true;
  table.heads = {"machine", "plan"};
  for (const MachineRow& row : all.rows) {
    if (row.choice) table.rows.push_back({row.title, all.runtime->ChoiceText(row.choice->setup)});
  }
  if (table.rows.empty()) return std::nullopt;
  return picture;
}

// The publisher of the answer's price, and the uncertainty of its time.
std::vector<std::string> Details(const MachineComparison& all) {
  std::vector<std::string> texts;
  if (std::string price = BestPriceText(all); !price.empty()) texts.push_back(std::move(price));
  if (const MachineRow* best = all.best()) {
    std::string doubt = fmt::format("Doubt: {}", TimeDoubt(best->margin));
    if (best->guessed) doubt += "; rates of its host or links are guessed";
    if (!all.interrupted) doubt += "; hours are steps alone";
    texts.push_back(doubt + '.');
    texts.push_back(fmt::format("{} plans it.", TypedText(*best)));
  }
  texts.insert(texts.end(), all.data.begin(), all.data.end());
  return texts;
}

}  // namespace

Page MachinesPage(const MachineComparison& all, const PageOrigin& origin) {
  Page page{.origin = origin};
  const size_t rows = all.rows.size();
  page.title = fmt::format("{} on {} machine{}", all.model.name, rows, rows == 1 ? "" : "s");
  page.answer = MachinesAnswer(all);
  page.facts = {ModelLine(all.model, all.seq_len),
                fmt::format("{} on each, the best plan of each, by {}.", all.run,
                            MachineObjectiveName(all.objective))};
  if (const MachineRow* best = all.best()) {
    const std::optional<uint64_t>& host = best->cluster.host_capacity_bytes;
    page.figures = {
        {"plan", all.runtime->ChoiceText(best->choice->setup)},
        {"tokens a second", FormatRate(*best->choice->time.tokens_per_second)},
        {"margin of error", best->margin > 0 ? MarginText(*best) : "not measured"},
        {"memory of one GPU",
         fmt::format("{} of {}", FormatBytes(best->choice->footprint.gpu_total()),
                     FormatBytes(best->cluster.gpu_capacity_bytes))},
        {"host memory of a node", FormatBytes(best->choice->footprint.host.total()) +
                                      (host ? fmt::format(" of {}", FormatBytes(*host)) : "")}};
  }
  page.details_title = "Whose price this is, and how sure it is";
  page.details = Details(all);
  const Frame frame(all);
  page.Add(PricePicture(all, frame));
  page.Add(BarsPicture(all, frame));
  page.pictures.front().table = MachinesTable(all, frame);
  page.Add(PlansTable(all));
  page.Add(SourcesTable(all));
  return page;
}

}  // namespace zeroplan
