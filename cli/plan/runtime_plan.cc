#include "cli/plan/runtime_plan.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "cli/common/output.h"
#include "cli/plan/config_for.h"
#include "cli/plan/write_config.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/long_work.h"
#include "core/base/units.h"
#include "core/config/reader_state.h"
#include "planner/advice/advice.h"
#include "planner/estimate/choices.h"
#include "planner/plan/plan.h"
#include "planner/plan/plan_file.h"
#include "planner/request/notes.h"
#include "planner/runtimes/runtime_plan.h"

namespace zeroplan {
namespace {

// How often a search that finds nothing is tried again with twice the GPUs.
constexpr int kDoublings = 6;

// What asks for the runtime, for messages.
std::string AskedBy(const PlanOptions& options) {
  return options.common.runtime.runtime ? "--runtime " + options.common.runtime.runtime.text
                                        : "--out, which means --runtime deepspeed";
}

// What still writes a config where DeepSpeed's model cannot help.
std::string OwnChoice(const PlanOptions& options, OtherRuntime runtime) {
  if (runtime != OtherRuntime::kDeepSpeed || options.deepspeed_file.empty()) return "";
  return "; or use --runtime zeroplan --out for a DeepSpeed config by zeroplan's own choice";
}

// `work`, whose refusals of what is not modelled say what still writes a config.
template <typename Work>
auto OrOwnChoice(const PlanOptions& options, OtherRuntime runtime, Work work) {
  try {
    return work();
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage) throw;
    throw Error(ExitCode::kUsage, error.what() + OwnChoice(options, runtime));
  }
}

void Refuse(const PlanOptions& options, OtherRuntime runtime) {
  const std::string asked = AskedBy(options), own = OwnChoice(options, runtime);
  if (options.largest) {
    ThrowUsage("--largest: {} is not searched with {}; leave one of the two out{}",
               options.largest.text.empty() ? "model" : options.largest.text, asked, own);
  }
  if (options.objective && *options.objective != Objective::kThroughput) {
    ThrowUsage("--objective: {} is not searched with {}; use throughput, or leave it out{}",
               options.objective.text, asked, own);
  }
  if (!options.report_file.empty()) {
    ThrowUsage("--report: {}: the page is of zeroplan's own runtime; leave it or {} out{}",
               options.report_file, asked, own);
  }
  if (options.explain || !options.trace_file.empty()) {
    ThrowUsage(
        "{}: shows a step of zeroplan's own executor, not of {}; leave it out, or use --plan-out "
        "and 'zeroplan explain'{}",
        options.explain ? "--explain" : "--trace", OtherRuntimeName(runtime), own);
  }
  RefuseForRuntime(runtime, asked, options.common);
  if (runtime == OtherRuntime::kDeepSpeed && !options.common.config.empty()) {
    RefuseUnknownKeys(options.common.config, asked);
  }
}

RuntimeKeys KeysOf(const PlanOptions& options, const TrainSetup& base) {
  RuntimeKeys keys;
  keys.selective = options.format() == ConfigFormat::kTorchtitan;
  if (options.common.config.empty()) return keys;
  ZeroConfig& zero = keys.others.emplace(base.zero);
  if (zero.reduce_bucket_elements != kAuto) keys.reduce_buckets = {zero.reduce_bucket_elements};
  keys.overlap_comm = {zero.overlap_comm};
  FillReaderSizes(zero);
  return keys;
}

class RuntimePlanner {
 public:
  RuntimePlanner(const PlanOptions& options, OtherRuntime runtime, ResolvedPlan& request)
      : options_(options), runtime_(runtime), request_(request) {}

  RuntimeSearchInputs Inputs(const SearchSpace& space, int gpus) {
    RuntimeSearchInputs inputs;
    inputs.runtime = runtime_;
    inputs.model = request_.inputs().model;
    inputs.cluster = request_.ClusterOf(gpus).cluster;
    inputs.progress = [this](uint64_t played) {
      work_.Show([&] { return fmt::format("{} choices played", played); });
    };
    inputs.hardware = &request_.hardware();
    inputs.compile = CompileOf(options_.common.runtime);
    SearchSpace of_gpus = space;
    of_gpus.gpus = {gpus};
    const TrainSetup& base = request_.inputs().base;
    inputs.setups = RuntimeSetups(runtime_, inputs.model, of_gpus, base, KeysOf(options_, base));
    if (!options_.deepspeed_file.empty()) {
      const ConfigFormat format = options_.format();
      // One that the runtime itself cannot do either is the runtime's to refuse.
      if (inputs.setups.size() == 1 &&
          !FormatCannot(format, runtime_, inputs.setups.front()).empty()) {
        Search(inputs);
      }
      KeepWritable(format, runtime_, inputs.setups);
    }
    return inputs;
  }

  RuntimeSearchResult Search(const RuntimeSearchInputs& inputs) const {
    return OrOwnChoice(options_, runtime_, [&] { return SearchRuntime(inputs); });
  }

  [[noreturn]] void ThrowNothingFits(const RuntimeSearchInputs& inputs,
                                     const RuntimeSearchResult& result) {
    const std::string misfits = RuntimeMisfitText(inputs, result);
    throw Error(ExitCode::kNothingFits,
                fmt::format("nothing fits {}. {}{}", OtherRuntimeName(runtime_),
                            SmallestChange(inputs.cluster), misfits));
  }

 private:
  // Options freed first, then more GPUs.
  std::string SmallestChange(const Cluster& cluster) {
    const SearchSpace& asked = request_.inputs().space;
    SearchSpace free = request_.full();
    free.micro_batches = asked.micro_batches;
    free.grad_accums = asked.grad_accums;
    free.global_batch = asked.global_batch;
    const std::string pinned = options_.common.config.empty()
                                   ? "without --stage, --offload-... and --checkpointing"
                                   : "with other values in " + options_.common.config;
    if (const std::optional<std::string> fits = Fits(free, cluster.gpus)) {
      return fmt::format("It would fit {}: {}", pinned, *fits);
    }
    int gpus = cluster.gpus;
    for (int i = 0; i < kDoublings; ++i) {
      gpus *= 2;
      if (gpus > cluster.gpus_per_node && gpus % cluster.gpus_per_node != 0) break;
      if (BatchPairs(asked, gpus).empty()) break;
      if (const std::optional<std::string> fits = Fits(asked, gpus)) {
        return fmt::format("It would fit with --gpus {}: {}", gpus, *fits);
      }
    }
    return "No change was found that fits, of freeing options and of more GPUs; try a smaller "
           "model or another --hw";
  }

  std::optional<std::string> Fits(const SearchSpace& space, int gpus) {
    const RuntimeSearchInputs inputs = Inputs(space, gpus);
    const RuntimeSearchResult result = Search(inputs);
    if (!result.best) return std::nullopt;
    const RuntimeJudged& best = *result.stages[*result.best].best;
    return fmt::format("{} ({} a GPU)", RuntimeChoiceText(runtime_, best.choice.setup),
                       FormatBytes(best.choice.footprint.DeviceBytes()));
  }

  LongWork work_{"Searching"};
  const PlanOptions& options_;
  const OtherRuntime runtime_;
  ResolvedPlan& request_;
};

// What zeroplan's own executor would reach; its plan too, where --plan-out wants it.
std::optional<ExecutorBest> AskExecutor(const PlanOptions& options, const ResolvedPlan& request) {
  SearchInputs inputs = request.inputs();
  inputs.effort = options.effort.value_or(1);
  LongWork work("Searching for zeroplan's own executor");
  inputs.progress = [&](uint64_t programs) {
    work.Show([&] { return fmt::format("{} programs lowered", programs); });
  };
  Searcher searcher(std::move(inputs));
  const SearchResult result = searcher.Run();
  if (!result.best) {
    if (options.plan_file.empty()) return std::nullopt;
    throw Error(ExitCode::kNothingFits,
                fmt::format("--plan-out {}: nothing fits zeroplan's own executor; leave it out, or "
                            "use --runtime zeroplan to see what would",
                            options.plan_file));
  }
  Plan plan = MakePlan(searcher, result);
  if (!options.plan_file.empty()) {
    for (const AdviceLine& line : Advise(searcher, result, request.hardware(), {}, true).lines) {
      plan.advice.push_back(line.text);
    }
    WriteOutput(options.plan_file, WritePlan(plan));
    LogInfo(
        "--plan-out {}: the best plan of zeroplan's own executor, for 'train --plan' and "
        "'explain'; not what was chosen for another program",
        options.plan_file);
  }
  return ExecutorBest{plan.setup, *plan.choice.time.total_seconds,
                      *plan.choice.time.tokens_per_second, result.gap};
}

// What the predictions take for granted of the code that is trained.
void AddNotes(const RuntimePlan& plan, std::vector<std::string>& notes) {
  const TrainSetup& setup = plan.best().choice.setup;
  const bool deepspeed = plan.runtime == OtherRuntime::kDeepSpeed;
  if (setup.recompute.kind == RecomputeKind::kFull) {
    notes.push_back(fmt::format(
        "Recompute is no key of {}: the model's code switches it on (torch.utils.checkpoint around "
        "every layer).",
        OtherRuntimeName(plan.runtime)));
  }
  notes.push_back(
      fmt::format("Predicted for plain PyTorch code ({}) with fused attention and {}; "
                  "docs/runtimes.md has what "
                  "is assumed and what is not modelled.",
                  !plan.compile.layers ? "not compiled; --compile layers is for code that is"
                  : plan.compile.loss  ? "layers and loss under torch.compile"
                                       : "layers under torch.compile",
                  deepspeed ? "DeepSpeed's own optimizers" : "torch.optim.AdamW(fused=True)"));
}

}  // namespace

std::optional<OtherRuntime> RuntimeOf(const PlanOptions& options) {
  if (!options.common.runtime.runtime && !options.deepspeed_file.empty())
    return OtherRuntime::kDeepSpeed;
  if (!options.common.runtime.IsOther()) return std::nullopt;
  return *options.common.runtime.runtime == RuntimeKind::kFsdp2 ? OtherRuntime::kFsdp2
                                                                : OtherRuntime::kDeepSpeed;
}

void RunRuntimePlan(const PlanOptions& options, OtherRuntime runtime) {
  const auto start = std::chrono::steady_clock::now();
  Refuse(options, runtime);
  std::vector<WantedFile> wanted = FilesOfOut(options, runtime);
  wanted.push_back({"--plan-out", options.plan_file});
  CheckWritable(wanted);
  const std::string& out = options.deepspeed_file;
  if (!out.empty() && !options.common.runtime.runtime) {
    LogInfo(
        "--out {} without --runtime: planned for DeepSpeed, by its own memory and time; "
        "--plan-out has the plan of zeroplan's own executor",
        out);
  }
  PlanRequest for_executor = options;
  for_executor.for_deepspeed = false;
  Assumptions assumptions;
  ResolvedPlan request(for_executor, assumptions);
  // What has no effect on zeroplan's executor says nothing of DeepSpeed.
  std::erase_if(assumptions.notes, [&](const std::string& note) {
    return !options.common.config.empty() && note.starts_with(options.common.config);
  });
  if (runtime == OtherRuntime::kDeepSpeed && !out.empty())
    request.CheckDeepSpeedCan(options.format());
  const TrainSetup& base = request.inputs().base;
  OrOwnChoice(options, runtime, [&] {
    RefuseUnfusedAttention(request.inputs().model, base.precision.dtype, request.hardware(),
                           AskedBy(options));
  });
  RuntimePlan plan;
  plan.goal = ResolveGoal(options.common.goal, base.batch.seq_len);
  RuntimePlanner planner(options, runtime, request);
  const RuntimeSearchInputs inputs =
      planner.Inputs(request.inputs().space, request.inputs().space.gpus.back());
  plan.search = planner.Search(inputs);
  if (!plan.search.best) planner.ThrowNothingFits(inputs, plan.search);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  plan.seconds = seconds.count();
  plan.runtime = runtime;
  plan.model = inputs.model;
  plan.cluster = inputs.cluster;
  plan.compile = inputs.compile;
  plan.space = RuntimeSpaceText(runtime, inputs.setups);
  plan.asked_executor = !options.quick || !options.plan_file.empty();
  if (plan.asked_executor) plan.executor = AskExecutor(options, request);
  const TrainSetup& best = plan.best().choice.setup;
  NoteGuesses(request.hardware(), plan.cluster, std::span(&best, 1), assumptions);
  AddNotes(plan, assumptions.notes);
  plan.assumed = std::move(assumptions.assumed);
  plan.notes = std::move(assumptions.notes);

  const ConfigSource source = SourceOf(options, runtime, plan.best().choice.footprint.runtime,
                                       plan.model, best, plan.cluster.shape());
  const bool json = options.as_json();
  if (json) {
    WriteOutput("", RuntimePlanJson(plan, ConfigText(source)));
  } else {
    WriteReport("", RuntimePlanText(plan));
  }
  if (!out.empty()) WriteConfigFile(source, json);
}

}  // namespace zeroplan
