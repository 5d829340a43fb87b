#include <fmt/format.h>

#include <algorithm>

#include "core/base/units.h"
#include "planner/estimate/choices.h"
#include "planner/machines/machines.h"
#include "planner/page/charts.h"
#include "planner/page/svg.h"
#include "planner/report/report_text.h"

namespace zeroplan {
namespace {

std::string NameOf(const MachineRow& row) { return fmt::format("{} x {}", row.gpus, row.name()); }

// Hours of the run on each machine.
Picture HoursPicture(const MachineComparison& all) {
  constexpr size_t kMostBars = 40;
  BarChart chart{.name = "Time of the run on each machine",
                 .quantity = Quantity::kSeconds,
                 .parts = {"run"},
                 .cut_long = true};
  if (all.deadline) chart.limit = Limit{*all.deadline, "deadline"};
  Picture picture{.id = "machines", .title = "The run on each machine"};
  picture.about = fmt::format(
      "{}: its time by the best plan of each machine, the best first. Pale bars are not within the "
      "limits that were asked for.",
      all.run);
  picture.table.heads = {"machine", "plan", "tokens/s", "time", "price", "kWh", "GB a GPU"};
  picture.table.text_columns = 2;
  for (const MachineRow& row : all.rows) {
    if (!row.choice) continue;
    const std::string time = TimeText(row.run.seconds);
    if (chart.bars.size() < kMostBars) {
      chart.bars.push_back({NameOf(row), {row.run.seconds}, !row.within(), time});
    }
    if (row.front) picture.table.marked.push_back(picture.table.rows.size());
    picture.table.rows.push_back({NameOf(row), all.runtime->ChoiceText(row.choice->setup),
                                  FormatRate(*row.choice->time.tokens_per_second), time,
                                  row.price ? FineCell(*row.price) : "-",
                                  row.run.gpu_kwh ? FineCell(*row.run.gpu_kwh) : "-",
                                  GigabyteCell(row.choice->footprint.totals().gpu_bytes)});
  }
  picture.table.note =
      "In bold: no other one is as fast and as cheap, and better in one of the two.";
  picture.legend = LegendOf(chart.parts);
  picture.Draw(DrawBars, chart);
  return picture;
}

// Price against time.
std::optional<Picture> PricePicture(const MachineComparison& all) {
  DotChart chart{.name = "Price of the run against its time",
                 .x_name = "time",
                 .y_name = all.currency.empty() ? "price" : all.currency,
                 .x = Quantity::kSeconds,
                 .y = Quantity::kNumber};
  if (all.deadline) chart.limit = Limit{*all.deadline, "deadline"};
  Picture picture{.id = "prices", .title = "Price against time"};
  picture.table.heads = {"machine", "time", "price", "a GPU-hour", "by"};
  picture.table.last_is_text = true;
  for (const MachineRow& row : all.rows) {
    if (!row.choice || !row.price) continue;
    const bool best = &row == all.best();
    chart.dots.push_back(
        {row.run.seconds, *row.price,
         fmt::format("{}: {}, {}", NameOf(row), TimeText(row.run.seconds), FineCell(*row.price)),
         best           ? Dot::Kind::kChosen
         : row.front    ? Dot::Kind::kFront
         : row.within() ? Dot::Kind::kOther
                        : Dot::Kind::kNoFit});
    if (row.front) picture.table.marked.push_back(picture.table.rows.size());
    picture.table.rows.push_back(
        {NameOf(row), TimeText(row.run.seconds), FineCell(*row.price),
         NumberCell(row.gpu_hour->amount),
         row.gpu_hour->source.empty()
             ? "as it was said"
             : fmt::format("{}, {}", row.gpu_hour->source, row.gpu_hour->date)});
  }
  if (chart.dots.size() < 2) return std::nullopt;
  picture.about =
      "What a run costs, beside how long it takes. Machines on the line are beaten by "
      "none: nothing is as fast and as cheap, and better in one of the two. The ring is the "
      "answer.";
  picture.Draw(DrawDots, chart);
  return picture;
}

}  // namespace

Page MachinesPage(const MachineComparison& all, const PageOrigin& origin) {
  Page page{.origin = origin};
  page.title = fmt::format("{} on {} machine{}", all.model.name, all.rows.size(),
                           all.rows.size() == 1 ? "" : "s");
  page.facts = {ModelLine(all.model, all.seq_len),
                fmt::format("{}, by {}", all.run, MachineObjectiveName(all.objective))};
  page.findings = all.data;
  if (const MachineRow* best = all.best()) {
    page.figures = {{"best", NameOf(*best)},
                    {"plan", all.runtime->ChoiceText(best->choice->setup)},
                    {"the run", TimeText(best->run.seconds)},
                    {"tokens a second", FormatRate(*best->choice->time.tokens_per_second)}};
    if (best->price) {
      page.figures.emplace_back(
          "price", FineCell(*best->price) + (all.currency.empty() ? "" : " " + all.currency));
    }
  }
  page.Add(HoursPicture(all));
  page.Add(PricePicture(all));
  return page;
}

}  // namespace zeroplan
