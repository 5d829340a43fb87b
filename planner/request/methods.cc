#include "planner/request/methods.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/units.h"
#include "planner/estimate/choices.h"
#include "planner/report/choice_json.h"
#include "planner/report/report_columns.h"
#include "planner/report/report_text.h"
#include "planner/request/plan_answer.h"
#include "planner/request/resolved.h"
#include "planner/search/search.h"

namespace zeroplan {
namespace {

const char* MethodName(TuningMethod method) {
  return method == TuningMethod::kFull ? "full" : "lora";
}

std::string Words(TuningMethod method) {
  return method == TuningMethod::kFull ? "Tuning all weights" : "LoRA";
}

std::string Unproven(double gap) {
  return gap > 0 ? fmt::format(" (not proven: within {:.2g} %)", 100 * gap) : "";
}

std::string MethodText(const MethodChoice& choice) {
  std::string text = Words(choice.method);
  if (choice.plan) {
    text += fmt::format(": fastest by {}, {}{}.", SetupLabel(choice.plan->setup),
                        BatchText(choice.plan->setup.batch), Unproven(choice.gap));
  } else {
    text += ": nothing fits.";
  }
  if (!choice.least_gpu_bytes) return text + " The host's memory is short for any GPU.";
  return text + fmt::format(" It fits from {} a GPU on{}: {}.",
                            FormatBytes(*choice.least_gpu_bytes), Unproven(choice.least_gap),
                            choice.least);
}

enum class MethodScope { kFastest, kFastestAndLeast };

// `request` says what is asked of either; full tuning takes nothing of the options of adapters.
MethodChoice ChooseMethod(PlanRequest request, TuningMethod method, MethodScope scope,
                          Assumptions& assumptions) {
  request.quick = true;
  ModelFields& fields = request.common.model;
  if (method == TuningMethod::kFull) fields.lora = {};
  fields.method.emplace(method);
  fields.method.text = MethodName(method);
  ResolvedPlan resolved(request, assumptions);
  SearchInputs inputs = resolved.inputs();
  inputs.effort = request.effort.value_or(1);
  const std::unique_ptr<ChoiceSearch> searcher = MakeSearch(std::move(inputs));
  MethodChoice choice{.method = method, .model = resolved.inputs().model};
  const SearchResult result = searcher->Run();
  if (result.best) {
    choice.plan = MakePlan(*searcher, result);
    choice.gap = result.gap;
  }
  if (scope == MethodScope::kFastest) return choice;
  Question least;
  least.objective = Objective::kHeadroom;
  least.gpu_capacity_bytes = uint64_t{1} << 60;
  const Answer answer = searcher->Best(least);
  if (answer.found) {
    choice.least_gpu_bytes = searcher->GpuBytesNeeded(*answer.found);
    choice.least_gap = answer.gap;
    const TrainSetup setup = searcher->EstimateCandidate(answer.found->candidate).setup;
    choice.least = fmt::format("{}, {}", SetupLabel(setup), BatchText(setup.batch));
  }
  return choice;
}

}  // namespace

std::vector<MethodChoice> CompareMethods(const PlanRequest& request, Assumptions& assumptions,
                                         const std::function<void(const std::string&)>& progress) {
  std::vector<MethodChoice> choices;
  for (const TuningMethod method : {TuningMethod::kFull, TuningMethod::kLora}) {
    progress(Words(method));
    Assumptions again;
    choices.push_back(ChooseMethod(request, method, MethodScope::kFastestAndLeast,
                                   choices.empty() ? assumptions : again));
    // What is said of adapters alone.
    for (std::string& note : again.notes) {
      if (note.starts_with("LoRA:")) assumptions.notes.push_back(std::move(note));
    }
  }
  return choices;
}

std::string LoraInstead(const PlanRequest& request) {
  const ModelFields& model = request.common.model;
  const bool open = !model.method && !model.lora.given() && model.freeze.empty() &&
                    request.common.config.empty() && !request.largest &&
                    request.common.runtime.of().has_programs();
  if (!open) return "";
  Assumptions unsaid;
  const MethodChoice lora =
      ChooseMethod(request, TuningMethod::kLora, MethodScope::kFastest, unsaid);
  if (!lora.plan) return "";
  return fmt::format("\n  LoRA fits (⟦method⟧ lora): {}, {}; {} a GPU",
                     SetupLabel(lora.plan->setup), BatchText(lora.plan->setup.batch),
                     FormatBytes(lora.plan->choice.footprint.gpu_total()));
}

std::string MethodsText(const std::vector<MethodChoice>& methods, size_t columns, bool colour) {
  const Paints paints(colour);
  ReportColumns table;
  table.BeginGroup("");
  table.Add("method", 6, true);
  table.Add("trained", 8);
  table.BeginGroup("fastest that fits");
  table.Add("tok/s", 6);
  table.Add("step", 7);
  table.Add("GB/GPU", 6);
  table.Add("GB host", 7);
  std::string text = table.Header(paints);
  const auto gigabytes = [](uint64_t bytes) {
    return NumberCell(static_cast<double>(bytes) / 1e9);
  };
  for (const MethodChoice& choice : methods) {
    const std::string trained = FormatCount(choice.model.TrainedParamCount());
    if (!choice.plan) {
      text += table.Row({MethodName(choice.method), trained, "-", "-", "-", "-"}) + '\n';
      continue;
    }
    const ChoiceEstimate& best = choice.plan->choice;
    text +=
        table.Row({MethodName(choice.method), trained,
                   FormatCount(static_cast<uint64_t>(*best.time.tokens_per_second)),
                   FormatSeconds(*best.time.total_seconds), gigabytes(best.footprint.gpu_total()),
                   gigabytes(best.footprint.host.total())}) +
        '\n';
  }
  text += '\n';
  for (const MethodChoice& choice : methods) text += Wrap(MethodText(choice), 2, columns);
  const MethodChoice &full = methods.front(), &lora = methods.back();
  if (full.plan && lora.plan) {
    const double ratio =
        *lora.plan->choice.time.tokens_per_second / *full.plan->choice.time.tokens_per_second;
    const double more = ratio >= 1 ? ratio : 1 / ratio;
    text += Wrap(fmt::format("By prediction {} makes {:.2f} times the tokens a second of {} here.",
                             ratio >= 1 ? "LoRA" : "tuning all weights", more,
                             ratio >= 1 ? "tuning all weights" : "LoRA"),
                 2, columns);
  }
  text += Wrap("⟦method⟧ full or ⟦method⟧ lora plans one of them.", 2, columns);
  return text;
}

std::string MethodsJson(const std::vector<MethodChoice>& methods) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const MethodChoice& choice : methods) {
    Json json = {
        {"method", MethodName(choice.method)},
        {"params", choice.model.ParamCount()},
        {"trained_params", choice.model.TrainedParamCount()},
        {"fits", choice.plan.has_value()},
        {"choice", choice.plan ? RuntimeChoiceJson(choice.plan->choice) : Json(nullptr)},
        {"gap", choice.gap},
        {"least_gpu_bytes", choice.least_gpu_bytes ? Json(*choice.least_gpu_bytes) : Json(nullptr)},
        {"least_gap", choice.least_gap},
        {"least_choice", choice.least.empty() ? Json(nullptr) : Json(choice.least)}};
    list.push_back(std::move(json));
  }
  return Json{{"schema", "zeroplan.methods/1"}, {"methods", std::move(list)}}.dump(2) + "\n";
}

}  // namespace zeroplan
