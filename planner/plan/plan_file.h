// plan.json, schema "zeroplan.plan/1": a choice that can be run, inspected and verified to be the
// planned one. docs/metrics.md documents the fields.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/deepspeed_writer.h"
#include "core/lowering/lower.h"
#include "core/model/model_spec.h"
#include "core/program/program.h"
#include "core/settings/zero_config.h"
#include "planner/advice/advice.h"
#include "planner/search/search.h"

namespace zeroplan {

// The sources of a plan, which a run uses too. Paths are absolute; "": none.
struct PlanOrigin {
  std::string model_folder;  // the model's; the run reads its weights and its tokenizer
  std::string hw_file;       // file of a profile that is not built in
  std::string config;        // the config that set the optimizer's figures; "": the run sets them
};

// The choice that a search made, with all inputs to run it and to explain it.

struct Plan {
  const Runtime* runtime = &OwnExecutor();
  TorchRecipe recipe;
  ModelSpec model;
  Cluster cluster;
  TrainSetup setup;       // nothing kAuto
  LowerOptions lower;     // options to lower programs with
  ChoiceEstimate choice;  // the estimate of `setup`
  Objective objective = Objective::kThroughput;
  SearchStats stats;
  std::optional<PlanOrigin> origin;
  // The reasons for this choice, the time that others lose, and the values at which the answer
  // changes: one paragraph each, not wrapped.
  std::vector<std::string> advice;
};

// `program.setup` with kAuto replaced by numbers that lower to the same program.
TrainSetup ResolveAuto(const Program& program);

// The plan of a search's best choice, without advice. REQUIRES: result.best.
Plan MakePlan(const ChoiceSearch& searcher, const SearchResult& result);

// The contents of a plan file that a run needs.
struct PlanFile {
  std::string source;  // the file's name, for messages
  ModelSpec model;
  Cluster cluster;
  TrainSetup setup;
  LowerOptions lower;
  uint64_t fingerprint = 0;  // the program's
  // Predictions; CheckedProgram verifies them.
  Footprint footprint;
  std::array<uint64_t, kSpaces> arena_bytes{};  // one rank
  std::optional<double> step_seconds;
  std::optional<StepTime> step;  // the same by cause, streams separately
  std::vector<std::string> advice;
  std::optional<PlanOrigin> origin;  // unset: older files lack it
  std::optional<double>
      interruption_rate;  // events a second; set if the plan is for a run with interruptions
};

// The file's text. `deepspeed_config` is the plan's setup as JSON. Throws Error(kUsage) if reading
// that back does not lower to the plan's program: a choice that a DeepSpeed config cannot express.
std::string WritePlan(const Plan& plan, std::string_view deepspeed_config);
inline std::string WritePlan(const Plan& plan) {
  return WritePlan(plan, WriteConfig(plan.setup, plan.model.layers));
}

// The choice of zeroplan's own executor, for comparison with a plan for another runtime.
struct ExecutorBest {
  TrainSetup setup;
  double step_seconds = 0;
  double tokens_per_second = 0;
  double gap = 0;  // as SearchResult's
};

// The report of a plan in addition to its choice.
struct PlanReport {
  double gap = 0;  // SearchResult's
  std::vector<StageBest> stages;
  std::vector<AdviceLine> advice;
  std::vector<std::string> assumed, notes;  // as they are printed: "--dtype bf16"; whole lines
  // For plans for other runtimes. Unset: not requested, or nothing fits zeroplan's executor.
  std::optional<ExecutorBest> executor;
  RunGoal goal;
  std::optional<SaveCost> checkpoint;  // for plans that zeroplan's own executor runs
  std::string config;                  // as JSON
};

// The plan file with its report: the additional keys are "gap", "stages", "claims", "assumed" and
// "notes", which ReadPlan skips. Throws as WritePlan does. For runtimes other than zeroplan's own
// executor it contains the predictions, in the same keys and more (docs/metrics.md), but no
// program; ReadPlan refuses it.
std::string WritePlanReport(const Plan& plan, const PlanReport& report);

// Throws Error(kUsage) "SOURCE:LINE: key: ..." for members that are missing, unknown or out of
// range, for another schema, and for a plan of another version of zeroplan, because that may lower
// it to another program. Does not lower the program.
PlanFile ReadPlan(std::string_view text, std::string_view source);

// The program that the plan lowers to. Throws Error(kUsage) if it is not the planned one:
// fingerprint or predicted bytes differ, so somebody has edited the file. Settings that do not
// affect the program (learning rate, betas, schedule, loss scaling, swap folder) may be edited.
Program CheckedProgram(const PlanFile& plan);

// All inputs of lowering for a program, and its fingerprint. They suffice to lower it again and to
// check whether that results in the same program. A run's metrics contain this record in the format
// of a plan file.

struct ProgramRecord {
  std::string version;  // version of zeroplan that lowered the program
  ModelSpec model;
  TrainSetup setup;  // nothing kAuto
  LowerOptions lower;
  uint64_t fingerprint = 0;
};

// One line of JSON: "zeroplan", "model", "seq_len", "gpus", "lower", "config" (as DeepSpeed JSON)
// "config" is DeepSpeed JSON. `lower`: the options that `program` was lowered with.
std::string WriteProgramRecord(const Program& program, const LowerOptions& lower);

// `text` is the member `key` on line `line` of `source`. Throws Error(kUsage) "SOURCE:LINE:
// KEY....: ..." for members that are missing, unknown or out of range. A record of another version
// is read as far as possible; its fingerprint shows whether it still results in that program.
ProgramRecord ReadProgramRecord(std::string_view text, const std::string& key, int line,
                                const std::string& source);

// DeepSpeed's GPU memory in excess of zeroplan's for the same choice.

// GPU memory that DeepSpeed 0.19.6 may use beyond zeroplan's planned total: an upper limit for 20
// measured runs of GPT-2 models (tests/planner/plan/deepspeed_headroom_test.cc has them). A PyTorch
// model keeps fp32 logits, their gradient and copies, 20 bytes a logit. Its allocator and
// DeepSpeed's buffers grow with the parameters, most during the initialization of stages 0 to 2.
ExtraMemory DeepSpeedExtraMemory(const ModelSpec& model, const TrainSetup& setup);

}  // namespace zeroplan
