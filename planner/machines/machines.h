// A comparison of machines: the best plan of each, and a run's time, money and energy there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hwprofiles/prices.h"
#include "planner/estimate/estimate.h"
#include "planner/page/html.h"
#include "planner/request/request.h"
#include "planner/request/resolve.h"

namespace zeroplan {

// The tokens by which machines are compared if a request has no run.
inline constexpr int64_t kComparedTokens = 1'000'000'000;

// The number of built-in machines that a text shows: the best, and those that nothing beats. They
// are searched with the whole budget; the others only until they are known to be neither.
inline constexpr size_t kShownOfAny = 30;

// One machine, and its best plan: the answer of 'plan' with ⟦hw⟧ `hw` and ⟦gpus⟧ `cluster.gpus`.
struct MachineRow {
  std::string hw;  // as typed
  int gpus = 0;
  std::string title;  // MachineTitle; "": the machine cannot be planned for
  Cluster cluster;
  std::optional<ChoiceEstimate> choice;  // none: nothing fits, or nothing that fits was found
  double gap = 0;                        // as in SearchResult
  // As in SearchResult: something may fit nevertheless. Then, and if nothing fits or this machine
  // cannot be planned for, `why_not` gives the reason.
  bool gave_up = false;
  // Not searched: at the full rate of its GPUs it would still be beaten (a screen of all machines).
  bool left_out = false;
  std::string why_not;
  double margin = 0;  // Runtime::LargestTimeError; 0: unknown
  // its time depends on figures that are neither measured nor from a datasheet
  bool guessed = false;
  // The cost of the comparison's run. With interruptions its seconds, and all that follows from
  // them, are expected values with saves, restarts and repeated steps. If the profile lacks rates
  // of a disk, they are unknown, and the seconds are those of steps alone (`steps_alone`).
  RunCost run;
  RunGoal goal;  // the goal of that run: with data, in this machine's batches
  bool steps_alone = true;
  // The reason why the interrupted run's time is unknown or infinite; "": it is finite and known.
  std::string open_ended;
  // GPUs to pay for: whole nodes if they are rented so.
  int rented = 0;
  std::optional<GpuHourPrice> gpu_hour, spot_gpu_hour;
  // Prices of the run: the one to compare by (on spot machines if it has interruptions and their
  // price is known, else on demand), and the one on spot machines.
  std::optional<double> price, spot_price;
  // A row without a price is not within a budget; an open-ended one is within neither limit.
  bool in_time = true, in_budget = true;
  // No other row within the limits needs at most as much time and money, and less of one. Without
  // prices GPUs count as money.
  bool front = false;

  // Notes of its plan that the other rows do not have.
  std::vector<std::string> notes;

  bool within() const { return choice && in_time && in_budget; }
  // The machine's name: as typed, else the profile's.
  const std::string& name() const { return hw.empty() ? cluster.hardware : hw; }
};

struct MachineComparison {
  ModelSpec model;
  int64_t seq_len = 0;
  const Runtime* runtime = nullptr;
  TorchRecipe recipe;
  // "A run of 100M tokens".
  std::string run;
  // The run is the request's; else it has kComparedTokens.
  bool run_given = false;
  // tokens of the run; unset: it is epochs of data, in batches of each machine
  std::optional<int64_t> tokens;
  bool interrupted = false;
  std::vector<std::string> data;  // DataParagraphs for the best row
  MachineObjective objective = MachineObjective::kTime;
  std::optional<double> deadline, budget;
  std::string currency;  // currency of all prices; "": none is known
  bool any = false;      // all built-in machines: a text shows the best of them
  // Rows within the limits, the best first; then rows beyond them; then rows in which nothing fits.
  std::vector<MachineRow> rows;
  // The best row; null: none is within the limits. Built-in machines that cannot be planned for, or
  // fit nothing, are in `rows` too.
  const MachineRow* best() const {
    return !rows.empty() && rows.front().within() ? &rows.front() : nullptr;
  }
};

// The value by which a row is compared: seconds, money, kWh. Infinity: unknown.
double MeritOf(const MachineRow& row, MachineObjective objective);
std::string_view MachineObjectiveName(MachineObjective objective);  // "time", "cost", "energy"

// Receives the number of machines that are done, and the progress in words.
using MachinesProgress = std::function<void(size_t done, const std::string& how_far)>;

// Compares the machines, searching on all processors; the answer does not depend on their number.
// Calls `progress` on the caller's thread; an exception that it throws ends the search. Throws
// Error(kUsage) as MachineQuestions does, and as ResolvedPlan does if no machine can be planned
// for.
MachineComparison CompareMachines(const PlanRequest& request, Assumptions& assumptions,
                                  const MachinesProgress& progress = {});

// The reason why nothing is within the limits, for an error; "": something is.
std::string NothingWithin(const MachineComparison& comparison);
// The answer in one sentence, the best row with its time, price and the limits that it meets; if
// nothing is within the limits, how far the fastest and the cheapest are from them.
std::string MachinesAnswer(const MachineComparison& comparison);
// The price of a GPU-hour of the best row, by whom, and what else is paid; "": none is known.
std::string BestPriceText(const MachineComparison& comparison);
// A row as it is typed: "⟦hw⟧ l40s ⟦gpus⟧ 8".
std::string TypedText(const MachineRow& row);
// A deadline: "72 h", "30.0 min".
std::string LimitText(double seconds);
// The publisher of a price and its date: "RunPod pods, 2026-10-07".
std::string SellerText(const GpuHourPrice& price);

// The answer on one screen of `columns` columns: the machines that nothing beats, the rest counted.
// `next`: the command to run next.
std::string MachinesScreen(const MachineComparison& comparison, const std::string& next,
                           size_t columns, bool colour);
// The comparison as text for a page of `columns` columns, as JSON (schema "zeroplan.machines/1"),
// and as a page for a browser.
std::string MachinesText(const MachineComparison& comparison, size_t columns, bool colour);
std::string MachinesJson(const MachineComparison& comparison, const Assumptions& assumptions);
Page MachinesPage(const MachineComparison& comparison, const PageOrigin& origin);

}  // namespace zeroplan
