// What would have let a run live, or made it faster; and what of it, not said, would explain it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/error.h"
#include "planner/advice/smallest_change.h"
#include "planner/estimate/choices.h"
#include "planner/torch_recipe.h"
#include "planner/why/why_parts.h"

namespace zeroplan {
namespace {

// The fields that make `then` of `now`.
std::string ChangedFields(const TrainSetup& now, const TrainSetup& then) {
  std::vector<std::string> fields;
  const auto set = [&](const char* field, const auto& before, const auto& after, auto text) {
    if (before != after) fields.push_back(fmt::format("{} {}", field, text(after)));
  };
  const auto number = [](auto value) { return fmt::format("{}", value); };
  const auto device = [](OffloadDevice of) { return std::string(OffloadDeviceName(of)); };
  set("⟦gpus⟧", now.batch.world_size, then.batch.world_size, number);
  set("⟦stage⟧", now.zero.stage, then.zero.stage, number);
  set("⟦shard_group⟧", now.zero.shard_group, then.zero.shard_group, number);
  set("⟦offload_optimizer⟧", now.zero.offload_optimizer.device, then.zero.offload_optimizer.device,
      device);
  set("⟦offload_ratio⟧", now.zero.offload_optimizer.ratio, then.zero.offload_optimizer.ratio,
      number);
  set("⟦offload_param⟧", now.zero.offload_param.device, then.zero.offload_param.device, device);
  // All that says it, as one says it without the other.
  if (now.recompute != then.recompute) fields.push_back(RecomputeFields(then.recompute));
  set("⟦micro_batch⟧", now.batch.micro_batch, then.batch.micro_batch, number);
  set("⟦grad_accum⟧", now.batch.grad_accum, then.batch.grad_accum, number);
  return fmt::format("{}", fmt::join(fields, " "));
}

// What the program that ran calls them.
std::string Elsewhere(const TrainSetup& now, const TrainSetup& then, const RunLog& log,
                      bool deepspeed) {
  const bool trainer = std::find(log.programs.begin(), log.programs.end(),
                                 "transformers Trainer") != log.programs.end();
  std::vector<std::string> words;
  const auto add = [&](std::string text) { words.push_back(std::move(text)); };
  if (trainer || deepspeed) {
    if (now.batch.micro_batch != then.batch.micro_batch) {
      add(fmt::format("{} {}",
                      trainer ? "per_device_train_batch_size" : "train_micro_batch_size_per_gpu",
                      then.batch.micro_batch));
    }
    if (now.batch.grad_accum != then.batch.grad_accum) {
      add(fmt::format("gradient_accumulation_steps {}", then.batch.grad_accum));
    }
  }
  if (trainer && now.recompute.kind == RecomputeKind::kNone &&
      then.recompute.kind == RecomputeKind::kFull) {
    add("gradient_checkpointing True");
  }
  if (!deepspeed) return fmt::format("{}", fmt::join(words, ", "));
  if (now.zero.stage != then.zero.stage) {
    add(fmt::format("zero_optimization.stage {}", then.zero.stage));
  }
  const auto offload = [&](const char* key, OffloadDevice before, OffloadDevice after) {
    if (before == after) return;
    add(fmt::format("zero_optimization.{}.device {}", key, OffloadDeviceName(after)));
  };
  offload("offload_optimizer", now.zero.offload_optimizer.device,
          then.zero.offload_optimizer.device);
  offload("offload_param", now.zero.offload_param.device, then.zero.offload_param.device);
  return fmt::format("{}", fmt::join(words, ", "));
}

// Another recipe with which the same choice fits.
struct RecipeChange {
  const char *options, *elsewhere;
  void (*apply)(TorchRecipe&);
  bool (*sensible)(const TorchRecipe&);
};
constexpr RecipeChange kRecipeChanges[] = {
    {"⟦expandable_segments⟧", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
     [](TorchRecipe& r) { r.expandable_segments = true; },
     [](const TorchRecipe& r) { return !r.expandable_segments; }},
    {"⟦code⟧ liger", "use_liger_kernel True", [](TorchRecipe& r) { r.code = CodeStyle::kLiger; },
     [](const TorchRecipe& r) { return r.code == CodeStyle::kHf || r.code == CodeStyle::kPlain; }},
    {"⟦optim⟧ adamw_torch_fused", "optim adamw_torch_fused",
     [](TorchRecipe& r) { r.optimizer = TorchOptimizer::kAdamWFused; },
     [](const TorchRecipe& r) {
       return r.optimizer.value_or(TorchOptimizer::kAdamW) == TorchOptimizer::kAdamW;
     }},
    {"⟦optim⟧ adamw_bnb_8bit", "optim adamw_bnb_8bit",
     [](TorchRecipe& r) { r.optimizer = TorchOptimizer::kAdamW8bit; },
     [](const TorchRecipe& r) {
       return !r.optimizer || *r.optimizer == TorchOptimizer::kAdamW ||
              *r.optimizer == TorchOptimizer::kAdamWFused;
     }},
};

double SpeedOf(const WhyChange& change) {
  return change.estimate.time.tokens_per_second.value_or(0);
}

}  // namespace

void FindChanges(MergedRequest& merged, WhyAnswer& answer) {
  const WhyPrediction& predicted = *answer.prediction;
  const TrainSetup& now = predicted.choice.setup;
  answer.changes_sought = true;
  PlanRequest plan;
  plan.common = merged.common;
  // A config whose batch is open keeps the sequences of the run's step, too.
  const ConfigDocument& config = plan.common.config;
  const bool closed =
      config.Says("train_batch_size") ||
      (config.Says("train_micro_batch_size_per_gpu") && config.Says("gradient_accumulation_steps"));
  if (!closed) Set(plan.common.settings.global_batch, now.batch.global_batch());
  Assumptions unused;
  unused.logged = true;
  ResolvedPlan resolved(plan, unused);
  SearchInputs inputs = resolved.inputs();
  SearchSpace full = resolved.full();
  LeaveOutDisks(full);
  const auto as_found = [&](Cluster& cluster) {
    cluster.gpu_capacity_bytes -= std::min(cluster.gpu_capacity_bytes, predicted.beyond);
    if (merged.hardware_known) return;
    // Of the run's hosts nothing is known.
    if (!merged.common.cluster.host_memory) cluster.host_capacity_bytes.reset();
    cluster.pinned_limit_bytes.reset();
  };
  for (SearchCluster& at : inputs.clusters) as_found(at.cluster);
  const bool deepspeed = inputs.runtime->reads_deepspeed_config();
  const auto add = [&](const Change& change, const char* more = "", const char* elsewhere = "") {
    const TrainSetup& then = change.estimate.setup;
    std::string options = ChangedFields(now, then);
    // What is no part of a choice.
    for (const char* field : {"⟦code⟧ ", "⟦optim⟧ ", "⟦host_memory⟧ "}) {
      const size_t at = change.options.find(field);
      if (at == std::string::npos) continue;
      const size_t end = change.options.find(' ', at + std::string_view(field).size());
      std::string first = change.options.substr(at, end == std::string::npos ? end : end - at);
      if (!options.empty()) first.append(" ").append(options);
      options = std::move(first);
    }
    std::string words = Elsewhere(now, then, answer.log, deepspeed);
    if (*more != '\0') options = options.empty() ? more : options + " " + more;
    // What changes nothing, or takes as much and more, is no help; of a host that is short what
    // fits is.
    const auto takes = [](const ChoiceEstimate& of) {
      const TorchFootprint& torch = *of.footprint.torch;
      return std::pair(torch.TensorBytes(), torch.ReservedBytes());
    };
    const bool of_host = answer.log.Cause()->of_host() && HostIsShort(predicted);
    const bool helps = of_host || takes(change.estimate) < takes(predicted.choice);
    if (options.empty() || !helps) return;
    if (*elsewhere != '\0') words = words.empty() ? elsewhere : words + ", " + elsewhere;
    answer.changes.push_back({std::move(options), std::move(words), change.estimate});
  };
  for (const Change& change : SingleChanges(inputs, full)) add(change);
  const auto with = [&](const RecipeChange& recipe) {
    SearchInputs other = inputs;
    recipe.apply(other.recipe);
    return other;
  };
  for (const RecipeChange& recipe : kRecipeChanges) {
    if (!recipe.sensible(inputs.recipe)) continue;
    SearchInputs other = with(recipe);
    if (!HasCodeOf(other.recipe.code, inputs.model)) continue;
    try {
      const std::unique_ptr<ChoiceSearch> search = MakeSearch(std::move(other));
      const std::optional<Found> found = search->Best({}).found;
      if (!found) continue;
      add({"", *found, search->EstimateCandidate(found->candidate)}, recipe.options,
          recipe.elsewhere);
    } catch (const Error&) {
      continue;  // the runtime has it not
    }
  }
  if (answer.changes.empty()) {
    const auto set_gpus = [&](int gpus, SearchInputs& more) {
      resolved.SetMoreGpus(gpus, more);
      as_found(more.clusters.front().cluster);
    };
    answer.single_changes = false;
    if (const std::optional<Change> change = SmallestChange(inputs, full, set_gpus)) add(*change);
  }
  std::stable_sort(answer.changes.begin(), answer.changes.end(),
                   [](const WhyChange& a, const WhyChange& b) { return SpeedOf(a) > SpeedOf(b); });
}

void FindFaster(const MergedRequest& merged, WhyAnswer& answer) {
  constexpr double kFaster = 1.05;
  const TrainSetup& now = answer.prediction->choice.setup;
  const std::optional<double>& speed = answer.prediction->choice.time.tokens_per_second;
  if (!answer.times_known || !speed) return;
  PlanRequest plan;
  plan.common = merged.common;
  plan.common.config = {};
  ClearSettings(plan.common.settings, SettingGroup::kZero);
  AskedSettings& batch = plan.common.settings;
  batch.micro_batch.reset();
  batch.grad_accum.reset();
  Set(batch.global_batch, now.batch.global_batch());
  batch.dtype.emplace(now.precision.dtype);
  Assumptions unused;
  unused.logged = true;
  const ResolvedPlan resolved(plan, unused);
  const std::unique_ptr<ChoiceSearch> search = MakeSearch(resolved.inputs());
  const std::optional<Found> found = search->Best({}).found;
  if (!found || found->tokens_per_second < kFaster * *speed) return;
  const ChoiceEstimate best = search->EstimateCandidate(found->candidate);
  const Runtime& runtime = merged.common.runtime.of();
  answer.findings.push_back(fmt::format(
      "Faster by prediction, with the same GPUs, program and sequences a step: {} ({}), {:.2f} "
      "times "
      "as many tokens/s. 'zeroplan plan' writes its config.",
      runtime.Label(best.setup), BatchText(best.setup.batch), found->tokens_per_second / *speed));
}

namespace {

// What a log often does not say, and its other values.
struct UnsaidValue {
  const char *field, *text;
};
constexpr UnsaidValue kUnsaid[] = {
    {"⟦checkpointing⟧", "full"},   {"⟦param_dtype⟧", "fp32"},
    {"⟦param_dtype⟧", "bf16"},     {"⟦code⟧", "hf"},
    {"⟦code⟧", "liger"},           {"⟦attn⟧", "eager"},
    {"⟦optim⟧", "adamw_bnb_8bit"}, {"⟦offload_optimizer⟧", "cpu"},
};

// The prediction with one value more; unset where the program has it not.
std::optional<ChoiceEstimate> With(const WhyRequest& request, const RunLog& log,
                                   const UnsaidValue& value) {
  WhyRequest other = request;
  if (!SetField(other.common, value.field, value.text)) return std::nullopt;
  other.given[value.field] = value.text;
  try {
    const MergedRequest merged = MergeLog(other, log);
    Assumptions unused;
    unused.logged = true;
    const ResolvedEstimate resolved(merged.common, unused);
    if (resolved.inputs().setups.size() != 1) return std::nullopt;
    Estimate estimate = EstimateChoices(resolved.inputs());
    return std::move(estimate.choices.front());
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

void FindAlternatives(const WhyRequest& request, WhyAnswer& answer) {
  const RunLog& log = answer.log;
  const WhyPrediction& predicted = *answer.prediction;
  const RunFailure* cause = log.Cause();
  const auto tensors_of = [&](const ChoiceEstimate& choice) {
    const TorchFootprint& torch = *choice.footprint.torch;
    const std::optional<TorchPhase> phase =
        cause == nullptr ? std::nullopt : PredictedPhase(cause->phase);
    return static_cast<double>(phase ? torch.peak(*phase).allocated_bytes : torch.TensorBytes());
  };
  const double now = tensors_of(predicted.choice);
  // Of a run that died what it had is the least that it took.
  const double at_least = static_cast<double>(predicted.needed.value_or(0));
  const bool too_little = cause != nullptr && at_least > (1 + kWorthSaying) * now;
  const double measured = cause == nullptr && log.allocated ? log.allocated->value : 0;
  const bool off = measured > 0 && std::abs(measured / now - 1) > kWorthSaying;
  const bool ran_all_the_same = cause == nullptr && measured == 0 && !predicted.choice.fits;
  if (!too_little && !off && !ran_all_the_same) return;
  const bool config = request.given.contains("⟦config⟧") ||
                      std::any_of(answer.used.begin(), answer.used.end(),
                                  [](const UsedFact& fact) { return fact.field == "⟦config⟧"; });
  std::vector<std::string> explain;
  for (const UnsaidValue& value : kUnsaid) {
    const bool said = request.given.contains(value.field) ||
                      std::any_of(answer.used.begin(), answer.used.end(),
                                  [&](const UsedFact& fact) { return fact.field == value.field; });
    // A config says what is offloaded, if only by leaving it out.
    if (said || (config && std::string_view(value.field) == "⟦offload_optimizer⟧")) continue;
    const std::optional<ChoiceEstimate> other = With(request, log, value);
    if (!other) continue;
    const double tensors = tensors_of(*other);
    const bool agrees = ran_all_the_same ? other->fits
                        : too_little     ? tensors >= (1 - kWorthSaying) * at_least
                                         : std::abs(measured / tensors - 1) <= kWorthSaying;
    if (!agrees) continue;
    explain.push_back(fmt::format("{} {} ({})", value.field, value.text,
                                  GiBText(static_cast<uint64_t>(tensors))));
  }
  if (explain.empty()) return;
  answer.findings.push_back(fmt::format(
      "Of what the log does not say this would agree with it: {}. Where it is so, give it.",
      fmt::join(explain, ", or ")));
}

}  // namespace zeroplan
