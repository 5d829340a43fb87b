// Compares full tuning with adapters (LoRA, QLoRA) on the machines of a request: the cost of each
// method, the limits within which it fits, and the values of the request at which another method
// becomes the answer.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planner/plan/plan_file.h"
#include "planner/report/report_text.h"
#include "planner/request/request.h"
#include "planner/request/resolve.h"

namespace zeroplan {

// The largest value of one figure of the request that fits with a method, by the search of
// ⟦largest⟧.
struct MethodLimit {
  int64_t fits = 0;
  std::optional<int64_t> next;  // the next larger one, which does not fit; unset: there is none
  bool next_known = true;       // false: the search gave up on `next`, which may fit
  int64_t made_for = 0;         // tokens that the model was made for, if more fit; else 0
};

struct MethodChoice {
  TuningMethod method = TuningMethod::kFull;
  ModelSpec model;           // includes its adapters
  std::optional<Plan> plan;  // the fastest that fits; unset: nothing does
  double gap = 0;            // SearchResult's
  bool gave_up = false;      // SearchResult's: something may fit nevertheless
  // The least GPU memory with which something fits, reserve included. Unset: nothing fits any GPU,
  // because the host's memory is too small. The true minimum is at most a share of least_gap lower;
  // 0 if it is proven.
  std::optional<uint64_t> least_gpu_bytes;
  double least_gap = 0;
  bool least_gave_up = false;  // nothing was found, but something may fit
  std::string least;  // "stage 3, optimizer and parameters on cpu, full recompute, micro-batch 1"
  // Set if nothing fits: SmallestChangeText. If that names a disk, also the smallest change without
  // one.
  std::string change, change_without_disk;
  RunGoal goal;
  std::string running;  // time, price and saves of the request's run, if something fits
  // Unset: no such sequence or micro-batch fits or was found to, or the search did not look.
  std::optional<MethodLimit> sequence, micro_batch;
};

// Adapters train fewer weights of a model, and QLoRA rounds the others. Therefore each method must
// be faster than those before it by this share to be preferred.
inline constexpr double kMethodMargin = 0.02;

struct MethodAnswer {
  std::optional<size_t> method;  // into MethodComparison::methods; unset: nothing was found to fit
  // All methods that could be the answer as far as the searches know: their choices are within
  // `gap` of the best. Only `method` if that is proven.
  std::vector<size_t> possible;
  bool alone = false;  // no other method fits
  double gap = 0;
};

// A range in which the answer is the same at both ends, and at every value looked at between them.
struct MethodRange {
  int64_t from = 0, to = 0;
  MethodAnswer answer;  // the answer at `from`; its gap is the largest in the range
};

// The answer as a function of one figure of the request, all else unchanged. The search doubles the
// figure, and bisects between values whose answers are proven and differ.
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
  // For sequence, sequences a step and GPU memory, unless the request sets the figure.
  std::vector<MethodFigure> figures;
  // The goal and the batch of the answer, else of the first method that fits.
  RunGoal goal;
  BatchSpec batch;
  // Sequences a step at other sequence lengths, if the request sets tokens a step.
  std::optional<int64_t> global_batch;
  std::vector<std::string> doubts;  // about the answer's plan (Doubts of plan_answer.h)
  std::string left_out;  // batch field that the search for micro-batches ignored; "": none
};

// Searches on all processors; the answer does not depend on their number. The caller's thread calls
// `progress` with the question that is searched; an exception from it ends the search. Throws
// Error(kUsage) as ResolvedPlan does, before anything is searched. Limits and figures are left out
// for `request.quick` and `brief`. Runtimes other than zeroplan's own have no limits and no figure
// of sequences. REQUIRES: request.compared, and no field that OnlyOfOneMethod names.
MethodComparison CompareMethods(const PlanRequest& request, Assumptions& assumptions,
                                const std::function<void(const std::string&)>& progress);

// The first given field that only one method supports; "" if there is none.
std::string OnlyOfOneMethod(const PlanRequest& request);

// A line for the error of a request that nothing fits. It names the first of LoRA and QLoRA that
// fits. Empty if neither fits, if the request sets what is trained, and if another runtime has no
// adapters for the request.
std::string AdaptersInstead(const PlanRequest& request);

// The answer on one screen of `columns` columns.
std::string MethodsScreen(const MethodComparison& comparison, const ScreenNotes& notes,
                          size_t columns, bool colour);
// The comparison as a page of `columns` columns, and as JSON of schema "zeroplan.methods/1".
std::string MethodsText(const MethodComparison& comparison, size_t columns, bool colour);
std::string MethodsJson(const MethodComparison& comparison);

inline std::string_view TuningMethodName(TuningMethod method) { return WordOf(method); }
// "full tuning", "LoRA", "QLoRA".
std::string_view TuningMethodWords(TuningMethod method);

}  // namespace zeroplan
