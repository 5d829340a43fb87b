#include <fmt/format.h>

#include <algorithm>

#include "core/base/units.h"
#include "planner/estimate/choices.h"
#include "planner/page/choice_pictures.h"
#include "planner/page/plan_page.h"
#include "planner/report/report_text.h"

namespace zeroplan {
namespace {

// The fastest that fits; where none does, what takes least.
size_t Shown(const Estimate& estimate) {
  const std::vector<ChoiceEstimate>& all = estimate.choices;
  const auto better = [](const ChoiceEstimate& a, const ChoiceEstimate& b) {
    if (a.fits != b.fits) return a.fits;
    if (a.fits) return a.time.tokens_per_second.value_or(0) > b.time.tokens_per_second.value_or(0);
    return a.footprint.gpu_total() < b.footprint.gpu_total();
  };
  return static_cast<size_t>(std::min_element(all.begin(), all.end(), better) - all.begin());
}

}  // namespace

Page EstimatePage(const Estimate& estimate, const EstimateInputs& inputs,
                  const PageOrigin& origin) {
  const size_t shown = Shown(estimate);
  const ChoiceEstimate& best = estimate.choices[shown];
  Page page{.origin = origin};
  page.title = fmt::format("{} on {} GPU{}: every choice", estimate.model.name,
                           estimate.cluster.gpus, estimate.cluster.gpus == 1 ? "" : "s");
  if (estimate.choices.size() == 1) {
    page.title =
        fmt::format("{} on {} GPU{}: {}", estimate.model.name, estimate.cluster.gpus,
                    estimate.cluster.gpus == 1 ? "" : "s", estimate.runtime->Label(best.setup));
  }
  page.facts = {ModelLine(estimate.model, estimate.seq_len), ClusterLine(estimate.cluster),
                BatchLine(best.setup)};
  const auto fitting = std::count_if(estimate.choices.begin(), estimate.choices.end(),
                                     [](const ChoiceEstimate& choice) { return choice.fits; });
  std::vector<ShownChoice> choices;
  std::vector<JudgedDot> dots;
  for (size_t i = 0; i < estimate.choices.size(); ++i) {
    const ChoiceEstimate& choice = estimate.choices[i];
    const bool marked = i == shown && choice.fits && estimate.choices.size() > 1;
    choices.push_back({estimate.runtime->Label(choice.setup), &choice, marked});
    if (choice.time.tokens_per_second) {
      dots.push_back({choices.back().label, choice.footprint.gpu_total(),
                      *choice.time.tokens_per_second, choice.fits, marked});
    }
  }
  if (estimate.choices.size() == 1) {
    page.figures.emplace_back("fits", best.fits ? "yes" : "no");
  } else {
    page.figures.emplace_back("choices that fit",
                              fmt::format("{} of {}", fitting, estimate.choices.size()));
    if (best.fits) page.figures.emplace_back("the fastest that fits", choices[shown].label);
  }
  if (best.fits || estimate.choices.size() == 1) {
    if (best.time.total_seconds) {
      page.figures.emplace_back("a step", FormatSeconds(*best.time.total_seconds));
      page.figures.emplace_back("tokens a second",
                                FormatRate(best.time.tokens_per_second.value_or(0)));
    }
    page.figures.emplace_back("memory of one GPU", FormatBytes(best.footprint.gpu_total()));
  }
  page.Add(GpuMemoryPicture(choices, estimate.cluster));
  page.Add(HostMemoryPicture(choices, estimate.cluster));
  page.Add(StepTimePicture(choices, std::nullopt));
  page.Add(AroundPicture(best, estimate.cluster));
  if (dots.size() > 1) page.Add(FrontPicture(dots, estimate.cluster));
  if (inputs.costs != nullptr && estimate.runtime->has_programs()) {
    page.Add(StepMemoryPicture(Lower(inputs.model, best.setup, inputs.lower), best.footprint,
                               best.memory, choices[shown].label, *inputs.costs));
  }
  if (estimate.goal.data) AddData(estimate.goal, best, estimate.model, page);
  page.Add(RunCostPicture(choices, estimate.goal));
  return page;
}

}  // namespace zeroplan
