// The answer of plan before anything is printed: the choice, its reasons, and the conditions under
// which it changes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hwprofiles/profile.h"
#include "planner/advice/advice.h"
#include "planner/plan/plan_file.h"
#include "planner/request/resolved.h"

namespace zeroplan {

// Receives results as soon as they are known. An unset function receives none.
struct AnswerListener {
  // Receives the choice and the search's result before the advice. `first`: advice to print before
  // the choice. `again`: the search for advice found a better choice, so the one reported before is
  // void.
  std::function<void(const Plan& plan, const SearchResult& result,
                     const std::vector<AdviceLine>& first, bool again)>
      chosen;
  std::function<void(const AdviceLine& line)> advice;
};

// The choice alone, without the search for advice. Throws as FindAnswer does.
Plan FindChoice(ResolvedPlan& request, ChoiceSearch& searcher);

// The smallest change of a request that nothing fits: the fewest fields, in the form of options,
// and the choice that then fits; "" if none was found. Disks::kNo: the change may not use a disk.
enum class Disks : uint8_t { kNo, kYes };
std::string SmallestChangeText(ResolvedPlan& request, Disks disks = Disks::kYes);

// The section `origin` of a plan file.
PlanOrigin OriginOf(const Request& request, const HardwareProfile& hardware);

// The speed that a config costs. `tokens_per_second` is the config's speed with `batch`. Returns a
// sentence that names the best choice for the same GPUs, model and global batch if it is faster by
// more than a few percent, else "". The search is plan's without the config, with a part of the
// usual budget.
std::string ConfigLoss(const ResolvedPlan& request, const BatchSpec& batch,
                       double tokens_per_second);

// The gain over `plan` from lighter optimizer states, which the request does not allow: speed, or
// fewer GPUs, each found by a search. "" if the gain is too small to report, or if the request sets
// the states. `searcher` is the plan's; a part of its work is repeated.
std::string LighterStatesText(ResolvedPlan& request, ChoiceSearch& searcher, const Plan& plan);

// The gain over `plan` from FP8 matmuls, which the request does not set, found by a search: a
// sentence if they are faster by a few percent, else "".
std::string FasterProductsText(const ResolvedPlan& request, ChoiceSearch& searcher,
                               const Plan& plan);

// The same for GPUs that share sequences, if the request leaves that open.
std::string FasterSequencesText(const ResolvedPlan& request, ChoiceSearch& searcher,
                                const Plan& plan);

// Finds fewer GPUs and another batch that are as fast as `plan` or faster. Each has a claim from
// its own search. Fewer GPUs: a node less, one node, and halves down to one; a choice counts as
// being as fast if it is slower by at most kTieMargin. Another batch: AnswersByBatch sets the
// numbers of sequences, and the same GPUs must be kMuchFaster times as fast. Nothing is searched if
// the speed of kernels alone (ChoiceSearch::MostOfKernels) excludes a gain, nor for ⟦quick⟧,
// ⟦largest⟧ or an objective other than speed. `batches`: set if the search looked at batches.
inline constexpr double kMuchFaster = 1.5;
std::vector<AdviceLine> FirstLines(const ResolvedPlan& request, ChoiceSearch& searcher,
                                   const Plan& plan, const Found& found,
                                   std::optional<KnownBatches>& batches);

struct PlanAnswer {
  Plan plan;
  PlanReport report;  // FinishAnswer fills its `assumed` and `notes`
  std::string saves;  // SettleAsyncSave's result for the plan; "" if saves are synchronous
};

// `searcher`: made from the request's inputs. Throws Error(kNothingFits) that names the smallest
// change that fits, if the search finds one.
PlanAnswer FindAnswer(ResolvedPlan& request, ChoiceSearch& searcher,
                      const AnswerListener& listener);

// Adds the notes for the choice to `assumptions`, and copies all assumptions to the report.
void FinishAnswer(const ResolvedPlan& request, const ChoiceSearch& searcher,
                  Assumptions& assumptions, PlanAnswer& answer);

// Whether the host's memory is neither measured nor given, and its kind is a guess too: that of a
// desktop.
bool GuessesHost(const Request& request, const HardwareProfile& hardware, const Cluster& cluster);
// The uncertainties of `choice`, one clause each: the margin of error of its time, guessed
// rates that it rests on, and assumed host memory that it uses. `more_host`: the end of the clause
// about the host, "" if more memory of it would change nothing.
std::vector<std::string> Doubts(const Request& request, const HardwareProfile& hardware,
                                const ModelSpec& model, const TorchRecipe& recipe,
                                const ChoiceEstimate& choice, const Cluster& cluster,
                                std::string_view more_host = "");
// The same for an answer: what twice the memory of a host that is a guess would gain, and by how
// much another choice may be better if that is not proven (`gap`).
std::vector<std::string> Doubts(const ResolvedPlan& request, ChoiceSearch& searcher,
                                const Plan& plan, double gap);

// Applies ⟦async_save⟧ to a plan of zeroplan's own executor and returns a sentence about it. auto
// adds the copy of the state to the plan if the memory of its hosts suffices. Reads model, setup
// and `lower`, and sets `lower` and `choice`. "" for off, which changes nothing.
std::string SettleAsyncSave(AsyncSave asked, const SearchCluster& at, Plan& plan);

// Checks ⟦out⟧ without a runtime's name. Throws Error(kUsage) if ⟦allow⟧ is given.
void RefuseAllowForConfig(const PlanRequest& request);
// The end of an error about a DeepSpeed config, if zeroplan's own choice can be written; else "".
std::string OwnConfigInstead(PlanRequest request);

// The config of an answer for another runtime than zeroplan's own executor, as JSON with its name.
std::string RuntimeConfig(const Plan& plan);

// Sets kSwapFolder if a setup with disks names no swap folder. The folder is no part of a choice,
// but a file without it cannot be run. Returns a sentence about the folder, or "".
std::string SetSwapFolder(TrainSetup& setup);

// How large a model, a sequence or a micro-batch fits.

// Finds the largest value of `request.largest` with which anything fits, and sets it in `request`:
// `params` (steps of three digits, so 1 % and less), `seq_len` (steps of 128 tokens) or
// `micro_batch`. Calls `progress` for each step that it looks at: "⟦params⟧ 1.00B". Memory rarely
// falls as one of these values grows, but it can. Therefore the search continues for some steps
// beyond the first that does not fit.
//
// Throws Error(kUsage) if other fields leave nothing to find, Error(kNothingFits) if even the
// smallest value does not fit.
struct LargestAnswer {
  // Names the answer, the reason why each next larger value does not fit, and the values for which
  // that is not proven. All of them were searched.
  std::string text;
  uint64_t instructions = 0;  // lowered to find it
  int64_t value = 0;
  std::optional<int64_t> next;  // the next larger one, which does not fit; unset: there is none
  bool next_known = true;       // false: the search gave up on `next`, which may fit
};
LargestAnswer FindLargest(PlanRequest& request,
                          const std::function<void(const std::string&)>& progress = {});

}  // namespace zeroplan
