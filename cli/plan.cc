// zeroplan plan: searches the choices, says why, writes what DeepSpeed or train take.
#include "planner/plan.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>

#include "cli/app.h"
#include "cli/common_options.h"
#include "cli/output.h"
#include "cli/parse.h"
#include "cli/predicted_trace.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/units.h"
#include "core/config/deepspeed_writer.h"
#include "core/config/effective_values.h"
#include "cost_models/step_time.h"
#include "planner/advice.h"
#include "planner/choices.h"
#include "planner/deepspeed_headroom.h"
#include "planner/explain.h"
#include "planner/plan_file.h"
#include "planner/report_rows.h"
#include "planner/smallest_change.h"

namespace zeroplan {
namespace {

constexpr const char* kFooter = R"(Examples:
  zeroplan plan --model gpt2-10b --gpu-memory 32GB
  zeroplan plan --params 5B --hw dgx-a100-40gb --gpus 16 --global-batch 256
  zeroplan plan --model gpt3-6.7b --gpus 8 --out ds_config.json --plan-out plan.json
  zeroplan plan --model gpt2-xl --gpus 8 --stage 3 --explain
What an option leaves open is searched; what it sets stays. Exit code 3 if nothing fits: the message
names the smallest change that would.)";

struct PlanOptions {
  CommonOptions common;
  std::string objective = "throughput";
  std::string deepspeed_file, plan_file, trace_file;
  bool explain = false;
};

// Everything a search needs, with the cost models it points to.
class PlanRequest {
 public:
  PlanRequest(const PlanOptions& options, Assumptions& assumptions)
      : options_(options.common), hardware_(ResolveHardware(options_, assumptions)) {
    inputs_.objective = static_cast<Objective>(
        ParseWord(options.objective, "--objective", {"throughput", "headroom", "fewest-gpus"}));
    inputs_.model = ResolveModel(options_, assumptions);
    cluster_ = ResolveCluster(options_, hardware_, assumptions);
    inputs_.lower.backend = Backend::kCuda;
    inputs_.lower.flash_attention = hardware_.gpu.flash_attention;
    full_ = DefaultSpace(inputs_.model, cluster_.gpus, cluster_.gpus_per_node,
                         inputs_.objective == Objective::kFewestGpus);
    if (options_.config.empty()) {
      FromOptions(assumptions);
    } else {
      FromConfig(assumptions);
    }
    if (!options.deepspeed_file.empty()) {
      if (inputs_.space.recompute_every == std::vector<int>{kSelective}) {
        ThrowUsage(
            "--out: DeepSpeed has no selective recompute; use --checkpointing none or full, or "
            "--plan-out for a plan that zeroplan runs");
      }
      inputs_.excluded = [](const TrainSetup& s) { return !DeepSpeedCannot(s).empty(); };
      inputs_.extra_memory = [model = inputs_.model](const TrainSetup& s) {
        return DeepSpeedExtraMemory(model, s);
      };
    }
    for (int gpus : inputs_.space.gpus) inputs_.clusters.push_back(ClusterOf(gpus));
  }

  const SearchInputs& inputs() const { return inputs_; }
  const SearchSpace& full() const { return full_; }
  const HardwareProfile& hardware() const { return hardware_; }

  SearchCluster ClusterOf(int gpus) {
    Cluster cluster = cluster_;
    cluster.gpus = gpus;
    const int per_node = options_.gpus_per_node.empty()
                             ? static_cast<int>(std::llround(hardware_.node.gpus.value))
                             : cluster_.gpus_per_node;
    cluster.gpus_per_node = std::min(gpus, per_node);
    cluster.runtime_bytes = RuntimeBytes(hardware_, gpus);
    costs_.emplace_back(hardware_, ClusterShape{gpus, cluster.gpus_per_node});
    return {cluster, &costs_.back()};
  }

 private:
  void FromOptions(Assumptions& assumptions) {
    CommonOptions without_batch = options_;
    without_batch.micro_batch = without_batch.grad_accum = "1";
    without_batch.global_batch.clear();
    inputs_.base =
        ResolveBaseSetup(without_batch, inputs_.model, hardware_, cluster_.gpus, assumptions);
    const int64_t seq_len = inputs_.base.batch.seq_len;
    const auto global = ParseOptionalWhole(options_.global_batch, "--global-batch", 1, kMaxBatch);
    SetBatches(full_, global, seq_len);
    inputs_.space = full_;
    SearchSpace& space = inputs_.space;
    Pin(ParseOptionalWhole(options_.micro_batch, "--micro-batch", 1, kMaxBatch),
        space.micro_batches);
    Pin(ParseOptionalWhole(options_.grad_accum, "--grad-accum", 1, kMaxBatch), space.grad_accums);
    CheckBatch(global, assumptions);
    if (!options_.stage.empty()) space.stages = ParseStages(options_.stage, "--stage");
    if (!options_.offload_param.empty()) {
      space.offload_param = ParseOffload(options_.offload_param, "--offload-param");
    }
    PinOptimizer();
    PinRecompute();
  }

  static void Pin(const std::optional<int64_t>& value, std::vector<int64_t>& list) {
    if (value) list = {*value};
  }

  void CheckBatch(const std::optional<int64_t>& global, Assumptions& assumptions) {
    const SearchSpace& space = inputs_.space;
    if (!global) {
      if (space.grad_accums.size() > 1 || space.micro_batches.size() > 1) {
        assumptions.notes.push_back(
            fmt::format("Batch: searched, at most {} sequences a step ({} tokens, GPT-3's smallest "
                        "batch); --global-batch sets it.",
                        std::max<int64_t>(space.max_step_sequences, cluster_.gpus),
                        FormatCount(static_cast<uint64_t>(kDefaultStepTokens))));
      }
      return;
    }
    for (int gpus : space.gpus) {
      if (!BatchPairs(space, gpus).empty()) return;
    }
    // Of __int128: each factor may be two billion.
    const auto unit = static_cast<__int128>(cluster_.gpus) *
                      (options_.micro_batch.empty() ? 1 : space.micro_batches.front()) *
                      (options_.grad_accum.empty() ? 1 : space.grad_accums.front());
    const std::string fix = unit <= kMaxBatch
                                ? fmt::format("use a multiple of {}", static_cast<int64_t>(unit))
                                : "use smaller parts";
    ThrowUsage("--global-batch: {} is not a micro-batch times accumulation times --gpus {}; {}",
               *global, cluster_.gpus, fix);
  }

  void PinOptimizer() {
    std::vector<OptimizerOffload>& list = inputs_.space.offload_optimizer;
    if (!options_.offload_optimizer.empty()) {
      const std::vector<OffloadDevice> devices =
          ParseOffload(options_.offload_optimizer, "--offload-optimizer");
      std::erase_if(list, [&](const OptimizerOffload& o) {
        return std::find(devices.begin(), devices.end(), o.device) == devices.end();
      });
    }
    if (options_.offload_ratio.empty()) return;
    const double ratio = ParseRatio(options_.offload_ratio, "--offload-ratio");
    std::erase_if(list, [&](const OptimizerOffload& o) {
      return o.device == OffloadDevice::kCpu || (o.device == OffloadDevice::kNvme && ratio < 1);
    });
    list.push_back({OffloadDevice::kCpu, ratio});
  }

  void PinRecompute() {
    std::vector<int>& list = inputs_.space.recompute_every;
    const auto every =
        ParseOptionalWhole(options_.checkpoint_every, "--checkpoint-every", 1, 65535);
    Checkpointing kind = every ? Checkpointing::kFull : Checkpointing::kAll;
    if (!options_.checkpointing.empty()) kind = ParseCheckpointing(options_);
    if (every) {
      std::erase_if(list, [](int listed) { return listed > 0; });
      list.push_back(static_cast<int>(*every));
    }
    std::erase_if(list, [kind](int listed) {
      return (kind == Checkpointing::kNone && listed != 0) ||
             (kind == Checkpointing::kSelective && listed != kSelective) ||
             (kind == Checkpointing::kFull && listed <= 0);
    });
  }

  // What the config sets stays; what it leaves to "auto" is searched.
  void FromConfig(Assumptions& assumptions) {
    inputs_.base = ResolveConfig(options_, inputs_.model, hardware_, cluster_.gpus, assumptions);
    const TrainSetup& base = inputs_.base;
    const JsonNode root = ParseJsonText(ReadTextFile(options_.config), options_.config);
    auto open = [&](const char* key, const std::string& option) {
      const JsonNode* node = root.Find(key);
      const bool set = node != nullptr && !node->is_null() &&
                       !(node->is_string() && node->scalar.get<std::string>() == "auto");
      return !set && option.empty();
    };
    const bool open_global = open("train_batch_size", options_.global_batch);
    const bool open_micro = open("train_micro_batch_size_per_gpu", options_.micro_batch);
    const bool open_accum = open("gradient_accumulation_steps", options_.grad_accum);
    SetBatches(full_, open_global ? std::nullopt : std::optional(base.batch.global_batch()),
               base.batch.seq_len);
    inputs_.space = full_;
    SearchSpace& space = inputs_.space;
    if (!open_micro) space.micro_batches = {base.batch.micro_batch};
    if (!open_accum) space.grad_accums = {base.batch.grad_accum};
    const Candidate fixed = CandidateOf(base);
    space.stages = {fixed.stage};
    space.offload_optimizer = {fixed.optimizer};
    space.offload_param = {fixed.param};
    space.recompute_every = {fixed.recompute_every};
    if (fixed.reduce_bucket_elements != kAuto) {
      space.reduce_bucket_elements = {fixed.reduce_bucket_elements};
    }
    if (fixed.prefetch_bucket_elements != kAuto) {
      space.prefetch_bucket_elements = {fixed.prefetch_bucket_elements};
    }
  }

  const CommonOptions& options_;
  HardwareProfile hardware_;
  Cluster cluster_;
  SearchInputs inputs_;
  SearchSpace full_;
  std::deque<CostModel> costs_;
};

[[noreturn]] void ThrowNothingFits(PlanRequest& request, const SearchResult& result) {
  std::string closest;
  for (const StageBest& stage : result.stages) {
    if (stage.estimate.gpu_total_bytes == 0) continue;  // nothing of it can run
    const std::string why =
        stage.estimate.fits
            ? fmt::format("takes {} a GPU, and what DeepSpeed takes beyond that does not fit",
                          FormatBytes(stage.estimate.gpu_total_bytes))
            : stage.estimate.why_not;
    closest += fmt::format("\n  {}, micro-batch {}: {}", SetupLabel(stage.estimate.setup),
                           stage.estimate.setup.batch.micro_batch, why);
  }
  const std::optional<Change> change = SmallestChange(
      request.inputs(), request.full(), [&](int gpus) { return request.ClusterOf(gpus); });
  std::string fix = result.gave_up
                        ? fmt::format(
                              "the search gave up after {} programs; pin some choices (--stage, "
                              "--checkpointing, --offload-optimizer) to look at the others",
                              result.stats.lowered)
                        : "no change was found that fits, more GPUs as far as the hardware profile "
                          "goes included; "
                          "try a smaller model or another --hw";
  if (change) {
    fix =
        fmt::format("smallest change that fits: {} ({}; {} a GPU, {:.0f} tokens/s)",
                    change->options, SetupLabel(change->estimate.setup),
                    FormatBytes(change->estimate.gpu_total_bytes), change->found.tokens_per_second);
  }
  throw Error(ExitCode::kNothingFits, fmt::format("nothing fits. {}{}", fix, closest));
}

std::string Headline(const Plan& plan) {
  const Cluster& cluster = plan.cluster;
  return Wrap(
      fmt::format("{}: {} parameters, sequence {}, {}; {} x {}{}, {} a GPU", plan.model.name,
                  FormatCount(plan.model.ParamCount()), plan.setup.batch.seq_len,
                  DtypeName(plan.setup.precision.dtype), cluster.gpus, cluster.gpu_name,
                  cluster.nodes() == 1 ? "" : fmt::format(", {} nodes", cluster.nodes()),
                  FormatBytes(cluster.gpu_capacity_bytes)),
      2);
}

std::string StatsLine(const SearchStats& stats) {
  const std::string left =
      stats.left > 0 ? fmt::format(", {} left when its budget was spent", stats.left) : "";
  return Wrap(
      fmt::format("Searched {} choices in {}: {} cut by a bound on memory, {} by a bound on "
                  "their score, {} judged by their program{}; {} programs lowered.",
                  stats.candidates, FormatSeconds(stats.seconds), stats.cut_by_memory,
                  stats.cut_by_score, stats.judged, left, stats.lowered),
      2);
}

void WriteDeepSpeed(const PlanOptions& options, const Plan& plan) {
  WriteOutput(options.deepspeed_file, WriteDeepSpeedConfig(plan.setup, plan.model.layers));
  const uint64_t headroom =
      DeepSpeedExtraMemory(plan.model, plan.setup).Of(plan.setup.batch.micro_batch);
  LogInfo(
      "--out {}: DeepSpeed needs more GPU memory than zeroplan's {} for the same choice; this plan "
      "leaves {} for that, as much as measured runs of DeepSpeed 0.19.6 took at most",
      options.deepspeed_file, FormatBytes(plan.choice.gpu_total_bytes), FormatBytes(headroom));
  if (plan.setup.recompute.every > 0) {
    LogInfo("--out {}: recompute is switched on in the model's code for DeepSpeed",
            options.deepspeed_file);
  }
}

// Where to swap is no part of a choice, but a file that leaves it out cannot be run.
void SetSwapFolder(TrainSetup& setup) {
  constexpr const char* kSwapFolder = "/local_nvme";
  bool set = false;
  auto fill = [&](auto& offload) {
    if (offload.device != OffloadDevice::kNvme || !offload.nvme_path.empty()) return;
    offload.nvme_path = kSwapFolder;
    set = true;
  };
  fill(setup.zero.offload_optimizer);
  fill(setup.zero.offload_param);
  if (set) {
    LogInfo("The plan swaps to {}: edit nvme_path, or give train --nvme-path DIR", kSwapFolder);
  }
}

void RunPlan(const PlanOptions& options) {
  Assumptions assumptions;
  PlanRequest request(options, assumptions);
  Searcher searcher(request.inputs());
  const SearchResult result = searcher.Run();
  if (!result.best) ThrowNothingFits(request, result);
  Plan plan = MakePlan(searcher, result);
  plan.advice = Advise(searcher, result, request.hardware());

  std::string text = Headline(plan) + '\n';
  for (const std::string& line : plan.advice) text += Wrap(line, 2);
  text += '\n' + StatsLine(plan.stats);
  if (!assumptions.assumed.empty()) {
    text += Wrap(fmt::format("Assumed: {}", fmt::join(assumptions.assumed, ", ")), 2);
  }
  for (const std::string& note : assumptions.notes) text += Wrap(note, 2);
  const SearchCluster& at = searcher.ClusterOf(CandidateOf(plan.setup));
  if (options.explain || !options.trace_file.empty()) {
    const Program program = Lower(plan.model, plan.setup, plan.lower);
    if (options.explain) text += '\n' + Explain(program, plan.choice, at.cluster, *at.costs);
    if (!options.trace_file.empty()) {
      WritePredictedTrace(program, *at.costs, options.trace_file);
    }
  }
  WriteOutput("", text);
  if (!options.plan_file.empty() || !options.deepspeed_file.empty()) SetSwapFolder(plan.setup);
  if (!options.plan_file.empty()) WriteOutput(options.plan_file, WritePlan(plan));
  if (!options.deepspeed_file.empty()) WriteDeepSpeed(options, plan);
}

}  // namespace

void RegisterPlan(CLI::App& app) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand(
      "plan", "The best stage, offload, recompute and batch, and why the others lose");
  command->footer(kFooter);
  AddModelOptions(*command, options->common);
  AddClusterOptions(*command, options->common);
  AddBatchOptions(*command, options->common, /*searched=*/true);
  AddZeroOptions(*command, options->common, /*all_default=*/true, /*searched=*/true);
  AddOption(*command, "Search", "--objective", options->objective,
            "throughput|headroom|fewest-gpus",
            "What is best: most tokens/s, most GPU memory left, or fewest of --gpus (default "
            "throughput)");
  const char* group = "Output";
  AddOption(
      *command, group, "--out", options->deepspeed_file, "FILE",
      "A DeepSpeed config of the plan; only what DeepSpeed can do is considered then, with the "
      "memory that it takes beyond zeroplan's");
  AddOption(*command, group, "--plan-out", options->plan_file, "FILE",
            "The whole plan, for 'train --plan' and 'explain'");
  AddOption(*command, group, "--trace", options->trace_file, "FILE",
            "The predicted step as a Chrome trace");
  command
      ->add_flag("--explain", options->explain,
                 "Also the step: phases, peaks and what makes them, streams over time")
      ->group(group);
  command->callback([options] { RunPlan(*options); });
}

}  // namespace zeroplan
