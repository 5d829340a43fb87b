// What is best for another runtime, with all that is said of it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/estimate/run_cost.h"
#include "planner/runtimes/runtime_search.h"

namespace zeroplan {

// What zeroplan's own executor would do instead, by its own search.
struct ExecutorBest {
  TrainSetup setup;
  double step_seconds = 0;
  double tokens_per_second = 0;
  double gap = 0;  // as SearchResult's
};

struct RuntimePlan {
  OtherRuntime runtime = OtherRuntime::kDeepSpeed;
  ModelSpec model;
  Cluster cluster;
  TorchCompile compile;
  RuntimeSearchResult search;  // has a best
  double seconds = 0;          // that it took
  std::string space;           // what was swept, as a sentence
  bool asked_executor = false;
  std::optional<ExecutorBest> executor;  // none though asked: nothing fits it
  RunGoal goal;
  std::vector<std::string> assumed, notes;

  const RuntimeJudged& best() const { return *search.stages[*search.best].best; }
};

// "stages 1 to 3; optimizer on GPU or CPU; ...": what `setups` differ in.
std::string RuntimeSpaceText(OtherRuntime runtime, const std::vector<TrainSetup>& setups);
// "stage 2, full recompute, micro-batch 8 x 6 micro-steps, reduce_bucket_size 1e8".
std::string RuntimeChoiceText(OtherRuntime runtime, const TrainSetup& setup);
// What lacks memory in each stage, a line each; `search` has no best.
std::string RuntimeMisfitText(const RuntimeSearchInputs& inputs, const RuntimeSearchResult& search);

// Paragraphs of at most 100 columns.
std::string RuntimePlanText(const RuntimePlan& plan);
// Schema "zeroplan.runtime-plan/1" (docs/runtimes.md). `config`: of the choice, as JSON text.
std::string RuntimePlanJson(const RuntimePlan& plan, const std::string& config);

}  // namespace zeroplan
