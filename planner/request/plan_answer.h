// The answer of plan, before anything is printed: the choice, why, and what would change it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "hwprofiles/profile.h"
#include "planner/advice/advice.h"
#include "planner/plan/plan_file.h"
#include "planner/request/resolved.h"

namespace zeroplan {

// Told what is found, as soon as it is known. Unset: no one is told.
struct AnswerListener {
  // Told the choice and what it was chosen from, before its advice; `first` is the advice that
  // stands before the choice. `again`: a better one was found while looking for advice, and the
  // choice told before is void.
  std::function<void(const Plan& plan, const SearchResult& result,
                     const std::vector<AdviceLine>& first, bool again)>
      chosen;
  std::function<void(const AdviceLine& line)> advice;
};

// The choice alone: its search, without what would change it. Throws as FindAnswer.
Plan FindChoice(ResolvedPlan& request, ChoiceSearch& searcher);

// What to change of a request that nothing fits: the fewest fields, as they are typed, and what
// fits then; "" where none was found. Disks::kNo: it takes none.
enum class Disks : uint8_t { kNo, kYes };
std::string SmallestChangeText(ResolvedPlan& request, Disks disks = Disks::kYes);

// What a plan file says of where this was planned from.
PlanOrigin OriginOf(const Request& request, const HardwareProfile& hardware);

// What a config's choice of `tokens_per_second` in steps of `batch` costs: a sentence that names
// the best choice for the same GPUs, model and global batch, where that is faster by more than a
// few percent; else "". It searches what plan does without the config, with a part of the usual
// budget.
std::string ConfigLoss(const ResolvedPlan& request, const BatchSpec& batch,
                       double tokens_per_second);

// What lighter optimizer states that nobody allowed would bring beside `plan`, each found by a
// search: speed, or fewer GPUs; "" where that is nothing worth saying, or states are said.
// `searcher` is the plan's; a part of its work is done again.
std::string LighterStatesText(ResolvedPlan& request, ChoiceSearch& searcher, const Plan& plan);

// What products of eight bits that nobody asked for would bring beside `plan`, found by a search:
// a sentence where that is faster by a few percent; else "".
std::string FasterProductsText(const ResolvedPlan& request, ChoiceSearch& searcher,
                               const Plan& plan);

// What GPUs that share sequences would bring beside `plan`, where nobody said whether they are to:
// the same.
std::string FasterSequencesText(const ResolvedPlan& request, ChoiceSearch& searcher,
                                const Plan& plan);

// Fewer GPUs, and another batch, that are as fast as `plan` or faster, each with a claim that a
// search of its own found. Fewer GPUs: a node less, one node, and halves down to one; as fast is
// what is slower by no more than kTieMargin. Another batch: as many sequences as AnswersByBatch
// looks at, where that makes the same GPUs kMuchFaster times as fast. Nothing is searched where the
// speed of kernels alone (ChoiceSearch::MostOfKernels) leaves no room, nor for ⟦quick⟧, ⟦largest⟧
// or another objective than speed. `batches`: set where they had to be looked at.
inline constexpr double kMuchFaster = 1.5;
std::vector<AdviceLine> FirstLines(const ResolvedPlan& request, ChoiceSearch& searcher,
                                   const Plan& plan, const Found& found,
                                   std::optional<KnownBatches>& batches);

struct PlanAnswer {
  Plan plan;
  PlanReport report;  // its `assumed` and `notes` are filled by FinishAnswer
  std::string saves;  // SettleAsyncSave's of the plan; "" where saves are not to be asynchronous
};

// `searcher`: of the request's inputs. Throws Error(kNothingFits) that names the smallest change
// that fits, where one is found.
PlanAnswer FindAnswer(ResolvedPlan& request, ChoiceSearch& searcher,
                      const AnswerListener& listener);

// Adds the notes that the choice calls for to `assumptions`, and copies these to the report.
void FinishAnswer(const ResolvedPlan& request, const ChoiceSearch& searcher,
                  Assumptions& assumptions, PlanAnswer& answer);

// What ⟦async_save⟧ makes of a plan of zeroplan's own executor, in a sentence: for auto the copy is
// taken into it if its hosts have the memory. Reads model, setup and `lower`, and sets `lower` and
// `choice`. "" for off, which changes nothing.
std::string SettleAsyncSave(AsyncSave asked, const SearchCluster& at, Plan& plan);

// Of ⟦out⟧ where no runtime is named. Throws Error(kUsage) where ⟦allow⟧ is given.
void RefuseAllowForConfig(const PlanRequest& request);
// How a refusal of DeepSpeed's ends where zeroplan's own choice can be written; else "".
std::string OwnConfigInstead(PlanRequest request);

// The config of an answer for another runtime than zeroplan's own executor, as JSON with its name.
std::string RuntimeConfig(const Plan& plan);

// Where to swap is no part of a choice, but a file that leaves it out cannot be run: sets
// kSwapFolder where a setup with disks names none. Returns a sentence that says so, or "".
std::string SetSwapFolder(TrainSetup& setup);

// How large a model, a sequence or a micro-batch fits.

// Finds what `request.largest` asks for, by searches that ask whether anything fits, and sets it in
// `request`: `params` (steps of three digits, so 1 % and less), `seq_len` (steps of 128 tokens) or
// `micro_batch`. `progress` is told each step that is looked at, as "⟦params⟧ 1.00B". Memory hardly
// ever falls as one of these grows, but it may; so some steps beyond the first that does not fit
// are searched too.
//
// Throws Error(kUsage) where other fields leave nothing to find, Error(kNothingFits) where not
// even the smallest fits.
struct LargestAnswer {
  // Names the answer and says why the next larger ones do not fit, all of which were searched, and
  // of which of them that is not proven.
  std::string text;
  uint64_t instructions = 0;  // lowered to find it
  int64_t value = 0;
  std::optional<int64_t> next;  // the next larger one, which does not fit; none: there is none
  bool next_known = true;       // else it was not found to
};
LargestAnswer FindLargest(PlanRequest& request,
                          const std::function<void(const std::string&)>& progress = {});

}  // namespace zeroplan
