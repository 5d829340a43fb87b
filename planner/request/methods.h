// Tuning all of a model beside adapters of it (LoRA): what each takes on the machines that are
// asked about, and where each is possible at all.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planner/plan/plan_file.h"
#include "planner/request/request.h"
#include "planner/request/resolve.h"

namespace zeroplan {

struct MethodChoice {
  TuningMethod method = TuningMethod::kFull;
  ModelSpec model;           // with its adapters
  std::optional<Plan> plan;  // the fastest that fits; none: nothing does
  double gap = 0;            // SearchResult's
  // Memory of a GPU from which on something fits, with the reserve, and what; none: nothing fits
  // any GPU (the host is short). Within least_gap of the least, 0 where that is proven.
  std::optional<uint64_t> least_gpu_bytes;
  double least_gap = 0;
  std::string least;  // "stage 3, optimizer and parameters on cpu, full recompute, micro-batch 1"
};

// Full tuning, then LoRA. `progress` is told what is looked at. Throws Error(kUsage) as
// ResolvedPlan. REQUIRES: request.method is kAll.
std::vector<MethodChoice> CompareMethods(const PlanRequest& request, Assumptions& assumptions,
                                         const std::function<void(const std::string&)>& progress);

// A line for the error of a question that nothing fits: what LoRA fits with. Empty where it does
// not either, and where the question says what is trained, or has programs of another runtime.
std::string LoraInstead(const PlanRequest& request);

// The comparison as a table, and what it comes to in sentences, for a page of so many columns.
std::string MethodsText(const std::vector<MethodChoice>& methods, size_t columns, bool colour);
// The same for programs, schema "zeroplan.methods/1".
std::string MethodsJson(const std::vector<MethodChoice>& methods);

}  // namespace zeroplan
