// Completes the choice of train with the search of 'plan' if its options leave something open.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/model/model_spec.h"
#include "core/settings/zero_config.h"
#include "hwprofiles/profile.h"
#include "planner/plan/plan_file.h"
#include "planner/request/resolve.h"
#include "planner/request/resolved.h"

namespace zeroplan {

// Default sequences of a step if neither options nor config set anything of the batch, rounded up
// to a multiple of the ranks. The number is small, so that a few hundred samples are some steps.
// Fine-tuning recipes mostly have 16 to 128.
inline constexpr int64_t kDefaultSequences = 32;

// The batch from `fields` and from a config (`config`; empty: none). Values that neither sets get
// defaults. A micro-batch alone gets one micro-step, an accumulation that only the config sets a
// micro-batch of 1. Otherwise the batch has about kDefaultSequences, or as many as the run to
// resume had (`kept`, 0: none) if `ranks` divide them. Adds a line to `notes` if nothing was set.
AskedSettings WithDefaultBatch(AskedSettings fields, const ConfigDocument& config, int ranks,
                               int64_t kept, int64_t seq_len, std::vector<std::string>& notes);

// Sets the node size to the greatest common divisor of `ranks` and `ranks_per_host`, because hosts
// may have different numbers of ranks. Returns it.
int SetNode(ClusterFields& cluster, int ranks, int ranks_per_host);

struct TrainWork;

// A choice that options and config restrict, but do not determine.
class OpenChoice {
 public:
  // `hardware` describes `ranks` GPUs, `ranks_per_host` of them on each host. `kept`: the lowering
  // inputs of the run to resume. Throws Error(kUsage) for requests that ResolvedPlan refuses.
  OpenChoice(const Request& options, const HardwareProfile& hardware, int ranks, int ranks_per_host,
             std::optional<ProgramRecord> kept, const std::string& nvme_path,
             Assumptions& assumptions);

  const ModelSpec& model() const { return plan_->inputs().model; }
  // The settings that all choices share: precision, optimizer, sequence length.
  const TrainSetup& base() const { return plan_->inputs().base; }
  // The first of all choices, as an example of what they share.
  TrainSetup Any() const;
  // The choice of the run to resume, if it satisfies the request; else the best by plan's search.
  // Adds a line about it to `assumptions`. Throws Error(kNothingFits) that names the smallest
  // change.
  TrainSetup Choose(Assumptions& assumptions);

 private:
  bool KeepsRun() const;

  Request options_;
  std::string nvme_path_;
  std::optional<ProgramRecord> kept_;
  std::optional<ResolvedPlan> plan_;
};

// --resize-embeddings: gives work.model a row for each token of the tokenizer in
// tokenizer_folder(), if that has more tokens, and prints a line. Throws Error(kUsage) if there is
// no such folder.
void ResizeVocab(TrainWork& work);

}  // namespace zeroplan
