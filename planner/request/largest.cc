#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/families/load_model.h"
#include "planner/estimate/choices.h"
#include "planner/request/plan_answer.h"
#include "planner/search/search_space.h"

namespace zeroplan {
namespace {

// The values to search, as numbered ascending steps.
struct Steps {
  const char* field;           // "⟦seq_len⟧"
  int64_t first, start, last;  // steps; a search begins at `start` and continues with grow()
  std::function<int64_t(int64_t)> grow;
  std::function<void(PlanRequest&, int64_t)> set;
  std::function<int64_t(int64_t)> value;     // 7296: the field's value
  std::function<std::string(int64_t)> text;  // the value in the form of an option
  // "40 layers, hidden 5120" for the message; may be empty.
  std::function<std::string(int64_t)> detail;
  // The figure that orders steps: a model's parameters, which need not grow with every step. 0: the
  // step has no value.
  std::function<uint64_t(int64_t)> size;
  std::string end;  // the reason why no step follows `last`
  // The search continues to larger steps if one of this many consecutive steps fits: shapes with a
  // prime number of layers have fewer ways to recompute than their neighbours.
  int64_t together = 1;
};

class Finder {
 public:
  Finder(const PlanRequest& request, const std::function<void(const std::string&)>& progress,
         Steps steps)
      : request_(request), progress_(progress), steps_(std::move(steps)) {}

  // nullopt: nothing fits.
  std::optional<int64_t> Find() {
    const std::optional<int64_t> near = LastOfRun();
    std::optional<int64_t> best = near ? LargestOf(*near) : std::nullopt;
    if (!best || steps_.size(*best) == 0) return std::nullopt;
    // A larger one may fit nevertheless.
    for (int64_t at = *best + 1; at <= steps_.last && beyond_.size() < kBeyond; ++at) {
      const uint64_t size = steps_.size(at);
      if (size <= steps_.size(*best) || Seen(size)) continue;
      if (Fits(at)) {
        best = at;
        beyond_.clear();
      } else {
        beyond_.push_back(at);
      }
    }
    return best;
  }

  uint64_t instructions() const { return instructions_; }
  // The first step beyond the answer, which does not fit, and whether that is proven.
  std::optional<int64_t> next() const {
    return beyond_.empty() ? std::nullopt : std::optional(beyond_.front());
  }
  bool next_known() const { return beyond_.empty() || !gave_up_.contains(beyond_.front()); }

  std::string Say(int64_t best) const {
    const auto named = [&](int64_t at) {
      const std::string detail = steps_.detail(at);
      return fmt::format("{} {}{}", steps_.field, steps_.text(at),
                         detail.empty() ? "" : fmt::format(" ({})", detail));
    };
    std::string text = fmt::format("Largest: {} fits", named(best));
    if (beyond_.empty()) {
      text += fmt::format("; {}.", steps_.end);
    } else {
      const int64_t next = beyond_.front();
      // If the search gave up, a choice that it did not look at may fit.
      const bool known = !gave_up_.contains(next);
      text += fmt::format("; {} {}: {}.", named(next), known ? "does not" : "was not found to",
                          Why(next));
      if (beyond_.size() > 1) {
        text += fmt::format(" Nor {} the next larger ones up to {}.", known ? "do" : "were",
                            named(beyond_.back()));
      }
    }
    // Steps beyond the answer for which that is not proven.
    std::vector<std::string> unknown;
    for (const int64_t at : beyond_) {
      if (gave_up_.contains(at)) unknown.push_back(steps_.text(at));
    }
    if (!unknown.empty()) {
      text += fmt::format(
          " Not proven: of {} {} the search looked at the most promising choices alone, which do "
          "not fit; ⟦effort⟧ {:g} looks at ten times as many.",
          steps_.field, fmt::join(unknown, " and "), 10 * request_.effort.value_or(1));
    }
    return text;
  }

  // The reason why a step does not fit, from the choice that is closest to fitting.
  std::string Why(int64_t at) const {
    PlanRequest request = request_;
    steps_.set(request, at);
    Assumptions unused{.logged = true};
    const ResolvedPlan resolved(request, unused);
    SearchInputs inputs = resolved.inputs();
    inputs.effort = 0;  // judges choices by bounds alone
    const std::unique_ptr<ChoiceSearch> searcher = MakeSearch(std::move(inputs));
    const SearchResult result = searcher->Run();
    const ChoiceEstimate* closest = nullptr;
    double least = std::numeric_limits<double>::infinity();
    for (const StageBest& stage : result.stages) {
      if (!stage.can_run() || stage.estimate.fits) continue;
      const Candidate candidate = CandidateOf(stage.estimate.setup);
      const double excess = Excess(stage.estimate.footprint.totals(),
                                   CapacityOf(searcher->ClusterOf(candidate).cluster));
      if (excess >= least) continue;
      least = excess;
      closest = &stage.estimate;
    }
    if (closest == nullptr) return "nothing fits";
    return fmt::format("closest is {}, {}", request.common.runtime.of().Label(closest->setup),
                       closest->why_not);
  }

 private:
  static constexpr size_t kBeyond = 3;
  // Instructions to lower for one step; beyond that it counts as a step that does not fit. That is
  // some dozen programs of 300 layers. The limit falls when kOfAllSteps is nearly used up.
  static constexpr uint64_t kMostOfStep = kInstructionBudget / 2, kLeastOfStep = kMostOfStep / 8;
  static constexpr uint64_t kOfAllSteps = 4 * kInstructionBudget;

  // The last fitting step among the consecutive steps from `at` on.
  std::optional<int64_t> LargestOf(int64_t at) {
    for (int64_t i = std::min(steps_.last, at + steps_.together - 1); i >= at; --i) {
      const auto known = fits_.find(i);
      if (known != fits_.end() && known->second) return i;
    }
    return std::nullopt;
  }

  // Whether one of the consecutive steps from `at` on fits.
  bool AnyFits(int64_t at) {
    for (int64_t i = at; i <= std::min(steps_.last, at + steps_.together - 1); ++i) {
      if (Fits(i)) return true;
    }
    return false;
  }

  // The end of the run of fitting steps, provided that each step up to it fits.
  std::optional<int64_t> LastOfRun() {
    int64_t low = steps_.first - 1, high = 0;
    for (int64_t at = steps_.start;; at = std::min(steps_.last, steps_.grow(at))) {
      if (!AnyFits(at)) {
        high = at;
        break;
      }
      low = at;
      if (at == steps_.last) return at;
    }
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (AnyFits(middle) ? low : high) = middle;
    }
    return low >= steps_.first ? std::optional(low) : std::nullopt;
  }

  // Whether beyond_ has a step of the same size.
  bool Seen(uint64_t size) const {
    return std::any_of(beyond_.begin(), beyond_.end(),
                       [&](int64_t at) { return steps_.size(at) == size; });
  }

  bool Fits(int64_t at) {
    const auto [known, added] = fits_.try_emplace(at, true);
    if (!added) return known->second;
    // A step without a value lies below all steps that have one.
    if (steps_.size(at) == 0) return true;
    PlanRequest request = request_;
    steps_.set(request, at);
    Assumptions unused{.logged = true};
    const ResolvedPlan resolved(request, unused);
    if (progress_) progress_(fmt::format("{} {}", steps_.field, steps_.text(at)));
    Question any;
    any.objective = Objective::kHeadroom;
    any.any = true;
    const double effort = request_.effort.value_or(1);
    const auto spent = static_cast<uint64_t>(static_cast<double>(instructions_) / effort);
    any.instruction_budget =
        std::clamp((kOfAllSteps - std::min(kOfAllSteps, spent)) / 4, kLeastOfStep, kMostOfStep);
    SearchInputs inputs = resolved.inputs();
    inputs.effort = effort;
    const std::unique_ptr<ChoiceSearch> searcher = MakeSearch(std::move(inputs));
    const Answer answer = searcher->Best(any);
    instructions_ += searcher->instructions_lowered();
    known->second = answer.found.has_value();
    if (answer.gave_up) gave_up_.insert(at);
    return known->second;
  }

  const PlanRequest& request_;
  const std::function<void(const std::string&)>& progress_;
  const Steps steps_;
  std::map<int64_t, bool> fits_;
  std::vector<int64_t> beyond_;  // steps that are larger than the answer and do not fit
  std::set<int64_t> gave_up_;    // steps for which the search gave up
  uint64_t instructions_ = 0;    // lowered
};

std::string None(int64_t /*step*/) { return ""; }
uint64_t Itself(int64_t step) { return static_cast<uint64_t>(step); }

// Numbers of three digits: step 0 is 1.00M, step 900 is 10.0M.
uint64_t ParamsOf(int64_t step) {
  auto params = static_cast<uint64_t>(100 + step % 900) * 10'000;
  for (int64_t decade = step / 900; decade > 0; --decade) params *= 10;
  return params;
}

Steps ModelSteps(const PlanRequest& request) {
  const ModelFields& model = request.common.model;
  if (model.given()) {
    ThrowUsage(
        "⟦largest⟧: {} is given; use ⟦largest⟧ seq-len or ⟦largest⟧ micro-batch, or leave "
        "the model out",
        model.params ? "⟦params⟧ " + model.params.text : "⟦model⟧ " + model.model);
  }
  const int64_t seq_len = request.common.settings.seq_len.value_or(kDerivedSeqLen);
  constexpr int64_t kDecade = 900;
  Steps steps;
  steps.field = "⟦params⟧";
  steps.first = 0;
  steps.start = 3 * kDecade;  // 1B
  steps.last = 9 * kDecade;   // 1000T
  steps.grow = [](int64_t at) { return at + kDecade; };
  steps.set = [](PlanRequest& at, int64_t step) {
    at.common.model.params.emplace(ParamsOf(step));
    at.common.model.params.text = FormatCount(ParamsOf(step));
  };
  steps.value = [](int64_t step) { return static_cast<int64_t>(ParamsOf(step)); };
  steps.text = [](int64_t step) { return FormatCount(ParamsOf(step)); };
  const ModelFamily& family = FamilyOf(request.common.model);
  steps.detail = [seq_len, &family](int64_t step) {
    const ModelSpec spec = ModelFromParams(ParamsOf(step), seq_len, family);
    return fmt::format("{} parameters: {} layers, hidden {}, {} heads", spec.ParamCount(),
                       spec.layers, spec.hidden, spec.heads);
  };
  steps.size = [seq_len, &family](int64_t step) -> uint64_t {
    try {
      return ModelFromParams(ParamsOf(step), seq_len, family).ParamCount();
    } catch (const Error&) {  // too small: the positions alone have more parameters
      return 0;
    }
  };
  steps.end = "⟦params⟧ goes no further";
  steps.together = 3;
  return steps;
}

Steps SeqLenSteps(const PlanRequest& request) {
  const Request& common = request.common;
  if (common.settings.seq_len) {
    ThrowUsage("⟦largest⟧: seq-len is what ⟦seq_len⟧ {} sets; leave one of the two out",
               common.settings.seq_len.text);
  }
  constexpr int64_t kMost = int64_t{1} << 26;
  const OtherModels others = OthersFor(common.model, common.runtime.of());
  const ModelSpec model = common.model.params
                              ? AsPreferred(ModelFromParams(*common.model.params, kDerivedSeqLen,
                                                            FamilyOf(common.model)),
                                            others)
                              : FindModel(common.model.model, others).spec;
  const bool learned = !common.model.params && model.family->learned_positions();
  const int64_t of_model = learned ? model.positions : model.window > 0 ? model.window : kMost;
  const int64_t of_batch = MostMicroStepTokens(model) / common.settings.micro_batch.value_or(1);
  const int64_t most = std::min(of_model, of_batch);
  constexpr int64_t kStep = 128;
  const auto tokens = [most](int64_t step) { return std::min(step * kStep, most); };
  Steps steps;
  steps.field = "⟦seq_len⟧";
  steps.first = 1;
  steps.last =
      static_cast<int64_t>(CeilDiv(static_cast<uint64_t>(most), static_cast<uint64_t>(kStep)));
  steps.start = std::min<int64_t>(8, steps.last);
  steps.grow = [](int64_t at) { return 2 * at; };
  steps.set = [tokens](PlanRequest& at, int64_t step) {
    Set(at.common.settings.seq_len, tokens(step));
  };
  steps.value = tokens;
  steps.text = [tokens](int64_t step) { return std::to_string(tokens(step)); };
  steps.detail = None;
  steps.size = Itself;
  steps.end = of_batch < of_model || of_model == kMost ? "more is not planned"
              : learned                                ? "the model has no more positions"
                        : "more than the model's window is not planned";
  return steps;
}

Steps MicroBatchSteps(const PlanRequest& request) {
  const AskedSettings& batch = request.common.settings;
  for (const auto& [option, value] : {std::pair{"⟦micro_batch⟧", &batch.micro_batch},
                                      {"⟦global_batch⟧", &batch.global_batch},
                                      {"⟦global_batch_tokens⟧", &batch.global_batch_tokens}}) {
    if (!*value) continue;
    ThrowUsage("⟦largest⟧: micro-batch is not free with {} {}; leave one of the two out", option,
               value->text);
  }
  Assumptions unused{.logged = true};
  const ModelSpec model =
      ResolveModel(request.common.model, batch.seq_len, unused, request.common.runtime.of());
  Steps steps;
  steps.field = "⟦micro_batch⟧";
  steps.first = steps.start = 1;
  steps.last = std::max<int64_t>(
      1, MostMicroStepTokens(model) / ResolveSeqLen(request.common, model, unused));
  steps.grow = [](int64_t at) { return 2 * at; };
  steps.set = [](PlanRequest& at, int64_t step) { Set(at.common.settings.micro_batch, step); };
  steps.value = [](int64_t step) { return step; };
  steps.text = [](int64_t step) { return std::to_string(step); };
  steps.detail = None;
  steps.size = Itself;
  steps.end = "more is not planned";
  return steps;
}

Steps StepsOf(const PlanRequest& request) {
  const Largest what = *request.largest;
  if (what == Largest::kModel) return ModelSteps(request);
  if (!request.common.model.given()) {
    ThrowUsage("⟦largest⟧: {} needs a model; add ⟦model⟧ or ⟦params⟧, or use ⟦largest⟧ model",
               request.largest.text);
  }
  return what == Largest::kSeqLen ? SeqLenSteps(request) : MicroBatchSteps(request);
}

}  // namespace

LargestAnswer FindLargest(PlanRequest& request,
                          const std::function<void(const std::string&)>& progress) {
  const Steps steps = StepsOf(request);
  const PlanRequest asked = request;
  Finder finder(asked, progress, steps);
  const std::optional<int64_t> best = finder.Find();
  if (!best) {
    int64_t least = steps.first;
    while (steps.size(least) == 0) ++least;
    throw Error(ExitCode::kNothingFits, fmt::format("nothing fits, not even {} {}: {}", steps.field,
                                                    steps.text(least), finder.Why(least)));
  }
  steps.set(request, *best);
  LargestAnswer answer = {finder.Say(*best), finder.instructions(), steps.value(*best),
                          std::nullopt, finder.next_known()};
  if (finder.next()) answer.next = steps.value(*finder.next());
  return answer;
}

}  // namespace zeroplan
