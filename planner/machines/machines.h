// Machines compared: the best plan of each, and what a run takes there of time, money and energy.
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

// The tokens that machines are compared by where a request has no run.
inline constexpr int64_t kComparedTokens = 1'000'000'000;

// Of all built-in machines a text shows so many, the best, and those that nothing beats. They are
// searched with the whole budget; the others as far as it takes to know that they are none of
// these.
inline constexpr size_t kShownOfAny = 30;

// One machine, and the best plan of it: what 'plan' with ⟦hw⟧ `hw` and ⟦gpus⟧ `cluster.gpus` finds.
struct MachineRow {
  std::string hw;  // as it is typed
  int gpus = 0;
  Cluster cluster;
  std::optional<ChoiceEstimate> choice;  // none: nothing fits, or was found to
  double gap = 0;                        // SearchResult's
  // SearchResult's: something may fit all the same. Then, and where nothing fits or this machine
  // cannot be asked, `why_not` says why.
  bool gave_up = false;
  std::string why_not;
  double margin = 0;     // Runtime::LargestTimeError; 0: not known
  bool guessed = false;  // its time rests on figures that are neither measured nor a datasheet's
  // Of the comparison's run. With interruptions its seconds, and what follows from them, are those
  // that are expected with saves, restarts and steps that are made again; where the profile has no
  // rates of a disk they are not known, and these are steps alone (`steps_alone`).
  RunCost run;
  RunGoal goal;  // what that run is: of data, in this machine's batches
  bool steps_alone = true;
  // The run is interrupted, and what that makes of it is not known, or it never ends: "" else why.
  std::string open_ended;
  // GPUs that are paid for: whole nodes where they are rented so.
  int rented = 0;
  std::optional<GpuHourPrice> gpu_hour, spot_gpu_hour;
  // Of the run: what it is compared by (on spot machines where it is interrupted and their price is
  // known, else on demand), and on spot machines.
  std::optional<double> price, spot_price;
  // Without a price it is not within a budget; open-ended within neither.
  bool in_time = true, in_budget = true;
  // No other row within the limits takes as little time and money, and less of one. Without prices
  // GPUs stand for money.
  bool front = false;

  // What of its question's notes the other rows do not have.
  std::vector<std::string> notes;

  bool within() const { return choice && in_time && in_budget; }
  // The machine's name: as it was typed, else the profile's.
  const std::string& name() const { return hw.empty() ? cluster.hardware : hw; }
};

struct MachineComparison {
  ModelSpec model;
  int64_t seq_len = 0;
  const Runtime* runtime = nullptr;
  TorchRecipe recipe;
  // "A run of 100M tokens".
  std::string run;
  std::optional<int64_t> tokens;  // of it; none: it is epochs of data, in batches of each machine
  bool interrupted = false;
  std::vector<std::string> data;  // DataParagraphs for the best row
  MachineObjective objective = MachineObjective::kTime;
  std::optional<double> deadline, budget;
  std::string currency;  // of all prices; "": none is known
  bool any = false;      // all built-in machines: a text shows the best of them
  // Those within the limits, the best first; then those beyond them; then those that nothing fits.
  std::vector<MachineRow> rows;
  // Built-in machines that cannot be asked, or fit nothing, are in `rows` too.
  const MachineRow* best() const {
    return !rows.empty() && rows.front().within() ? &rows.front() : nullptr;
  }
};

// What the best of a comparison is called, and what a row is compared by: seconds, money, kWh.
// Infinite: it is not known.
double MeritOf(const MachineRow& row, MachineObjective objective);
std::string_view MachineObjectiveName(MachineObjective objective);  // "time", "cost", "energy"

// Told how many machines are done, and how far that is in words.
using MachinesProgress = std::function<void(size_t done, const std::string& how_far)>;

// Searches on all processors; the answer does not depend on how many. `progress` is called by the
// caller's thread, and what it throws ends the search. Throws Error(kUsage) as
// MachineQuestions, and as ResolvedPlan where no machine can be asked.
MachineComparison CompareMachines(const PlanRequest& request, Assumptions& assumptions,
                                  const MachinesProgress& progress = {});

// Why nothing is within the limits, for an error; "": something is.
std::string NothingWithin(const MachineComparison& comparison);

// The comparison as a page of so many columns, for programs (schema "zeroplan.machines/1"), and as
// a page for a browser.
std::string MachinesText(const MachineComparison& comparison, size_t columns, bool colour);
std::string MachinesJson(const MachineComparison& comparison, const Assumptions& assumptions);
Page MachinesPage(const MachineComparison& comparison, const PageOrigin& origin);

}  // namespace zeroplan
