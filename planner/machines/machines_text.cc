#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/units.h"
#include "hwprofiles/loader.h"
#include "planner/estimate/choices.h"
#include "planner/machines/machines.h"
#include "planner/report/choice_columns.h"
#include "planner/report/choice_json.h"
#include "planner/report/report_columns.h"
#include "planner/report/report_text.h"

namespace zeroplan {
namespace {

// "6.28"; "6.28+" of an interrupted run whose saves are not known.
std::string Hours(const MachineRow& row) {
  return FineCell(row.run.seconds / 3600) + (row.open_ended.empty() ? "" : "+");
}

std::string KnownCell(const std::optional<double>& value, const MachineRow& row) {
  return value ? FineCell(*value) + (row.open_ended.empty() ? "" : "+") : "?";
}

// "l40s with 8 GPUs".
std::string Machine(const MachineRow& row) {
  return fmt::format("{} with {} GPU{}", row.name(), row.gpus, row.gpus == 1 ? "" : "s");
}

std::string Money(double amount, const std::string& currency) {
  return currency.empty() ? FineCell(amount) : fmt::format("{} {}", FineCell(amount), currency);
}

// Why a row is not among those that count: "13 h late", "410 over budget".
std::string Beyond(const MachineRow& row, const MachineComparison& all) {
  if (!row.open_ended.empty()) return row.open_ended;
  if (!row.in_time) return FineCell((row.run.seconds - *all.deadline) / 3600) + " h late";
  if (row.in_budget) return "";
  return row.price ? Money(*row.price - *all.budget, all.currency) + " over" : "no price";
}

std::string Table(const MachineComparison& all, const std::vector<const MachineRow*>& rows,
                  size_t width, const Paints& paints, bool few = false) {
  ChoiceWidths widths;
  size_t name = 7;
  bool priced = false, energy = false, beyond = false;
  for (const MachineRow* row : rows) {
    name = std::max(name, row->hw.size());
    if (!row->choice) continue;
    widths.Fit(row->choice->setup);
    priced |= row->price.has_value();
    energy |= row->run.gpu_kwh.has_value();
    beyond |= !row->within();
  }
  ReportColumns columns;
  columns.BeginGroup("");
  columns.Add("", 1, true);
  columns.Add("machine", name, true);
  columns.Add("GPUs", 4);
  AddChoiceColumns(columns, widths);
  columns.BeginGroup("");
  const size_t batch = columns.Add("batch", 6);
  columns.Add("tok/s", 6);
  columns.BeginGroup("margin");
  const size_t margin = columns.Add("%", 6);
  columns.BeginGroup("");
  columns.Add("hours", 6);
  size_t kwh = 0;
  if (priced) columns.Add(all.currency.empty() ? "price" : all.currency, 6);
  if (energy) kwh = columns.Add("kWh", 6);
  columns.BeginGroup("GPU GB");
  const size_t gpu = columns.Add("used", 6);
  columns.BeginGroup("host GB");
  const size_t host = columns.Add("used", 7);
  columns.BeginGroup("");
  if (beyond) columns.Add("not within", 11, true);
  std::vector<size_t> order;
  if (!few) order.push_back(host);
  if (energy && all.objective != MachineObjective::kEnergy) order.push_back(kwh);
  order.insert(order.end(), {gpu, margin, batch});
  const std::string left_out = columns.LeaveOut(order, width);
  std::string text = columns.Header(paints);
  for (const MachineRow* row : rows) {
    const bool best = row == all.best();
    std::vector<std::string> cells = {best         ? ">"
                                      : row->front ? "*"
                                                   : "",
                                      row->name(), std::to_string(row->gpus)};
    for (std::string& cell : ChoiceCells(row->choice->setup, widths)) {
      cells.push_back(std::move(cell));
    }
    const ChoiceEstimate& choice = *row->choice;
    const BatchSpec& at = choice.setup.batch;
    cells.push_back(fmt::format("{}x{}", at.micro_batch, at.grad_accum));
    cells.push_back((row->gap > 0 ? "~" : "") + FormatRate(*choice.time.tokens_per_second));
    cells.push_back(row->margin > 0 ? fmt::format("{:.0f}", 100 * row->margin) : "?");
    cells.push_back(Hours(*row));
    if (priced) cells.push_back(KnownCell(row->price, *row));
    if (energy) cells.push_back(KnownCell(row->run.gpu_kwh, *row));
    cells.push_back(GigabyteCell(choice.footprint.totals().gpu_bytes));
    cells.push_back(GigabyteCell(choice.footprint.host.total()));
    if (beyond) cells.push_back(Beyond(*row, all));
    std::string line = columns.Row(cells);
    line.erase(line.find_last_not_of(' ') + 1);
    const std::string_view paint = best ? paints.green : row->within() ? "" : paints.dim;
    text += fmt::format("{}{}{}\n", paint, line, paint.empty() ? "" : paints.reset);
  }
  return few ? text : text + LeftOutText(left_out, "a wider terminal and ⟦format⟧ json", width);
}

std::string Amount(const MachineRow& row, const MachineComparison& all) {
  std::string text = fmt::format("{} h", Hours(row));
  if (row.price) text += ", " + Money(*row.price, all.currency);
  if (all.objective == MachineObjective::kEnergy && row.run.gpu_kwh) {
    text += fmt::format(", {} kWh at most", FineCell(*row.run.gpu_kwh));
  }
  return text;
}

std::string PriceText(const GpuHourPrice& price) {
  std::string text = fmt::format("{} a GPU-hour", Money(price.amount, price.currency));
  if (!price.source.empty()) text += fmt::format(" ({})", SellerText(price));
  return text;
}

// What is best, how it is planned, what it costs by whom.
std::string BestText(const MachineComparison& all) {
  const MachineRow* best = all.best();
  if (best == nullptr) return "";
  constexpr const char* kWords[] = {"Fastest", "Cheapest", "Least energy"};
  const bool limited = all.deadline || all.budget;
  const bool unknown = std::isinf(MeritOf(*best, all.objective));
  std::string text = fmt::format(
      "{}{}: {}, {}; {} plans it.",
      unknown ? fmt::format("Fastest, as no {} is known", MachineObjectiveName(all.objective))
              : kWords[static_cast<size_t>(all.objective)],
      limited ? " within the limits" : "", Machine(*best), Amount(*best, all), TypedText(*best));
  const std::string price = BestPriceText(all);
  return price.empty() ? text : text + ' ' + price;
}

// The rows that could be faster than what stands in the table.
std::string OpenText(const std::vector<const MachineRow*>& rows) {
  double most = 0;
  for (const MachineRow* row : rows) most = std::max(most, row->gap);
  if (most == 0) return "";
  return fmt::format(
      "~ not proven: a search ended with its budget, and a choice up to {} % better is possible; "
      "⟦effort⟧ 4 looks longer.",
      FormatPercent(most));
}

std::string FrontText(const MachineComparison& all) {
  size_t front = 0;
  bool priced = false;
  for (const MachineRow& row : all.rows) {
    front += row.front ? 1 : 0;
    priced |= row.within() && row.price.has_value();
  }
  if (front < 2 && all.best() != nullptr && all.best()->front) return "";
  if (front == 0) return "";
  return fmt::format("* no other machine here is faster for {}, or {} in as little time.",
                     priced ? "as little money" : "as few GPUs", priced ? "cheaper" : "smaller");
}

// Rows without a choice, those of one reason together.
std::string NotFitting(const MachineComparison& all) {
  std::vector<std::pair<std::string, std::vector<std::string>>> reasons;
  for (const MachineRow& row : all.rows) {
    if (row.choice) continue;
    const std::string why = row.gave_up ? "nothing was found that fits" : row.why_not;
    const auto known = std::find_if(reasons.begin(), reasons.end(),
                                    [&](const auto& reason) { return reason.first == why; });
    std::string name = row.gpus > 0 ? Machine(row) : row.hw;
    if (known != reasons.end()) {
      known->second.push_back(std::move(name));
    } else {
      reasons.push_back({why, {std::move(name)}});
    }
  }
  if (all.any) {  // so many that the answer would be out of sight
    std::vector<std::string> names;
    for (const auto& reason : reasons) {
      names.insert(names.end(), reason.second.begin(), reason.second.end());
    }
    return names.empty()
               ? ""
               : fmt::format("Not here: {}; ⟦format⟧ json says why.", fmt::join(names, ", "));
  }
  std::vector<std::string> texts;
  texts.reserve(reasons.size());
  for (const auto& [why, names] : reasons) {
    texts.push_back(fmt::format("{}: {}", fmt::join(names, ", "), why));
  }
  return texts.empty() ? "" : fmt::format("Not here: {}.", fmt::join(texts, "; "));
}

std::string GuessedText(const std::vector<const MachineRow*>& rows) {
  std::vector<std::string> names;
  for (const MachineRow* row : rows) {
    if (!row->guessed) continue;
    std::string name = row->name();
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names.empty() ? ""
                       : fmt::format(
                             "Times rest on guessed figures of the host or its links for {}; "
                             "'plan' of one of them names which.",
                             fmt::join(names, ", "));
}

// Who says the prices.
std::string SourcesText(const std::vector<const MachineRow*>& rows, bool interrupted) {
  std::map<std::string, std::vector<std::string>> of;
  std::set<std::string> whole;
  size_t unpriced = 0;
  for (const MachineRow* row : rows) {
    if (row->rented > row->gpus) whole.insert(row->name());
    if (!row->gpu_hour) {
      ++unpriced;
    } else if (!row->gpu_hour->source.empty()) {
      std::vector<std::string>& names = of[SellerText(*row->gpu_hour)];
      if (std::find(names.begin(), names.end(), row->name()) == names.end()) {
        names.push_back(row->name());
      }
    }
  }
  std::vector<std::string> texts;
  texts.reserve(of.size());
  for (const auto& [source, names] : of) {
    texts.push_back(fmt::format("{} ({})", source, fmt::join(names, ", ")));
  }
  std::string text;
  if (!texts.empty()) {
    text = fmt::format(
        "Prices {}, storage and traffic apart: {}; ⟦format⟧ json has where they stand.",
        interrupted ? "on spot machines where they are known, else on demand" : "on demand",
        fmt::join(texts, "; "));
  }
  if (!whole.empty()) {
    text += fmt::format("{}Rented by the node, all its GPUs are paid for: {}.",
                        text.empty() ? "" : " ", fmt::join(whole, ", "));
  }
  if (unpriced > 0) {
    text += fmt::format("{}{} row{} without a price; ⟦prices⟧ FILE gives one.",
                        text.empty() ? "" : " ", unpriced, unpriced == 1 ? " is" : "s are");
  }
  return text;
}

}  // namespace

std::string TypedText(const MachineRow& row) {
  return row.hw.empty() ? fmt::format("⟦gpus⟧ {}", row.gpus)
                        : fmt::format("⟦hw⟧ {} ⟦gpus⟧ {}", ShellWord(row.hw), row.gpus);
}

std::string SellerText(const GpuHourPrice& price) {
  // Without the address, which JSON has.
  return fmt::format("{}, {}", price.source.substr(0, price.source.find(" (")), price.date);
}

std::string BestPriceText(const MachineComparison& all) {
  const MachineRow* best = all.best();
  if (best == nullptr) return "";
  std::string text;
  if (best->gpu_hour) {
    const bool spot = all.interrupted && best->spot_gpu_hour;
    text += fmt::format("At {}{}.", PriceText(*best->gpu_hour), spot ? " on spot machines" : "");
    if (best->rented > best->gpus) {
      text += fmt::format(" It is rented by the node: {} GPUs are paid for.", best->rented);
    }
  }
  if (!all.interrupted && best->spot_gpu_hour && best->spot_price) {
    text += fmt::format("{}Spot: {} at {}, interruptions apart.", text.empty() ? "" : " ",
                        Money(*best->spot_price, all.currency), PriceText(*best->spot_gpu_hour));
  }
  return text;
}

std::string NothingWithin(const MachineComparison& comparison) {
  if (comparison.best() != nullptr) return "";
  const MachineRow *fastest = nullptr, *cheapest = nullptr;
  bool gave_up = false;
  for (const MachineRow& row : comparison.rows) {
    gave_up |= row.gave_up;
    if (!row.choice) continue;
    if (fastest == nullptr || row.run.seconds < fastest->run.seconds) fastest = &row;
    if (row.price && (cheapest == nullptr || *row.price < *cheapest->price)) cheapest = &row;
  }
  if (fastest == nullptr) {
    return fmt::format(
        "nothing {} any of these machines; {}", gave_up ? "was found that fits" : "fits",
        comparison.any ? "⟦format⟧ json says what is short" : "above stands what is short");
  }
  std::string text = "nothing is within the limits: ";
  if (!comparison.deadline && !comparison.budget) {
    return text +
           "what interruptions make of the run is not known for any, or it makes no progress";
  }
  if (comparison.deadline) {
    text += fmt::format("the fastest, {}, takes {} h", Machine(*fastest), Hours(*fastest));
  }
  if (comparison.budget) {
    text += comparison.deadline ? "; " : "";
    text += cheapest == nullptr ? "no price is known, ⟦prices⟧ FILE gives one"
                                : fmt::format("the cheapest, {}, costs {}", Machine(*cheapest),
                                              Money(*cheapest->price, comparison.currency));
  }
  return text;
}

namespace {

std::string Heading(const MachineComparison& all, size_t columns) {
  std::string of = ModelLine(all.model, all.seq_len);
  if (all.runtime->facts().has_recipe) {
    of = fmt::format("{} under {}, {}; {}", all.model.name, all.runtime->version(),
                     RecipeText(all.recipe), of);
  }
  return Wrap(of, 2, columns) +
         Wrap(fmt::format("{} on {} machine{}, the best plan of each, by {}.{}", all.run,
                          all.rows.size(), all.rows.size() == 1 ? "" : "s",
                          MachineObjectiveName(all.objective),
                          all.run.starts_with("Compared") ? " ⟦tokens⟧ sets it." : ""),
              2, columns);
}

}  // namespace

std::string MachinesScreen(const MachineComparison& all, const std::string& next, size_t columns,
                           bool colour) {
  constexpr size_t kMostRows = 10;
  const Paints paints(colour);
  std::vector<const MachineRow*> shown;
  size_t fitting = 0;
  for (const MachineRow& row : all.rows) {
    if (!row.choice) continue;
    ++fitting;
    const bool wanted = all.any ? row.front || &row == all.best() : true;
    if (wanted && shown.size() < kMostRows) shown.push_back(&row);
  }
  std::string text = Heading(all, columns);
  if (!shown.empty()) text += Table(all, shown, columns, paints, /*few=*/true);
  const auto add = [&](const std::string& paragraph) {
    if (!paragraph.empty()) text += Wrap(paragraph, 2, columns);
  };
  if (fitting > shown.size() || all.rows.size() > fitting) {
    const auto left_out = static_cast<size_t>(std::count_if(
        all.rows.begin(), all.rows.end(), [](const MachineRow& row) { return row.left_out; }));
    const size_t others = fitting - shown.size(), without = all.rows.size() - fitting - left_out;
    std::string counted =
        fmt::format("{} other{} fit{}", others, others == 1 ? "" : "s", others == 1 ? "s" : "");
    if (left_out > 0) {
      counted +=
          fmt::format("; {} would be beaten at the full rate of their GPUs, and {} not planned",
                      left_out, left_out == 1 ? "was" : "were");
    }
    if (without > 0) counted += fmt::format("; on {} nothing was found that fits", without);
    add(counted + ".");
  }
  add(BestText(all));
  if (!all.any) add(NotFitting(all));
  const MachineRow* best = all.best();
  ScreenNotes notes{{}, {}, next};
  std::vector<std::string>& doubts = notes.doubts;
  if (best != nullptr) {
    doubts.push_back(TimeDoubt(best->margin));
    if (best->guessed) doubts.emplace_back("rates of its host or links are guessed");
  }
  double gap = 0;
  for (const MachineRow* row : shown) gap = std::max(gap, row->gap);
  if (gap > 0) {
    doubts.push_back(fmt::format("rows with ~ may be up to {} % better", FormatPercent(gap)));
  }
  if (!all.interrupted) doubts.emplace_back("hours are steps alone");
  return text + ScreenEnd(notes, columns, colour);
}

std::string MachinesText(const MachineComparison& all, size_t columns, bool colour) {
  const Paints paints(colour);
  std::string text = Heading(all, columns);
  std::vector<const MachineRow*> shown;
  size_t more = 0;
  for (const MachineRow& row : all.rows) {
    if (!row.choice) continue;
    if (all.any && shown.size() >= kShownOfAny && !row.front) {
      ++more;
      continue;
    }
    shown.push_back(&row);
  }
  if (!shown.empty()) text += '\n' + Table(all, shown, columns, paints);
  const auto add = [&](const std::string& paragraph) {
    if (!paragraph.empty()) text += Wrap(paragraph, 2, columns);
  };
  if (more > 0) add(fmt::format("{} more fit; ⟦format⟧ json has all.", more));
  text += '\n';
  add(BestText(all));
  add(FrontText(all));
  add(OpenText(shown));
  add(NotFitting(all));
  add(SourcesText(shown, all.interrupted));
  add(GuessedText(shown));
  for (const std::string& paragraph : all.data) add(paragraph);
  add(std::string(
          all.interrupted
              ? "Hours are those expected with saves, restarts and steps that are made "
                "again; + marks steps alone, where the profile has no rates of a disk or the run "
                "makes no progress"
              : "Hours are steps alone, without saving, validation and interruptions") +
      "; kWh are of the GPUs at their power limit, hosts and cooling apart. the margin is the "
      "largest "
      "error "
      "of a step's time beside measured runs.");
  return text;
}

namespace {

using MachineJson = nlohmann::ordered_json;

MachineJson PriceJson(const std::optional<GpuHourPrice>& price) {
  if (!price) return nullptr;
  return {{"amount", price->amount},
          {"currency", TextOrNull(price->currency)},
          {"date", TextOrNull(price->date)},
          {"source", TextOrNull(price->source)},
          {"rented_by", price->whole_node ? "node" : "gpu"}};
}

MachineJson RowJson(const MachineRow& row, const TorchRecipe* recipe) {
  MachineJson json = {{"hw", row.name()},
                      {"gpus", row.gpus},
                      {"gpus_per_node", nullptr},
                      {"gpu", nullptr},
                      {"fits", row.choice.has_value()},
                      {"why_not", row.choice ? MachineJson(nullptr) : MachineJson(row.why_not)},
                      {"gave_up", row.gave_up},
                      {"gap", row.gap},
                      {"margin", row.margin > 0 ? MachineJson(row.margin) : MachineJson(nullptr)},
                      {"guessed", row.guessed},
                      {"seconds", nullptr},
                      {"steps", nullptr},
                      {"steps_alone", row.steps_alone},
                      {"open_ended", TextOrNull(row.open_ended)},
                      {"notes", row.notes},
                      {"gpu_hours", nullptr},
                      {"price", Nullable(row.price)},
                      {"spot_price", Nullable(row.spot_price)},
                      {"gpu_kwh", nullptr},
                      {"gpu_hour_price", PriceJson(row.gpu_hour)},
                      {"spot_gpu_hour_price", PriceJson(row.spot_gpu_hour)},
                      {"rented_gpus", nullptr},
                      {"in_time", row.choice && row.in_time},
                      {"in_budget", row.choice && row.in_budget},
                      {"unbeaten", row.front},
                      {"choice", nullptr}};
  if (!row.cluster.gpu_name.empty()) {
    json["gpus_per_node"] = row.cluster.gpus_per_node;
    json["gpu"] = row.cluster.gpu_name;
  }
  if (!row.choice) return json;
  json["seconds"] = row.run.seconds;
  json["steps"] = row.run.steps;
  json["gpu_hours"] = row.run.gpu_hours;
  json["gpu_kwh"] = Nullable(row.run.gpu_kwh);
  json["rented_gpus"] = row.rented;
  json["choice"] = RuntimeChoiceJson(*row.choice, recipe);
  if (row.goal.data) json["data"] = DataJson(row.goal, row.choice->setup.batch);
  return json;
}

}  // namespace

std::string MachinesJson(const MachineComparison& all, const Assumptions& assumptions) {
  MachineJson rows = MachineJson::array();
  for (const MachineRow& row : all.rows) rows.push_back(RowJson(row, RecipeOf(all)));
  return MachineJson{{"schema", "zeroplan.machines/1"},
                     {"model",
                      {{"name", all.model.name},
                       {"params", all.model.ParamCount()},
                       {"seq_len", all.seq_len}}},
                     {"runtime", all.runtime->version()},
                     {"recipe", all.runtime->facts().has_recipe ? RecipeJson(all.recipe)
                                                                : MachineJson(nullptr)},
                     {"tokens", Nullable(all.tokens)},
                     {"objective", MachineObjectiveName(all.objective)},
                     {"deadline_seconds", Nullable(all.deadline)},
                     {"budget", Nullable(all.budget)},
                     {"currency", TextOrNull(all.currency)},
                     {"machines", std::move(rows)},
                     {"assumed", assumptions.assumed},
                     {"notes", assumptions.notes}}
             .dump(2) +
         "\n";
}

}  // namespace zeroplan
