// The answer of a comparison as one sentence for somebody who rents a machine by it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/base/units.h"
#include "planner/machines/machines.h"
#include "planner/page/svg.h"
#include "planner/report/report_text.h"

namespace zeroplan {
namespace {

std::string MoneyIn(double amount, const std::string& currency) {
  return currency.empty() ? MoneyText(amount) : fmt::format("{} {}", MoneyText(amount), currency);
}

// "llama3.1-8b on 300B tokens".
std::string Subject(const MachineComparison& all) {
  std::string run = all.tokens ? FormatCount(static_cast<uint64_t>(*all.tokens)) + " tokens"
                               : all.run;  // "2 epochs of the data"
  if (!all.run_given) run += ", as no run is given";
  return fmt::format("{} on {}", all.model.name, run);
}

// "DGX H100 (8 GPUs), 41.0 h, 17,900 USD".
std::string Terms(const MachineRow& row, const MachineComparison& all) {
  std::string text = fmt::format("{}, {}", row.title, TimeText(row.run.seconds));
  if (row.price) text += ", " + MoneyIn(*row.price, all.currency);
  if (all.objective == MachineObjective::kEnergy && row.run.gpu_kwh) {
    text += fmt::format(", {} kWh", MoneyText(*row.run.gpu_kwh));
  }
  return text;
}

// "; deadline and budget met": the margin of error is named where it is larger than what is left.
std::string Met(const MachineRow& row, const MachineComparison& all) {
  if (!all.deadline && !all.budget) return "";
  std::string text = fmt::format("; {} met", !all.budget     ? "deadline"
                                             : !all.deadline ? "budget"
                                                             : "deadline and budget");
  const bool late = all.deadline && row.run.seconds * (1 + row.margin) > *all.deadline;
  const bool dear = all.budget && *row.price * (1 + row.margin) > *all.budget;
  if (!late && !dear) return text;
  return text + fmt::format(", by less than the {:.0f} % that times may be off", 100 * row.margin);
}

// "276 h too late and 300 USD over the budget".
std::string Missed(const MachineRow& row, const MachineComparison& all) {
  if (!row.open_ended.empty()) return row.open_ended;
  std::vector<std::string> texts;
  if (!row.in_time) texts.push_back(TimeText(row.run.seconds - *all.deadline) + " too late");
  if (!row.in_budget) {
    texts.push_back(row.price ? MoneyIn(*row.price - *all.budget, all.currency) + " over the budget"
                              : "without a price");
  }
  return fmt::format("{}", fmt::join(texts, " and "));
}

std::string Limits(const MachineComparison& all) {
  std::vector<std::string> texts;
  if (all.deadline) texts.push_back("a deadline of " + LimitText(*all.deadline));
  if (all.budget) texts.push_back("a budget of " + MoneyIn(*all.budget, all.currency));
  return fmt::format("{}", fmt::join(texts, " and "));
}

// "the fastest, DGX H100 (8 GPUs), takes 348 h and costs 39,679 USD: 276 h too late".
std::string Closest(const char* which, const MachineRow& row, const MachineComparison& all) {
  const std::string price = row.price ? " and costs " + MoneyIn(*row.price, all.currency) : "";
  return fmt::format("; the {}, {}, takes {}{}: {}", which, row.title, TimeText(row.run.seconds),
                     price, Missed(row, all));
}

}  // namespace

std::string LimitText(double seconds) {
  return seconds < 3600 ? TimeText(seconds) : fmt::format("{:.4g} h", seconds / 3600);
}

std::string MachinesAnswer(const MachineComparison& all) {
  const std::string subject = Subject(all);
  if (const MachineRow* best = all.best()) {
    return fmt::format("{}: {}{}.", subject, Terms(*best, all), Met(*best, all));
  }
  const MachineRow *fastest = nullptr, *cheapest = nullptr;
  for (const MachineRow& row : all.rows) {
    if (!row.choice || !row.open_ended.empty()) continue;
    if (fastest == nullptr || row.run.seconds < fastest->run.seconds) fastest = &row;
    if (row.price && (cheapest == nullptr || *row.price < *cheapest->price)) cheapest = &row;
  }
  if (fastest == nullptr) {
    const bool fits = std::any_of(all.rows.begin(), all.rows.end(),
                                  [](const MachineRow& row) { return row.choice.has_value(); });
    return fmt::format("{}: {}.", subject,
                       fits ? "no machine here is known to end it, with interruptions"
                            : "no plan was found that fits a machine here");
  }
  std::string text = fmt::format("{}: no machine here meets {}", subject, Limits(all));
  // The fastest is closest to a deadline, the cheapest to a budget.
  if (all.deadline || cheapest == nullptr) {
    text += Closest("fastest", *fastest, all);
  }
  if (all.budget && cheapest != nullptr && (!all.deadline || cheapest != fastest)) {
    text += Closest("cheapest", *cheapest, all);
  }
  return text + '.';
}

}  // namespace zeroplan
