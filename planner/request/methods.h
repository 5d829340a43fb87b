// Tuning all of a model beside adapters of it (LoRA, QLoRA): what each takes on the machines that
// are asked about, where each is possible at all, and where another one is the answer.
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

// How large a figure of the question may be for a method, by the search of ⟦largest⟧.
struct MethodLimit {
  int64_t fits = 0;
  std::optional<int64_t> next;  // the next larger one, which does not fit; none: there is none
  bool next_known = true;       // else it was not found to
  int64_t made_for = 0;         // where more tokens fit than the model was made for: these
};

struct MethodChoice {
  TuningMethod method = TuningMethod::kFull;
  ModelSpec model;           // with its adapters
  std::optional<Plan> plan;  // the fastest that fits; none: nothing does
  double gap = 0;            // SearchResult's
  bool gave_up = false;      // SearchResult's: something may fit all the same
  // Memory of a GPU from which on something fits, with the reserve, and what; none: nothing fits
  // any GPU (the host is short). Within least_gap of the least, 0 where that is proven.
  std::optional<uint64_t> least_gpu_bytes;
  double least_gap = 0;
  bool least_gave_up = false;  // nothing was found, though something may fit
  std::string least;  // "stage 3, optimizer and parameters on cpu, full recompute, micro-batch 1"
  // Where nothing fits: SmallestChangeText; where that names a disk, also what does without one.
  std::string change, change_without_disk;
  RunGoal goal;
  std::string running;  // what the question says of a run comes to, where something fits
  // None: no such sequence or micro-batch fits or was found to, or it was not asked for.
  std::optional<MethodLimit> sequence, micro_batch;
};

// The method to use. Fewer of a model's weights are trained with adapters, and QLoRA rounds the
// others, so each has to be faster than those before it by this much to be preferred.
inline constexpr double kMethodMargin = 0.02;

struct MethodAnswer {
  std::optional<size_t> method;  // into MethodComparison::methods; none: nothing was found to fit
  // All that could be the answer, as far as the searches know: their choices are within `gap`. Just
  // `method` where that is proven.
  std::vector<size_t> possible;
  bool alone = false;  // no other method fits
  double gap = 0;
};

// Where the same is known of the answer: at both ends, and wherever it was looked at between them.
struct MethodRange {
  int64_t from = 0, to = 0;
  MethodAnswer answer;  // at `from`; its gap is the range's largest
};

// How the answer depends on one figure of the question, all else being as it was asked. It is
// looked at by doubling, and closer where it is proven and changes.
struct MethodFigure {
  std::string field;  // "⟦seq_len⟧"
  int64_t now = 0;
  std::vector<MethodRange> ranges;  // rising
};

struct MethodComparison {
  Cluster cluster;
  const Runtime* runtime = nullptr;
  TorchRecipe recipe;
  int64_t seq_len = 0;
  std::vector<MethodChoice> methods;
  MethodAnswer answer;
  // By sequence, sequences a step and memory of a GPU; those that the question leaves open.
  std::vector<MethodFigure> figures;
  // Of the answer, else of the first method that fits: what ⟦data⟧ comes to in its batches.
  RunGoal goal;
  BatchSpec batch;
  // Sequences a step that other sequences were asked with, where the question has tokens a step.
  std::optional<int64_t> global_batch;
  std::string left_out;  // field of the batch that micro-batches were asked without; "": none
};

// Searches on all processors; the answer does not depend on how many. `progress` is called by the
// caller's thread and told what is looked at; what it throws ends the search. Throws Error(kUsage)
// as ResolvedPlan, before anything is searched. `request.quick` leaves limits and figures out;
// another runtime than zeroplan's own limits and the figure of sequences. REQUIRES:
// request.compared, and none of what OnlyOfOneMethod names.
MethodComparison CompareMethods(const PlanRequest& request, Assumptions& assumptions,
                                const std::function<void(const std::string&)>& progress);

// The first field that goes with one method alone; "" where none is given.
std::string OnlyOfOneMethod(const PlanRequest& request);

// A line for the error of a question that nothing fits: the adapters, LoRA's before QLoRA's, that
// fit. Empty where none do, where the question says what is trained, and where another runtime has
// no adapters of what is asked.
std::string AdaptersInstead(const PlanRequest& request);

// The comparison as a page of so many columns, and for programs, schema "zeroplan.methods/1".
std::string MethodsText(const MethodComparison& comparison, size_t columns, bool colour);
std::string MethodsJson(const MethodComparison& comparison);

inline std::string_view TuningMethodName(TuningMethod method) { return WordOf(method); }
// "full tuning", "LoRA", "QLoRA".
std::string_view TuningMethodWords(TuningMethod method);

}  // namespace zeroplan
