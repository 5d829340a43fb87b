#include "planner/machines/machines.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <tuple>

#include "core/base/error.h"
#include "core/base/units.h"
#include "cost_models/gemm_cost.h"
#include "hwprofiles/machine_title.h"
#include "planner/machines/machine_questions.h"
#include "planner/report/report_text.h"
#include "planner/request/plan_answer.h"
#include "planner/request/resolved.h"
#include "planner/runs/prediction_table.h"
#include "planner/search/crew.h"
#include "planner/search/search.h"

namespace zeroplan {
namespace {

// Of the budget: enough to find what is mostly best, not to prove it.
constexpr double kFirstLook = 0.02;
// Machines of a screen that are looked at together, before others are held against them.
constexpr size_t kFirstRows = 12;
constexpr double kAboveSustained = 1.1;
constexpr double kNoPrice = std::numeric_limits<double>::infinity();

// Who names cards pays their price, whichever machine they are planned in.
MachinePrices PricesOf(const PriceBook& book, const std::string& hw,
                       const HardwareProfile& hardware) {
  return NamesCards(hw) ? book.OfCard(hardware.gpu.name) : book.Of(hardware);
}

double RateOf(const MachineRow& row) {
  return row.choice ? *row.choice->time.tokens_per_second : 0;
}

class MachineSearch {
 public:
  MachineSearch(const PlanRequest& request, Assumptions& assumptions) : asked_(request) {
    asked_.common.hardware = FoundOnce(request.common.hardware);
    questions_ = MachineQuestions(asked_);
    if (!request.machines.prices.empty()) own_ = PriceBook::Read(request.machines.prices);
    all_.objective = request.machines.objective.value_or(MachineObjective::kTime);
    all_.deadline = request.machines.deadline;
    all_.budget = request.machines.budget;
    all_.any = request.machines.any;
    goal_ = request.common.goal;
    const bool data = goal_.data.given();
    all_.interrupted = goal_.interruptions.has_value();
    all_.run_given = data || goal_.tokens;
    all_.run = data           ? fmt::format("{} epoch{} of the data", goal_.data.epochs.value_or(1),
                                  goal_.data.epochs.value_or(1) == 1 ? "" : "s")
               : goal_.tokens ? "A run"
                              : "Compared by a run";
    if (!data) {
      if (!goal_.tokens) goal_.tokens.emplace(kComparedTokens);
      all_.tokens = *goal_.tokens;
      all_.run += fmt::format(" of {} tokens", FormatCount(static_cast<uint64_t>(*all_.tokens)));
    }
    Resolve(assumptions);
    AssumeRestart(request.common, assumptions);
    AssumeAsyncSave(request.common, assumptions);
  }

  MachineComparison Run(const MachinesProgress& progress) {
    std::vector<size_t> rows;
    for (size_t i = 0; i < all_.rows.size(); ++i) {
      if (kinds_[i]) rows.push_back(i);
    }
    // A screen shows what nothing beats: few at a time are held against what was found before.
    const bool leaves_out = all_.any && asked_.brief;
    bounds_.resize(all_.rows.size());
    for (const size_t i : rows) {
      if (leaves_out) bounds_[i] = AtPeak(i);
    }
    while (leaves_out && !rows.empty()) {
      const std::vector<size_t> first = Promising(rows);
      Search(first, kFirstLook, progress);
      std::erase_if(rows, [&](size_t i) {
        return std::binary_search(first.begin(), first.end(), i) || LeaveOut(i);
      });
    }
    Search(rows, all_.any ? kFirstLook : 1, progress);
    while (all_.any && !(rows = StillOpen()).empty()) Search(rows, 1, progress);
    for (const MachineRow& row : all_.rows) {
      const auto& price = row.gpu_hour ? row.gpu_hour : row.spot_gpu_hour;
      if (all_.currency.empty() && price) all_.currency = price->currency;
    }
    MarkFront();
    Sort();
    if (const MachineRow* best = all_.best(); best != nullptr && best->goal.data) {
      all_.data = DataParagraphs(best->goal, best->choice->setup.batch, all_.model);
    }
    return std::move(all_);
  }

 private:
  const PriceBook& prices() const { return own_ ? *own_ : PriceBook::BuiltIn(); }

  // Before anything is searched: what is wrong with all of them is wrong with the question.
  void Resolve(Assumptions& assumptions) {
    std::exception_ptr first;
    std::vector<Assumptions> said;
    for (PlanRequest& question : questions_) {
      MachineRow& row = all_.rows.emplace_back();
      row.hw = question.common.hardware.profile;
      Assumptions own{.logged = !said.empty()};
      kinds_.emplace_back();
      resolved_.push_back(nullptr);
      goals_.push_back(goal_);
      try {
        resolved_.back() = std::make_shared<ResolvedPlan>(question, own);
      } catch (const Error& error) {
        if (error.code() != ExitCode::kUsage) throw;
        row.gpus = question.common.cluster.gpus.value_or(0);
        row.why_not = error.what();
        if (!first) first = std::current_exception();
        continue;
      }
      const SearchInputs& inputs = resolved_.back()->inputs();
      goals_.back().data = resolved_.back()->asked().common.goal.data;
      kinds_.back() = {inputs.base.batch.world_size, inputs.base.precision.dtype,
                       inputs.lower.flash_attention, inputs.lower.document_borders,
                       inputs.lower.own_documents,   inputs.base.batch.seq_len};
      row.cluster = inputs.clusters.back().cluster;
      row.gpus = row.cluster.gpus;
      row.title = MachineTitle(resolved_.back()->hardware(), row.gpus, row.cluster.nodes(),
                               NamesCards(row.hw));
      row.notes = own.notes;
      if (said.empty()) {
        all_.model = inputs.model;
        all_.seq_len = inputs.base.batch.seq_len;
        all_.runtime = inputs.runtime;
        all_.recipe = inputs.recipe;
        ResolveGoal(goals_.back(), inputs.base.batch, resolved_.back()->hardware().gpu,
                    FixedRows());
      }
      said.push_back(std::move(own));
    }
    if (said.empty()) std::rethrow_exception(first);
    KeepShared(said, assumptions);
  }

  // What all questions assume and note; the rest is the rows' own.
  void KeepShared(const std::vector<Assumptions>& said, Assumptions& all) {
    const auto in_all = [&](const std::string& text, std::vector<std::string> Assumptions::*of) {
      return std::all_of(said.begin(), said.end(), [&](const Assumptions& own) {
        return std::count((own.*of).begin(), (own.*of).end(), text) > 0;
      });
    };
    for (const std::string& text : said.front().assumed) {
      if (in_all(text, &Assumptions::assumed)) all.assumed.push_back(text);
    }
    std::vector<std::string> notes;
    for (const std::string& note : said.front().notes) {
      if (in_all(note, &Assumptions::notes)) notes.push_back(note);
    }
    for (MachineRow& row : all_.rows) {
      std::erase_if(row.notes, [&](const std::string& note) {
        return std::count(notes.begin(), notes.end(), note) > 0;
      });
    }
    all.notes.insert(all.notes.end(), notes.begin(), notes.end());
    all.first = said.front().first;
    std::set<std::pair<Packing, int64_t>> layouts;
    for (size_t i = 0; i < goals_.size(); ++i) {
      if (goals_[i].data.counted == nullptr || resolved_[i] == nullptr) continue;
      layouts.insert({goals_[i].data.packing, resolved_[i]->inputs().base.batch.seq_len});
    }
    if (layouts.size() > 1) {
      all.notes.emplace_back(
          "Packing and sequence length: each machine's own, as an epoch is fastest there; "
          "⟦packing⟧ and ⟦seq_len⟧ set them for all.");
    }
    const AskedSettings& batch = asked_.common.settings;
    const bool said_alike = std::any_of(notes.begin(), notes.end(), [](const std::string& note) {
      return note.starts_with("Batch:");
    });
    if (!batch.global_batch && !batch.global_batch_tokens && said.size() > 1 && !said_alike) {
      all.notes.emplace_back(
          "Batch: each machine's own, as 'plan' searches it; ⟦global_batch⟧ sets it for all.");
    }
  }

  // Rows whose searches lower the same programs, and share them: those of alike memory beside one
  // another, so few that all processors have some.
  std::vector<std::vector<size_t>> Chains(const std::vector<size_t>& of) const {
    constexpr size_t kMostInChain = 16;
    std::map<Kind, std::vector<size_t>> alike;
    for (const size_t i : of) alike[*kinds_[i]].push_back(i);
    std::vector<std::vector<size_t>> chains;
    for (auto& [kind, rows] : alike) {
      std::stable_sort(rows.begin(), rows.end(), [&](size_t a, size_t b) {
        return all_.rows[a].cluster.gpu_capacity_bytes > all_.rows[b].cluster.gpu_capacity_bytes;
      });
      for (size_t begin = 0; begin < rows.size(); begin += kMostInChain) {
        const size_t end = std::min(rows.size(), begin + kMostInChain);
        chains.emplace_back(rows.begin() + static_cast<std::ptrdiff_t>(begin),
                            rows.begin() + static_cast<std::ptrdiff_t>(end));
      }
    }
    return chains;
  }

  // A lower bound of the row's time and price: the model's own FLOPs, without limits, at the rate
  // that the GPUs' largest matmuls sustain, or at the dense peak if that is lower. Attention and
  // other matmuls are predicted to exceed that rate by less than kAboveSustained. None: the peak is
  // not known, FP8 matmuls may exceed it, the comparison is by energy, or the run has no number of
  // tokens.
  std::optional<MachineRow> AtPeak(size_t i) const {
    const ResolvedPlan& resolved = *resolved_[i];
    const SearchInputs& inputs = resolved.inputs();
    const std::optional<double> peak = DensePeak(resolved.hardware(), inputs.base.precision.dtype);
    if (!peak || all_.objective == MachineObjective::kEnergy || asked_.asks_fp8() ||
        inputs.base.precision.fp8.enabled || !goals_[i].tokens) {
      return std::nullopt;
    }
    const double sustained =
        GemmCost(resolved.hardware().gpu).Sustained(inputs.base.precision.dtype);
    const double rate = std::min(*peak, kAboveSustained * sustained);
    MachineRow row = all_.rows[i];
    row.choice.emplace();
    // Within documents a token attends to as many keys as in rows of this length.
    const double keys = inputs.lower.visible_keys;
    const int64_t length = keys > 0 ? std::max<int64_t>(1, static_cast<int64_t>(2 * keys) - 1)
                                    : inputs.base.batch.seq_len;
    row.run.seconds = TrainFlopsPerToken(inputs.model, length) *
                      static_cast<double>(*goals_[i].tokens) / (rate * row.gpus);
    Pay(resolved, goals_[i].gpu_hour_price, row);
    return row;
  }

  // The rows that a first look begins with, in order: of all at that rate those that nothing beats,
  // then those that nothing but these beats, until there are kFirstRows. All that have no peak.
  std::vector<size_t> Promising(const std::vector<size_t>& rows) const {
    std::vector<std::pair<size_t, const MachineRow*>> left;
    std::vector<size_t> first;
    for (const size_t i : rows) {
      if (bounds_[i]) {
        left.emplace_back(i, &*bounds_[i]);
      } else {
        first.push_back(i);
      }
    }
    while (first.size() < kFirstRows && !left.empty()) {
      std::vector<size_t> front;
      for (const auto& [i, row] : left) {
        const bool beaten = std::any_of(left.begin(), left.end(), [row = row](const auto& of) {
          return of.second->run.seconds < row->run.seconds &&
                 of.second->price.value_or(kNoPrice) <= row->price.value_or(kNoPrice);
        });
        if (!beaten) front.push_back(i);
      }
      std::erase_if(left, [&](const auto& of) {
        return std::binary_search(front.begin(), front.end(), of.first);
      });
      first.insert(first.end(), front.begin(), front.end());
    }
    std::sort(first.begin(), first.end());
    return first;
  }

  // Whether the rows found so far beat the row even at that bound, and one has more merit. Then the
  // row is not searched.
  bool LeaveOut(size_t i) {
    const std::optional<MachineRow>& row = bounds_[i];
    if (!row) return false;
    if (Unbeaten(*row, i)) return false;
    const double merit = MeritOf(*row, all_.objective);
    const bool worse = std::any_of(all_.rows.begin(), all_.rows.end(), [&](const MachineRow& of) {
      return of.within() && MeritOf(of, all_.objective) < merit;
    });
    if (!worse) return false;
    all_.rows[i].left_out = true;
    resolved_[i].reset();
    return true;
  }

  // What of the rows that were looked at with a part of the budget alone could be among those that
  // a text shows, or be beaten by none.
  std::vector<size_t> StillOpen() {
    std::vector<double> merits;
    for (const MachineRow& row : all_.rows) {
      if (row.within()) merits.push_back(MeritOf(row, all_.objective));
    }
    std::sort(merits.begin(), merits.end());
    // A screen shows one machine more than the front.
    const size_t shown = asked_.brief ? 1 : kShownOfAny;
    const double last =
        merits.size() > shown ? merits[shown - 1] : std::numeric_limits<double>::infinity();
    std::vector<size_t> open;
    for (size_t i = 0; i < all_.rows.size(); ++i) {
      const MachineRow& row = all_.rows[i];
      if (resolved_[i] == nullptr || (row.gap == 0 && !row.gave_up)) continue;
      MachineRow best = row;  // as good as it may be
      const double faster = 1 + row.gap;
      best.run.seconds /= faster;
      if (best.price) *best.price /= faster;
      if (best.run.gpu_kwh) *best.run.gpu_kwh /= faster;
      SetLimits(best);
      if (!row.gave_up && !best.within()) continue;
      if (row.gave_up || MeritOf(best, all_.objective) <= last || Unbeaten(best, i)) {
        open.push_back(i);
      }
    }
    return open;
  }

  // `effort`: a part of the budget that was asked for; 1: the rows are done then.
  void Search(const std::vector<size_t>& rows, double effort, const MachinesProgress& progress) {
    Crew crew;
    std::mutex mutex;  // of what is told
    size_t done = 0;
    const MachineRow* best = nullptr;  // by tokens a second, as far as rows are done
    std::vector<std::function<void()>> tasks;
    for (const std::vector<size_t>& chain : Chains(rows)) {
      tasks.emplace_back([&, chain] {
        Searched before;
        for (const size_t row : chain) {
          crew.CheckStopped();
          before = SearchOne(row, before, effort, crew);
          const std::lock_guard lock(mutex);
          ++done;
          const MachineRow& found = all_.rows[row];
          if (best == nullptr || RateOf(found) > RateOf(*best)) best = &found;
        }
      });
    }
    crew.Run(tasks, [&] {
      if (!progress) return;
      std::unique_lock lock(mutex);
      const size_t count = done;
      std::string text = fmt::format("{} of {} machines", count, rows.size());
      if (best != nullptr && best->choice) {
        text += fmt::format(", the fastest so far {} x {}: {} tokens/s", best->gpus, best->hw,
                            NumberCell(RateOf(*best)));
      }
      lock.unlock();
      progress(count, text);
    });
  }

  // A search, with what it points to.
  struct Searched {
    std::shared_ptr<ResolvedPlan> resolved;
    std::unique_ptr<ChoiceSearch> search;
  };

  // `before`: the search before this one in its chain; null: this is the first.
  Searched SearchOne(size_t at, const Searched& before, double effort, const Crew& crew) {
    MachineRow& row = all_.rows[at];
    Searched now{resolved_[at], nullptr};
    if (effort == 1) resolved_[at].reset();
    SearchInputs inputs = now.resolved->inputs();
    inputs.effort = effort * asked_.effort.value_or(1);
    inputs.progress = [&crew](uint64_t) { crew.CheckStopped(); };
    try {
      now.search = before.search != nullptr
                       ? before.search->Like(std::move(inputs), /*same_gpus=*/false)
                       : MakeSearch(std::move(inputs));
      Find(*now.search, effort < 1, row);
    } catch (const Error& error) {  // what the machine's runtime refuses of its choices
      if (error.code() != ExitCode::kUsage) throw;
      row.why_not = error.what();
    }
    if (!row.choice) return now;
    const HardwareProfile& hardware = now.resolved->hardware();
    const Runtime& runtime = *now.search->inputs().runtime;
    row.margin = runtime.LargestTimeError(*row.choice, row.cluster, hardware);
    Assumptions guesses;
    NoteGuesses(hardware, row.cluster, std::span(&row.choice->setup, 1),
                now.search->inputs().recipe, guesses);
    row.guessed = !guesses.notes.empty();
    Count(*now.resolved, goals_[at], row);
    return now;
  }

  // What 'plan' finds. Where the best is proven, it looks at other stages to show them alone.
  // `first_look`: what is found is enough.
  static void Find(ChoiceSearch& search, bool first_look, MachineRow& row) {
    row.gave_up = false;
    row.why_not.clear();
    row.choice.reset();
    if (const Answer answer = search.Best({}); answer.found && (first_look || answer.gap == 0)) {
      row.gap = answer.gap;
      row.choice = search.EstimateCandidate(answer.found->candidate);
      return;
    }
    const SearchResult result = search.Run();
    row.gap = result.gap;
    row.gave_up = result.gave_up;
    if (result.best) {
      row.choice = result.stages[*result.best].estimate;
    } else {
      row.why_not = WhyNot(result);
    }
  }

  // Of the stage that comes closest.
  static std::string WhyNot(const SearchResult& result) {
    const StageBest* closest = nullptr;
    for (const StageBest& stage : result.stages) {
      if (!stage.can_run()) continue;
      if (closest == nullptr ||
          stage.estimate.footprint.gpu_total() < closest->estimate.footprint.gpu_total()) {
        closest = &stage;
      }
    }
    if (closest == nullptr) return "no choice that is asked for can run";
    return result.gave_up ? "nothing was found that fits" : closest->estimate.why_not;
  }

  // What the run takes.
  void Count(const ResolvedPlan& resolved, const GoalFields& fields, MachineRow& row) const {
    const HardwareProfile& hardware = resolved.hardware();
    const BatchSpec batch = row.choice->setup.batch;
    const RunGoal& goal = row.goal = ResolveGoal(fields, batch, hardware.gpu, FixedRows());
    const double step_seconds = *row.choice->time.total_seconds;
    row.run = CostOf(goal, batch, step_seconds);
    if (goal.interruptions) Interrupt(goal, resolved, row);
    Pay(resolved, goal.gpu_hour_price, row);
    SetLimits(row);
  }

  // The prices of row.run.seconds.
  void Pay(const ResolvedPlan& resolved, const std::optional<double>& gpu_hour_price,
           MachineRow& row) const {
    const HardwareProfile& hardware = resolved.hardware();
    row.rented = row.gpus;
    if (gpu_hour_price) {
      row.gpu_hour = GpuHourPrice{.amount = *gpu_hour_price};
      row.price = *gpu_hour_price * row.run.seconds / 3600 * row.gpus;
    } else {
      const MachinePrices known = PricesOf(prices(), row.hw, hardware);
      const auto paid = [&](const GpuHourPrice& price) {
        return price.whole_node ? row.cluster.nodes() * hardware.node.gpu_count() : row.gpus;
      };
      const auto of_run = [&](const std::optional<GpuHourPrice>& price) -> std::optional<double> {
        if (!price) return std::nullopt;
        return price->amount * row.run.seconds / 3600 * paid(*price);
      };
      const bool spot = all_.interrupted && known.spot;
      row.spot_gpu_hour = known.spot;
      row.spot_price = of_run(known.spot);
      row.gpu_hour = spot ? known.spot : known.on_demand;
      row.price = of_run(row.gpu_hour);
      if (row.gpu_hour) row.rented = paid(*row.gpu_hour);
    }
  }

  // Makes of steps alone what the run is expected to take, with saves as 'plan' settles them.
  void Interrupt(const RunGoal& goal, const ResolvedPlan& resolved, MachineRow& row) const {
    Plan plan;
    plan.model = all_.model;
    plan.setup = row.choice->setup;
    plan.lower = resolved.inputs().lower;
    plan.choice = *row.choice;
    SettleAsyncSave(AsyncSaveOf(asked_.common), resolved.inputs().clusters.back(), plan);
    row.choice = plan.choice;
    const SaveCost save = SaveCostOf(plan.model, plan.setup, row.cluster, resolved.hardware());
    const InterruptedCost cost =
        InterruptedCostOf(goal, save, plan.setup.batch, *plan.choice.time.total_seconds,
                          plan.lower.async_save, resolved.hardware());
    if (!cost.known) {
      row.open_ended = "saves not known";
      return;
    }
    if (!cost.expected_seconds || cost.hopeless()) {
      row.open_ended = "no progress";
      return;
    }
    const double longer = *cost.expected_seconds / row.run.seconds;
    row.steps_alone = false;
    row.run.seconds *= longer;
    row.run.gpu_hours *= longer;
    if (row.run.price) *row.run.price *= longer;
    if (row.run.gpu_kwh) *row.run.gpu_kwh *= longer;
  }

  bool FixedRows() const { return asked_.common.runtime.of().facts().fixed_rows; }

  void SetLimits(MachineRow& row) const {
    const bool known = row.open_ended.empty();
    row.in_time = known && (!all_.deadline || row.run.seconds <= *all_.deadline);
    row.in_budget = known && (!all_.budget || (row.price && *row.price <= *all_.budget));
  }

  // Whether no row but the one at `self` takes as little time and money as `row`, and less of one.
  // Where prices are known, a row without one is beaten by none and beats none.
  bool Unbeaten(const MachineRow& row, size_t self) const {
    const bool priced = std::any_of(all_.rows.begin(), all_.rows.end(),
                                    [](const MachineRow& of) { return of.within() && of.price; });
    if (priced && !row.price) return false;
    const auto money = [&](const MachineRow& of) { return priced ? *of.price : of.gpus; };
    for (size_t i = 0; i < all_.rows.size(); ++i) {
      const MachineRow& other = all_.rows[i];
      if (i == self || !other.within() || (priced && !other.price)) continue;
      const bool as_good = other.run.seconds <= row.run.seconds && money(other) <= money(row);
      if (as_good && (other.run.seconds < row.run.seconds || money(other) < money(row))) {
        return false;
      }
    }
    return true;
  }

  void MarkFront() {
    for (size_t i = 0; i < all_.rows.size(); ++i) {
      all_.rows[i].front = all_.rows[i].within() && Unbeaten(all_.rows[i], i);
    }
  }

  void Sort() {
    const auto rank = [](const MachineRow& row) { return row.within() ? 0 : row.choice ? 1 : 2; };
    std::stable_sort(
        all_.rows.begin(), all_.rows.end(), [&](const MachineRow& a, const MachineRow& b) {
          if (rank(a) != rank(b)) return rank(a) < rank(b);
          if (!a.choice) return false;
          const double merit_a = MeritOf(a, all_.objective);
          const double merit_b = MeritOf(b, all_.objective);
          if (merit_a != merit_b) return merit_a < merit_b;
          return MeritOf(a, MachineObjective::kTime) < MeritOf(b, MachineObjective::kTime);
        });
  }

  PlanRequest asked_;
  GoalFields goal_;                // with the tokens that machines are compared by
  std::vector<GoalFields> goals_;  // a row's: with data as it is packed there
  std::vector<PlanRequest> questions_;
  std::vector<std::shared_ptr<ResolvedPlan>> resolved_;  // a row's; null: it is done
  // Rows of one kind lower the same programs. None: the row cannot be searched. The kind is GPUs,
  // dtype, fused attention, borders of documents, own kernels within them and sequence length.
  using Kind = std::tuple<int, Dtype, bool, bool, bool, int64_t>;
  std::vector<std::optional<Kind>> kinds_;
  std::vector<std::optional<MachineRow>> bounds_;  // a row's AtPeak, where a screen needs it
  std::optional<PriceBook> own_;
  MachineComparison all_;
};

}  // namespace

double MeritOf(const MachineRow& row, MachineObjective objective) {
  constexpr double kUnknown = std::numeric_limits<double>::infinity();
  if (!row.choice) return kUnknown;
  switch (objective) {
    case MachineObjective::kTime:
      return row.run.seconds;
    case MachineObjective::kCost:
      return row.price.value_or(kUnknown);
    case MachineObjective::kEnergy:
      return row.run.gpu_kwh.value_or(kUnknown);
  }
  ZEROPLAN_CHECK(false);
}

std::string_view MachineObjectiveName(MachineObjective objective) {
  constexpr std::string_view kNames[] = {"time", "cost", "energy"};
  return kNames[static_cast<size_t>(objective)];
}

MachineComparison CompareMachines(const PlanRequest& request, Assumptions& assumptions,
                                  const MachinesProgress& progress) {
  return MachineSearch(request, assumptions).Run(progress);
}

}  // namespace zeroplan
