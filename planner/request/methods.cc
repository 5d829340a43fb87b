#include "planner/request/methods.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "core/base/error.h"
#include "core/base/units.h"
#include "planner/advice/flips.h"
#include "planner/estimate/choices.h"
#include "planner/report/report_text.h"
#include "planner/request/plan_answer.h"
#include "planner/request/resolved.h"
#include "planner/search/crew.h"
#include "planner/search/search.h"
#include "planner/search/search_space.h"

namespace zeroplan {
namespace {

// The search budget of each question of a figure, which has many of them.
constexpr uint64_t kFigureBudget = kInstructionBudget / 4;
// Instructions to lower for one figure; beyond that the search does not refine it.
constexpr uint64_t kOfOneFigure = kInstructionBudget;
constexpr int64_t kShortest = 512, kSequenceStep = 128;
constexpr int kDoublings = 6;
// The search for the border between two answers ends when the values are this close.
constexpr bool Near(int64_t low, int64_t high) { return high - low <= low / 100; }

// The request with one method, ready to search.
struct Side {
  TuningMethod method = TuningMethod::kFull;
  PlanRequest request;
  std::unique_ptr<ResolvedPlan> resolved;
  std::unique_ptr<ChoiceSearch> search;
};

// Full tuning ignores the options of adapters. `progress` receives each lowered program.
Side Open(PlanRequest request, TuningMethod method, Assumptions& assumptions,
          std::function<void(uint64_t)> progress) {
  request.quick = true;
  request.compared.reset();
  ModelFields& fields = request.common.model;
  if (method == TuningMethod::kFull) fields.lora = {};
  fields.method.emplace(method);
  fields.method.text = TuningMethodName(method);
  Side side{method, std::move(request), nullptr, nullptr};
  side.resolved = std::make_unique<ResolvedPlan>(side.request, assumptions);
  SearchInputs inputs = side.resolved->inputs();
  inputs.effort = side.request.effort.value_or(1);
  inputs.progress = std::move(progress);
  side.search = MakeSearch(std::move(inputs));
  return side;
}

// The first method that no other one beats by kMethodMargin, by tokens a second; 0: it does not
// fit.
std::optional<size_t> Preferred(const std::vector<double>& speeds) {
  const double most = *std::max_element(speeds.begin(), speeds.end());
  for (size_t i = 0; most > 0 && i < speeds.size(); ++i) {
    if (speeds[i] * (1 + kMethodMargin) >= most) return i;
  }
  return std::nullopt;
}

// Combines the answers of all methods.
MethodAnswer AnswerOf(const std::vector<Answer>& answers) {
  MethodAnswer all;
  std::vector<double> speeds, most;  // found speeds, and limits of choices that were not judged
  bool gave_up = false;
  for (const Answer& answer : answers) {
    const bool unknown = !answer.found && answer.gave_up;
    speeds.push_back(answer.found ? answer.found->tokens_per_second : 0);
    most.push_back(unknown ? std::numeric_limits<double>::infinity()
                           : speeds.back() * (1 + answer.gap));
    if (answer.found) all.gap = std::max(all.gap, answer.gap);
    gave_up |= unknown;
  }
  all.method = Preferred(speeds);
  all.alone = !gave_up && std::count(speeds.begin(), speeds.end(), 0.0) + 1 ==
                              static_cast<std::ptrdiff_t>(speeds.size());
  for (size_t i = 0; i < speeds.size(); ++i) {
    std::vector<double> best = speeds;
    best[i] = most[i];
    bool possible = Preferred(best) == i;
    // A faster third method may beat the methods before i by the margin, but not i.
    for (size_t j = i + 1; j < speeds.size() && !possible; ++j) {
      std::vector<double> other = best;
      other[j] = std::max(speeds[j], std::min(most[j], best[i] * (1 + kMethodMargin)));
      possible = Preferred(other) == i;
    }
    if (possible) all.possible.push_back(i);
  }
  if (all.possible.size() <= 1) all.gap = 0;
  return all;
}

// Evaluates `look` at `values`. If the answers at two neighbours are proven and differ, it
// continues at `between`, until that returns no value strictly between them, or until `spent`.
std::vector<MethodRange> RangesOf(const std::set<int64_t>& values,
                                  const std::function<MethodAnswer(int64_t)>& look,
                                  const std::function<int64_t(int64_t, int64_t)>& between,
                                  const std::function<bool()>& spent) {
  const auto same = [](const MethodAnswer& a, const MethodAnswer& b) {
    return a.possible == b.possible && a.alone == b.alone;
  };
  const auto proven = [](const MethodAnswer& answer) { return answer.possible.size() <= 1; };
  std::map<int64_t, MethodAnswer> at;
  for (const int64_t value : values) at[value] = look(value);
  for (auto low = at.begin(); low != at.end() && std::next(low) != at.end();) {
    const auto high = std::next(low);
    const int64_t middle = between(low->first, high->first);
    if (!same(low->second, high->second) && proven(low->second) && proven(high->second) &&
        low->first < middle && middle < high->first && !spent()) {
      at[middle] = look(middle);
    } else {
      ++low;
    }
  }
  std::vector<MethodRange> ranges;
  for (const auto& [value, answer] : at) {
    if (ranges.empty() || !same(ranges.back().answer, answer)) {
      ranges.push_back({value, value, answer});
      continue;
    }
    MethodRange& range = ranges.back();
    range.to = value;
    range.answer.gap = std::max(range.answer.gap, answer.gap);
  }
  return ranges;
}

class Comparer {
 public:
  Comparer(const PlanRequest& asked, Assumptions& assumptions,
           const std::function<void(const std::string&)>& progress)
      : asked_(asked), progress_(progress) {
    asked_.common.hardware = FoundOnce(asked.common.hardware);
    for (const TuningMethod method : *asked.compared) {
      const bool first = sides_.empty();
      Assumptions again{.logged = true};
      sides_.push_back(Open(asked_, method, first ? assumptions : again, Watched()));
      said_ = said_ || (first && method != TuningMethod::kFull);
      // Keeps one note about adapters, because QLoRA uses LoRA's adapters.
      for (std::string& note : again.notes) {
        const bool of_adapters = note.starts_with("LoRA:") || note.starts_with("QLoRA:");
        if (!of_adapters || said_) continue;
        said_ = true;
        assumptions.notes.push_back(std::move(note));
      }
    }
    AssumeAsyncSave(asked.common, assumptions);
  }

  MethodComparison Run() {
    MethodComparison all;
    const SearchInputs& inputs = sides_.front().resolved->inputs();
    all.cluster = inputs.clusters.front().cluster;
    all.runtime = inputs.runtime;
    all.recipe = inputs.recipe;
    all.seq_len = inputs.base.batch.seq_len;
    std::vector<Answer> answers(sides_.size());
    all.methods.resize(sides_.size());
    OfSides([&](size_t i) {
      Doing(sides_[i].method, "");
      all.methods[i] = Choose(sides_[i], answers[i]);
    });
    all.answer = AnswerOf(answers);
    if (!asked_.quick && all.answer.possible.size() > 1) LookLonger(all, answers);
    TakeGoal(all);
    if (all.answer.method) {
      const Side& side = sides_[*all.answer.method];
      const MethodChoice& best = all.methods[*all.answer.method];
      all.doubts = Doubts(*side.resolved, *side.search, *best.plan, best.gap);
    }
    if (asked_.quick || asked_.brief) return all;
    const AskedSettings& batch = asked_.common.settings;
    if (batch.global_batch) all.left_out = "⟦global_batch⟧";
    if (batch.global_batch_tokens) {
      all.left_out = "⟦global_batch_tokens⟧";
      all.global_batch =
          InSequences(batch, all.seq_len, all.cluster.gpus, inputs.space.sequence_ranks.back())
              .global_batch;
    }
    // Other sequence lengths need searches of their own. If choices are judged one by one, each
    // takes seconds, so they are skipped.
    const bool by_sequence = inputs.runtime->facts().bounds_search;
    if (by_sequence) {
      std::vector<std::function<void()>> limits;
      for (size_t i = 0; i < sides_.size(); ++i) {
        limits.emplace_back(
            [&, i] { all.methods[i].sequence = LimitOf(sides_[i], Largest::kSeqLen, all); });
        limits.emplace_back(
            [&, i] { all.methods[i].micro_batch = LimitOf(sides_[i], Largest::kMicroBatch, all); });
      }
      Together(limits);
    }
    for (MethodFigure (Comparer::*figure)(const MethodComparison&) :
         {&Comparer::BySequence, &Comparer::ByBatch, &Comparer::ByMemory}) {
      if (figure == &Comparer::BySequence && !by_sequence) continue;
      MethodFigure found = (this->*figure)(all);
      const std::vector<MethodRange>& ranges = found.ranges;
      if (ranges.empty() || ranges.front().from == ranges.back().to) continue;
      if (ranges.size() > 1 || ranges.front().answer.method) {
        all.figures.push_back(std::move(found));
      }
    }
    // Later searches may have found choices that fit in less memory.
    OfSides([&](size_t i) {
      if (all.methods[i].least_gap > 0 || all.methods[i].least_gave_up)
        FindLeast(*sides_[i].search, all.methods[i]);
    });
    return all;
  }

 private:
  // Runs the methods in parallel: each has its own search.
  void Together(const std::vector<std::function<void()>>& tasks) {
    crew_.Run(tasks, [this] {
      std::unique_lock lock(mutex_);
      const std::string doing = doing_;
      lock.unlock();
      progress_(doing);
    });
  }
  template <typename Fn>
  void OfSides(Fn&& fn) {
    std::vector<std::function<void()>> tasks;
    for (size_t i = 0; i < sides_.size(); ++i) tasks.emplace_back([&fn, i] { fn(i); });
    Together(tasks);
  }
  void Doing(TuningMethod method, const std::string& what) {
    crew_.CheckStopped();
    const std::lock_guard lock(mutex_);
    doing_ = fmt::format("{}{}{}", TuningMethodWords(method), what.empty() ? "" : ", ", what);
  }
  std::function<void(uint64_t)> Watched() const {
    return [this](uint64_t) { crew_.CheckStopped(); };
  }

  MethodChoice Choose(Side& side, Answer& answer) {
    MethodChoice choice{.method = side.method, .model = side.resolved->inputs().model};
    const SearchResult result = side.search->Run();
    choice.gap = answer.gap = result.gap;
    choice.gave_up = answer.gave_up = result.gave_up;
    if (result.best) {
      choice.plan = MakePlan(*side.search, result);
      const SearchCluster& at = side.search->ClusterOf(CandidateOf(choice.plan->setup));
      const std::string saves = SettleAsyncSave(AsyncSaveOf(asked_.common), at, *choice.plan);
      answer.found.emplace();
      answer.found->tokens_per_second = *choice.plan->choice.time.tokens_per_second;
      const RunGoal& goal = choice.goal =
          ResolveGoal(side.resolved->asked().common.goal, choice.plan->setup.batch,
                      side.resolved->hardware().gpu, choice.plan->runtime->facts().fixed_rows);
      if (goal.tokens) {
        choice.running =
            RunCostText(goal, choice.plan->setup.batch, *choice.plan->choice.time.total_seconds);
      }
      if (goal.interruptions) {
        const Plan& plan = *choice.plan;
        const HardwareProfile& hardware = side.resolved->hardware();
        const SaveCost save = SaveCostOf(plan.model, plan.setup, plan.cluster, hardware);
        choice.running += choice.running.empty() ? "" : " ";
        choice.running += InterruptedText(
            goal, InterruptedCostOf(goal, save, plan.setup.batch, *plan.choice.time.total_seconds,
                                    plan.lower.async_save, hardware));
      }
      if (!saves.empty()) choice.running += (choice.running.empty() ? "" : " ") + saves;
    } else {
      choice.change = SmallestChangeText(*side.resolved, Disks::kYes);
      if (choice.change.find("nvme") != std::string::npos) {
        choice.change_without_disk = SmallestChangeText(*side.resolved, Disks::kNo);
      }
    }
    if (!asked_.brief) FindLeast(*side.search, choice);
    return choice;
  }

  static void TakeGoal(MethodComparison& all) {
    const auto fits = std::find_if(all.methods.begin(), all.methods.end(),
                                   [](const MethodChoice& one) { return one.plan.has_value(); });
    if (fits == all.methods.end()) return;
    const MethodChoice& of = all.answer.method ? all.methods[*all.answer.method] : *fits;
    all.goal = of.goal;
    all.batch = of.plan->setup.batch;
  }

  static void FindLeast(ChoiceSearch& search, MethodChoice& choice) {
    Question least;
    least.objective = Objective::kHeadroom;
    least.gpu_capacity_bytes = uint64_t{1} << 60;
    const Answer found = search.Best(least);
    choice.least_gave_up = !found.found && found.gave_up;
    if (!found.found) return;
    choice.least_gpu_bytes = search.GpuBytesNeeded(*found.found);
    choice.least_gap = found.gap;
    const TrainSetup setup = search.EstimateCandidate(found.found->candidate).setup;
    choice.least =
        fmt::format("{}, {}", search.inputs().runtime->Label(setup), BatchText(setup.batch));
  }

  // The decision between methods justifies a larger budget.
  void LookLonger(MethodComparison& all, std::vector<Answer>& answers) {
    Question longer;
    longer.instruction_budget = 2 * kInstructionBudget;
    OfSides([&](size_t i) {
      Answer& answer = answers[i];
      if (answer.gap == 0 && !answer.gave_up) return;
      Doing(sides_[i].method, "");
      const Answer found = sides_[i].search->Best(longer);
      const double known = answer.found ? answer.found->tokens_per_second : 0;
      if (found.found && found.found->tokens_per_second > known * (1 + kTieMargin)) {
        all.methods[i] = Choose(sides_[i], answer);
      }
      answer.gap = all.methods[i].gap = found.gap;
      answer.gave_up = all.methods[i].gave_up = found.gave_up;
    });
    all.answer = AnswerOf(answers);
  }

  // The request with another sequence length. A request in tokens a step keeps its number of
  // sequences.
  static PlanRequest WithSequence(PlanRequest request, std::optional<int64_t> seq_len,
                                  const MethodComparison& all) {
    AskedSettings& batch = request.common.settings;
    batch.seq_len.reset();
    if (seq_len) Set(batch.seq_len, *seq_len);
    if (all.global_batch) {
      batch.global_batch_tokens.reset();
      Set(batch.global_batch, *all.global_batch);
    }
    return request;
  }

  std::optional<MethodLimit> LimitOf(const Side& side, Largest what, const MethodComparison& all) {
    PlanRequest request = side.request;
    request.largest.emplace(what);
    if (what == Largest::kSeqLen) {
      request = WithSequence(std::move(request), std::nullopt, all);
    } else {
      AskedSettings& batch = request.common.settings;
      batch.micro_batch.reset();
      batch.global_batch.reset();
      batch.global_batch_tokens.reset();
    }
    try {
      const LargestAnswer found =
          FindLargest(request, [&](const std::string& step) { Doing(side.method, step); });
      MethodLimit limit = {found.value, found.next, found.next_known};
      const Request& asked = side.request.common;
      const int64_t positions = side.resolved->inputs().model.positions;
      const bool beyond = found.value > positions && asked.settings.seq_len.value_or(0) < positions;
      if (what == Largest::kSeqLen && beyond && !asked.model.params) limit.made_for = positions;
      return limit;
    } catch (const Error& error) {
      // Nothing fits, or the request is invalid at other sequence lengths.
      if (error.code() == ExitCode::kNothingFits || error.code() == ExitCode::kUsage) return {};
      throw;
    }
  }

  // Answers one question for every method; null: the method is known not to fit. A small budget is
  // tried first: if it proves which method is the answer, a larger one would change nothing. Full
  // tuning comes last: if its bounds are below the speed of adapters, the question is only whether
  // it fits.
  MethodAnswer Ask(const std::vector<ChoiceSearch*>& searches, Question question,
                   const std::string& what) {
    std::vector<Answer> answers(searches.size());
    MethodAnswer all;
    for (const uint64_t budget : {kFigureBudget / 8, kFigureBudget}) {
      question.instruction_budget = budget;
      std::vector<uint64_t> spent(searches.size(), 0);
      const auto ask = [&](size_t i, const Question& of) {
        const bool open = budget < kFigureBudget || answers[i].gap > 0 || answers[i].gave_up;
        if (searches[i] == nullptr || !open) return;
        Doing(sides_[i].method, what);
        const uint64_t before = searches[i]->instructions_lowered();
        answers[i] = searches[i]->Best(of);
        spent[i] += searches[i]->instructions_lowered() - before;
      };
      const auto is_full = [&](size_t i) { return sides_[i].method == TuningMethod::kFull; };
      OfSides([&](size_t i) {
        if (!is_full(i)) ask(i, question);
      });
      double most = 0;
      for (const Answer& answer : answers) {
        if (answer.found) most = std::max(most, answer.found->tokens_per_second);
      }
      for (size_t i = 0; i < searches.size(); ++i) {
        if (!is_full(i) || searches[i] == nullptr) continue;
        const double least = most / (1 + kMethodMargin);
        if (least > 0 && searches[i]->needs_are_exact() &&
            !searches[i]->MayReach(question, least)) {
          Question fits = question;
          fits.any = true;
          ask(i, fits);
          if (answers[i].found || !answers[i].gave_up) continue;
        }
        ask(i, question);
      }
      for (const uint64_t one : spent) spent_ += one;
      all = AnswerOf(answers);
      if (all.possible.size() <= 1 || Spent()) break;
    }
    return all;
  }
  MethodAnswer Ask(const Question& question, const std::string& what) {
    std::vector<ChoiceSearch*> searches;
    for (const Side& side : sides_) searches.push_back(side.search.get());
    return Ask(searches, question, what);
  }

  bool Spent() const {
    return static_cast<double>(spent_) > asked_.effort.value_or(1) * double{kOfOneFigure};
  }

  MethodFigure BySequence(const MethodComparison& all) {
    MethodFigure figure{.field = "⟦seq_len⟧", .now = all.seq_len};
    std::set<int64_t> values = {all.seq_len};
    int64_t most = 0;
    for (const MethodChoice& method : all.methods) {
      if (!method.sequence) continue;
      most = std::max(most, method.sequence->fits);
      values.insert(method.sequence->fits);
      if (method.sequence->next) values.insert(*method.sequence->next);
    }
    if (most == 0) return figure;
    for (int64_t at = all.seq_len; at < most; at *= 2) values.insert(at);
    for (int64_t at = all.seq_len; at >= kShortest; at /= 2) values.insert(at);
    spent_ = 0;
    const auto look = [&](int64_t seq_len) {
      if (seq_len == all.seq_len) return all.answer;
      std::vector<Side> open(sides_.size());
      std::vector<ChoiceSearch*> searches(sides_.size());
      OfSides([&](size_t i) {
        const std::optional<MethodLimit>& limit = all.methods[i].sequence;
        // If the search gave up on a length, it is searched again.
        const bool can = !limit || !limit->next || !limit->next_known || seq_len < *limit->next;
        Assumptions unused{.logged = true};
        if (can) {
          open[i] = Open(WithSequence(asked_, seq_len, all), sides_[i].method, unused, Watched());
        }
        searches[i] = open[i].search.get();
      });
      return Ask(searches, {}, fmt::format("⟦seq_len⟧ {}", seq_len));
    };
    const auto between = [](int64_t low, int64_t high) {
      if (Near(low, high)) return low;
      const int64_t middle = (low + high) / 2 / kSequenceStep * kSequenceStep;
      return middle > low ? middle : middle + kSequenceStep;
    };
    figure.ranges = RangesOf(values, look, between, [&] { return Spent(); });
    return figure;
  }

  MethodFigure ByBatch(const MethodComparison& all) {
    MethodFigure figure{.field = "⟦global_batch⟧"};
    const int gpus = all.cluster.gpus;
    const SearchInputs& inputs = sides_.front().resolved->inputs();
    if (!all.answer.method) return figure;
    figure.now = all.methods[*all.answer.method].plan->setup.batch.global_batch();
    std::set<int64_t> values;
    for (int64_t batch = gpus; batch <= figure.now << kDoublings; batch *= 2) {
      if (batch >= figure.now >> kDoublings && CanHave(inputs, batch, gpus)) values.insert(batch);
    }
    spent_ = 0;
    figure.ranges = RangesOf(
        values,
        [&](int64_t batch) {
          Question question;
          question.global_batch = batch;
          return Ask(question, fmt::format("⟦global_batch⟧ {}", batch));
        },
        [](int64_t low, int64_t) { return low; }, [] { return true; });
    return figure;
  }

  // Options set memory in four digits.
  MethodFigure ByMemory(const MethodComparison& all) {
    MethodFigure figure{.field = "⟦gpu_memory⟧",
                        .now = static_cast<int64_t>(all.cluster.gpu_capacity_bytes)};
    const auto typed = [](int64_t bytes, Rounding rounding) {
      return static_cast<int64_t>(TypedBytes(static_cast<uint64_t>(bytes), rounding));
    };
    std::set<int64_t> values = {figure.now};
    int64_t least = std::numeric_limits<int64_t>::max();
    for (const MethodChoice& method : all.methods) {
      if (!method.least_gpu_bytes) continue;
      const auto needs = static_cast<int64_t>(*method.least_gpu_bytes);
      least = std::min(least, typed(needs - 1, Rounding::kDown));
      for (const int64_t at : {typed(needs, Rounding::kUp), typed(needs - 1, Rounding::kDown)}) {
        values.insert(at);
      }
    }
    const auto most = static_cast<int64_t>(kMostMemory) * figure.now;
    for (int64_t at = 2 * figure.now; at <= most; at *= 2)
      values.insert(typed(at, Rounding::kDown));
    for (int64_t at = figure.now / 2; at > least; at /= 2)
      values.insert(typed(at, Rounding::kDown));
    std::erase_if(values, [&](int64_t at) { return at > most || at < least; });
    spent_ = 0;
    figure.ranges = RangesOf(
        values,
        [&](int64_t bytes) {
          if (bytes == figure.now) return all.answer;
          Question question;
          question.gpu_capacity_bytes = static_cast<uint64_t>(bytes);
          return Ask(question, "⟦gpu_memory⟧ " + FormatTypedBytes(static_cast<uint64_t>(bytes)));
        },
        [&](int64_t low, int64_t high) {
          return Near(low, high) ? low : typed(low + (high - low) / 2, Rounding::kDown);
        },
        [&] { return Spent(); });
    return figure;
  }

  PlanRequest asked_;
  const std::function<void(const std::string&)>& progress_;
  Crew crew_;
  std::vector<Side> sides_;
  std::mutex mutex_;  // guards doing_
  std::string doing_;
  bool said_ = false;   // a note about adapters exists
  uint64_t spent_ = 0;  // instructions lowered for a figure
};

}  // namespace

std::string_view TuningMethodWords(TuningMethod method) {
  constexpr std::string_view kTexts[] = {"full tuning", "LoRA", "QLoRA"};
  return kTexts[static_cast<size_t>(method)];
}

MethodComparison CompareMethods(const PlanRequest& request, Assumptions& assumptions,
                                const std::function<void(const std::string&)>& progress) {
  if (!TakesAdapters(request.common.model, request.common.runtime.of())) {
    ThrowUsage(
        "⟦method⟧: {}: adapters of a mixture of experts are not trained; use ⟦method⟧ full, or "
        "plan it with ⟦runtime⟧ deepspeed, fsdp2 or ddp",
        request.compared.text);
  }
  return Comparer(request, assumptions, progress).Run();
}

std::string OnlyOfOneMethod(const PlanRequest& request) {
  const Request& common = request.common;
  if (request.largest) return "⟦largest⟧";
  if (request.objective.value_or(Objective::kThroughput) != Objective::kThroughput) {
    return "⟦objective⟧";
  }
  if (common.config.given()) return "⟦config⟧";
  if (!common.model.freeze.empty()) return "⟦freeze⟧";
  return "";
}

std::string AdaptersInstead(const PlanRequest& request) {
  const ModelFields& model = request.common.model;
  if (request.compared || model.method || model.lora.given() || !OnlyOfOneMethod(request).empty() ||
      !TakesAdapters(model, request.common.runtime.of())) {
    return "";
  }
  for (const TuningMethod method : {TuningMethod::kLora, TuningMethod::kQlora}) {
    if (method == TuningMethod::kQlora && request.asks_fp8()) continue;
    Assumptions unsaid{.logged = true};
    try {
      const Side side = Open(request, method, unsaid, nullptr);
      const SearchResult result = side.search->Run();
      if (!result.best) continue;
      const Plan plan = MakePlan(*side.search, result);
      return fmt::format("\n  {} fits (⟦method⟧ {}): {}, {}; {} a GPU", TuningMethodWords(method),
                         TuningMethodName(method), plan.runtime->Label(plan.setup),
                         BatchText(plan.setup.batch),
                         FormatBytes(plan.choice.footprint.totals().gpu_bytes));
    } catch (const Error& error) {  // the program lacks what the request sets
      if (error.code() != ExitCode::kUsage || request.common.runtime.of().facts().trains_here)
        throw;
    }
  }
  return "";
}

}  // namespace zeroplan
