// What train runs where its options leave something open: what 'plan' chooses of that.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/config/zero_config.h"
#include "core/model/model_spec.h"
#include "hwprofiles/profile.h"
#include "planner/plan/plan_file.h"
#include "planner/request/resolve.h"
#include "planner/request/resolved.h"

namespace zeroplan {

// Sequences of a step where neither options nor config say anything of the batch, rounded up to a
// multiple of the ranks. Small, so that a few hundred samples are some steps; fine-tuning recipes
// mostly have 16 to 128.
inline constexpr int64_t kDefaultSequences = 32;

// The batch of `fields`, of what a config says beside them (`config`; empty: none), and of this
// where both leave it open: with a micro-batch alone one micro-step; with an accumulation alone, or
// with nothing, about kDefaultSequences, or as many as the run to resume had (`kept`, 0: none)
// where `ranks` divide them. Adds a line to `notes` where nothing was said.
Asked WithDefaultBatch(Asked fields, const ConfigDocument& config, int ranks, int64_t kept,
                       int64_t seq_len, std::vector<std::string>& notes);

// Makes a host's ranks a node's, and returns how many: hosts may differ in their ranks, so it is as
// many as all can be made of.
int SetNode(ClusterFields& cluster, int ranks, int ranks_per_host);

// A choice that options and config narrow and nobody has made yet.
class OpenChoice {
 public:
  // For `ranks` GPUs, of which a host has `ranks_per_host`, that `hardware` describes. `kept`: what
  // the run to resume was lowered from. Throws Error(kUsage) for what ResolvedPlan refuses.
  OpenChoice(const Request& options, const HardwareProfile& hardware, int ranks, int ranks_per_host,
             std::optional<ProgramRecord> kept, const std::string& nvme_path,
             Assumptions& assumptions);

  const ModelSpec& model() const { return plan_->inputs().model; }
  // What every choice has: precision, optimizer, sequence length.
  const TrainSetup& base() const { return plan_->inputs().base; }
  // The first of all choices, to look at what all have in common.
  TrainSetup Any() const;
  // The run's to resume, where it has what was asked for; else the best by plan's search. A line
  // that says it goes to `assumptions`. Throws Error(kNothingFits) that names the smallest change.
  TrainSetup Choose(Assumptions& assumptions);

 private:
  bool KeepsRun() const;

  Request options_;
  std::string nvme_path_;
  std::optional<ProgramRecord> kept_;
  std::optional<ResolvedPlan> plan_;
};

struct TrainWork;
// --resize-embeddings: work.model gets a row for each token of the tokenizer in tokenizer_folder(),
// where that has more; a line says so. Throws Error(kUsage) if there is no such folder.
void ResizeVocab(TrainWork& work);

}  // namespace zeroplan
