// plan.json, schema "zeroplan.plan/1": a choice that can be run, looked at again and trusted to be
// what was planned. The fields are in docs/metrics.md.
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

// Where what was planned came from: what a run goes on with. Paths are absolute; "": none.
struct PlanOrigin {
  std::string model_folder;  // of the model: its weights and its tokenizer are the run's
  std::string hw_file;       // of a profile that is not built in
  std::string config;        // which decided the optimizer's figures; else they are the run's
};

// The choice that a search made, with everything needed to run it and to say why.

struct Plan {
  const Runtime* runtime = &OwnExecutor();
  TorchRecipe recipe;
  ModelSpec model;
  Cluster cluster;
  TrainSetup setup;       // nothing kAuto
  LowerOptions lower;     // of programs: what they are lowered with
  ChoiceEstimate choice;  // of `setup`
  Objective objective = Objective::kThroughput;
  SearchStats stats;
  std::optional<PlanOrigin> origin;
  // Why this choice, what the others lose, where the answer flips: one paragraph each, unwrapped.
  std::vector<std::string> advice;
};

// `program.setup` with numbers in place of kAuto that lower to the same program.
TrainSetup ResolveAuto(const Program& program);

// The plan of a search's best choice, advice apart. REQUIRES: result.best.
Plan MakePlan(const ChoiceSearch& searcher, const SearchResult& result);

// What a plan file holds that a run needs.
struct PlanFile {
  std::string source;  // the file's name, for messages
  ModelSpec model;
  Cluster cluster;
  TrainSetup setup;
  LowerOptions lower;
  uint64_t fingerprint = 0;  // of the program
  // Predicted; see CheckedProgram.
  Footprint footprint;
  std::array<uint64_t, kSpaces> arena_bytes{};  // one rank
  std::optional<double> step_seconds;
  std::optional<StepTime> step;  // the same by cause, streams apart
  std::vector<std::string> advice;
  std::optional<PlanOrigin> origin;  // files from before it was there lack it
  std::optional<double>
      interruption_rate;  // a second, where the plan was asked for a run like that
};

// The file's text. `deepspeed_config` is the plan's setup as JSON. Throws Error(kUsage) if reading
// that back does not lower to the plan's program: a choice that a DeepSpeed config cannot express.
std::string WritePlan(const Plan& plan, std::string_view deepspeed_config);
inline std::string WritePlan(const Plan& plan) {
  return WritePlan(plan, WriteConfig(plan.setup, plan.model.layers));
}

// What zeroplan's own executor would do instead of what was planned for another runtime.
struct ExecutorBest {
  TrainSetup setup;
  double step_seconds = 0;
  double tokens_per_second = 0;
  double gap = 0;  // as SearchResult's
};

// What a plan says beside its choice.
struct PlanReport {
  double gap = 0;  // SearchResult's
  std::vector<StageBest> stages;
  std::vector<AdviceLine> advice;
  std::vector<std::string> assumed, notes;  // as they are printed: "--dtype bf16"; whole lines
  // Of plans for other runtimes: none where it was not asked, or nothing fits it.
  std::optional<ExecutorBest> executor;
  RunGoal goal;
  std::optional<SaveCost> checkpoint;  // of plans that zeroplan's own executor runs
  std::string config;                  // as JSON
};

// The plan file with all that was said: further keys "gap", "stages", "claims", "assumed" and
// "notes", which ReadPlan passes over. Throws as WritePlan does. Of other runtimes than zeroplan's
// own executor: what was predicted, in the same keys and more (docs/metrics.md), without a program;
// ReadPlan refuses it.
std::string WritePlanReport(const Plan& plan, const PlanReport& report);

// Throws Error(kUsage) "SOURCE:LINE: key: ..." for what is missing, unknown or out of range, for
// another schema, and for a plan of another version of zeroplan (which may lower it to another
// program). The program is not lowered here.
PlanFile ReadPlan(std::string_view text, std::string_view source);

// The program that the plan lowers to. Throws Error(kUsage) if it is not the one that was planned:
// fingerprint or predicted bytes differ, so somebody has edited the file. What the program does not
// depend on (learning rate, betas, schedule, loss scaling, swap folder) may be edited.
Program CheckedProgram(const PlanFile& plan);

// All that a program was lowered from, and its fingerprint: enough to lower it again and to see
// whether that gives the same program. The metrics of a run hold it, in the words of a plan file.

struct ProgramRecord {
  std::string version;  // of the zeroplan that lowered it
  ModelSpec model;
  TrainSetup setup;  // nothing kAuto
  LowerOptions lower;
  uint64_t fingerprint = 0;
};

// One line of JSON: "zeroplan", "model", "seq_len", "gpus", "lower", "config" (as DeepSpeed JSON)
// and "fingerprint". `lower`: what `program` was lowered with.
std::string WriteProgramRecord(const Program& program, const LowerOptions& lower);

// `text` stands in line `line` of `source`, as the member `key`. Throws Error(kUsage)
// "SOURCE:LINE: KEY....: ..." for what is missing, unknown or out of range. Another version's
// record is read as far as it is understood: whether it still gives that program, its fingerprint
// says.
ProgramRecord ReadProgramRecord(std::string_view text, const std::string& key, int line,
                                const std::string& source);

// How much more GPU memory DeepSpeed takes than zeroplan for the same choice.

// GPU memory that DeepSpeed 0.19.6 may use beyond zeroplan's planned total: an upper limit of what
// 20 measured runs of GPT-2 models used (tests/planner/plan/deepspeed_headroom_test.cc holds them).
// A PyTorch model keeps fp32 logits, their gradient and copies, 20 bytes a logit; its allocator and
// DeepSpeed's buffers grow with the parameters, most while stages up to 2 initialise.
ExtraMemory DeepSpeedExtraMemory(const ModelSpec& model, const TrainSetup& setup);

}  // namespace zeroplan
