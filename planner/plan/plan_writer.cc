#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "core/base/build_info.h"
#include "core/base/error.h"
#include "core/base/version.h"
#include "core/families/load_model.h"
#include "core/model/model_family.h"
#include "core/model/model_fields.h"
#include "core/program/fingerprint.h"
#include "planner/estimate/estimate.h"
#include "planner/plan/plan_fields.h"
#include "planner/plan/plan_file.h"
#include "planner/report/choice_json.h"

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;

// The shortest decimal that is read back as the same float.
Json FloatJson(float value) { return Json::parse(fmt::format("{}", value)); }

Json ModelJson(const ModelSpec& model) {
  Json json;
  ForEachWrittenField(model, [&]<typename T>(const ModelField& field, const T& value) {
    if constexpr (std::is_same_v<T, float>) {
      json[field.key] = FloatJson(value);
    } else if constexpr (std::is_same_v<T, const ModelFamily*>) {
      if (!FamilyInFile(*value).empty()) json[field.key] = FamilyInFile(*value);
    } else if constexpr (std::is_same_v<T, RotaryScaling>) {
      json[field.key] = RotaryScalingName(value);
    } else {
      json[field.key] = value;
    }
  });
  return json;
}

template <typename T>
Json FieldsJson(const T& fields) {
  Json json;
  ForEachField(fields, [&]<typename V>(const PlanField& field, const V& value) {
    if (field.sparse && value == V{}) return;
    Json& out = json[field.key];
    if constexpr (std::is_same_v<V, std::string>) {
      if (!field.nullable || !value.empty()) out = value;
    } else if constexpr (std::is_same_v<V, std::optional<uint64_t>>) {
      out = Nullable(value);
    } else if constexpr (std::is_same_v<V, Backend>) {
      out = value == Backend::kCpu ? "cpu" : "cuda";
    } else {
      out = value;
    }
  });
  return json;
}

Json PredictedJson(const ChoiceEstimate& choice) {
  Json arenas;
  for (size_t s = 0; s < kSpaces; ++s) {
    arenas[std::string(SpaceName(static_cast<Space>(s)))] = choice.memory.arena_bytes[s];
  }
  Json json = {{"gpu_bytes", GpuBytesJson(choice.footprint)},
               {"rank_arena_bytes", std::move(arenas)},
               {"host_bytes", HostBytesJson(choice.footprint)}};
  json.update(StepFiguresJson(choice));
  return json;
}

Json SearchJson(const Plan& plan) {
  const SearchStats& stats = plan.stats;
  return {{"objective", ObjectiveName(plan.objective)},
          {"candidates", stats.candidates},
          {"cut_by_memory", stats.cut_by_memory},
          {"cut_by_score", stats.cut_by_score},
          {"judged", stats.judged},
          {"left", stats.left},
          {"lowered", stats.lowered},
          {"seconds", stats.seconds}};
}

// The record of `candidate` in the plan's run.
Json CandidateJson(const Candidate& candidate, const Plan& plan) {
  return ChoiceJson(SetupOf(candidate, plan.setup), RecipeOf(plan));
}

Json LostJson(const TimeEstimate& other, const TimeEstimate& best) {
  const CauseSeconds lost = SecondsLost(other, best);
  return {{"compute", lost.compute},
          {"exposed_comm", lost.exposed_comm},
          {"exposed_offload", lost.exposed_offload},
          {"optimizer", lost.optimizer},
          {"total", lost.total}};
}

// The best choice of each stage, or the one closest to fitting. For other runtimes the choice
// includes all predictions.
Json StagesJson(const Plan& plan, const PlanReport& report) {
  const bool programs = plan.runtime->facts().trains_here;
  Json stages = Json::array();
  for (const StageBest& stage : report.stages) {
    if (!stage.can_run()) continue;
    Json json = {{"stage", stage.stage}, {"fits", stage.candidate.has_value()}};
    const Candidate shown = stage.candidate.value_or(CandidateOf(stage.estimate.setup));
    json["choice"] =
        programs ? CandidateJson(shown, plan) : RuntimeChoiceJson(stage.estimate, RecipeOf(plan));
    json["gpu_bytes"] = GpuBytesJson(stage.estimate.footprint);
    json["host_bytes"] = HostBytesJson(stage.estimate.footprint);
    if (stage.candidate) {
      json["proven"] = stage.proven;
      json["step_seconds"] = StepSecondsJson(stage.estimate.time);
      json["tokens_per_second"] = Nullable(stage.estimate.time.tokens_per_second);
      json["lost_seconds"] = LostJson(stage.estimate.time, plan.choice.time);
    } else {
      json["why_not"] = stage.estimate.why_not;
    }
    stages.push_back(std::move(json));
  }
  return stages;
}

// Converts whole numbers to integers.
Json NumberJson(double value) {
  if (value == std::floor(value)) return static_cast<int64_t>(value);
  return value;
}

Json ClaimJson(const AdviceLine& line, const Claim& claim, const Plan& plan) {
  Json change = Json::object();
  if (claim.gpu_memory_bytes) change["gpu_memory_bytes"] = *claim.gpu_memory_bytes;
  if (claim.global_batch) change["global_batch"] = *claim.global_batch;
  if (claim.gpus) change["gpus"] = *claim.gpus;
  if (claim.bandwidth_scale) change["bandwidth_scale"] = *claim.bandwidth_scale;
  if (!claim.stages.empty()) change["stages"] = claim.stages;
  Json answer = nullptr;
  if (claim.found) {
    answer = CandidateJson(claim.found->candidate, plan);
    answer["tokens_per_second"] = claim.found->tokens_per_second;
  }
  Json holds = nullptr;
  if (claim.holds_from) {
    holds = {NumberJson(*claim.holds_from), NumberJson(*claim.holds_to)};
  }
  Json others = Json::array();
  for (const Found& other : claim.or_else) others.push_back(CandidateJson(other.candidate, plan));
  return {{"kind", AdviceKindName(line.kind)}, {"change", std::move(change)},
          {"answer", std::move(answer)},       {"or_else", std::move(others)},
          {"holds", std::move(holds)},         {"gap", claim.gap}};
}

// The build that made the plan; null where it does not know a version.
Json BuildJson() {
  const BuildInfo& build = GetBuildInfo();
  const auto known = [](std::string_view text) {
    return text.empty() ? Json(nullptr) : Json(text);
  };
  return {{"commit", known(build.commit)},
          {"changed", build.changed},
          {"compiler", build.compiler},
          {"cuda", known(build.cuda)},
          {"nccl", known(build.nccl)},
          {"cudnn", known(build.cudnn)},
          {"architectures", known(build.architectures)}};
}

Json PlanJson(const Plan& plan, std::string_view deepspeed_config, uint64_t fingerprint) {
  return {{"schema", "zeroplan.plan/1"},
          {"zeroplan", kVersion},
          {"build", BuildJson()},
          {"model", ModelJson(plan.model)},
          {"seq_len", plan.setup.batch.seq_len},
          {"cluster", FieldsJson(plan.cluster)},
          {"lower", FieldsJson(plan.lower)},
          {"config", Json::parse(deepspeed_config)},
          {"fingerprint", FormatFingerprint(fingerprint)},
          {"predicted", PredictedJson(plan.choice)},
          {"search", SearchJson(plan)},
          {"advice", plan.advice}};
}

// The plan for a runtime whose choices are not lowered to programs.
Json RuntimePlanJson(const Plan& plan, const PlanReport& report) {
  Json margins = Json::object();
  // The runs were not of models that zeroplan does not train.
  if (plan.model.family->planned() == nullptr) {
    for (const MarginOfError& margin : plan.runtime->Margins()) {
      margins[margin.name] = NumberJson(margin.share);
    }
  }
  Json predicted = {{"gpu_bytes", GpuBytesJson(plan.choice.footprint)},
                    {"host_bytes", HostBytesJson(plan.choice.footprint)}};
  predicted.update(StepFiguresJson(plan.choice));
  Json json = {{"schema", "zeroplan.plan/1"},
               {"zeroplan", kVersion},
               {"build", BuildJson()},
               {"runtime", plan.runtime->version()},
               {"compiled", CompiledJson(plan.recipe.compile)},
               {"recipe", RecipeJson(plan.recipe)},
               {"model", ModelJson(plan.model)},
               {"seq_len", plan.setup.batch.seq_len},
               {"cluster", FieldsJson(plan.cluster)},
               {"config", Json::parse(report.config)},
               {"choice", RuntimeChoiceJson(plan.choice, RecipeOf(plan))},
               {"predicted", std::move(predicted)},
               {"margins", std::move(margins)},
               {"search", SearchJson(plan)},
               {"advice", plan.advice},
               {"executor", nullptr}};
  json["model"]["params"] = plan.model.ParamCount();
  if (const std::optional<ExecutorBest>& executor = report.executor) {
    json["executor"] = ChoiceJson(executor->setup);
    json["executor"].update({{"step_seconds", executor->step_seconds},
                             {"tokens_per_second", executor->tokens_per_second},
                             {"gap", executor->gap}});
  }
  return json;
}

// `more`: additional keys.
std::string WriteChecked(const Plan& plan, std::string_view deepspeed_config, const Json& more) {
  const Program program = Lower(plan.model, plan.setup, plan.lower);
  const uint64_t fingerprint = Fingerprint(program);
  // The search judged the choice by this program.
  ZEROPLAN_CHECK(FootprintOf(program, plan.cluster) == plan.choice.footprint);
  Json json = PlanJson(plan, deepspeed_config, fingerprint);
  if (plan.origin) json["origin"] = FieldsJson(*plan.origin);
  if (plan.choice.interrupted) json["interruptions"] = InterruptionsJson(*plan.choice.interrupted);
  json.update(more);
  std::string text = json.dump(2) + '\n';
  // The written plan must be read back as the same choice.
  const PlanFile back = ReadPlan(text, "plan");
  if (Fingerprint(Lower(back.model, back.setup, back.lower)) != fingerprint) {
    ThrowUsage(
        "this choice cannot be written as a plan: its DeepSpeed config reads back as another one");
  }
  return text;
}

}  // namespace

std::string WritePlan(const Plan& plan, std::string_view deepspeed_config) {
  return WriteChecked(plan, deepspeed_config, Json::object());
}

std::string WritePlanReport(const Plan& plan, const PlanReport& report) {
  Json claims = Json::array();
  for (const AdviceLine& line : report.advice) {
    for (const Claim& claim : line.claims) {
      claims.push_back(ClaimJson(line, claim, plan));
    }
  }
  Json more = {{"gap", report.gap},           {"stages", StagesJson(plan, report)},
               {"claims", std::move(claims)}, {"assumed", report.assumed},
               {"notes", report.notes},       {"training", RunJson(report.goal, plan.choice)}};
  if (!plan.runtime->facts().has_recipe) more["choice"] = ChoiceJson(plan.setup);
  if (report.goal.data) more["data"] = DataJson(report.goal, plan.setup.batch);
  if (report.goal.tokens) more["run"] = RunJson(report.goal, plan.choice);
  if (const std::optional<SaveCost>& save = report.checkpoint) {
    more["checkpoint"] = {{"bytes", save->bytes},
                          {"weights_bytes", save->weights_bytes},
                          {"node_bytes", save->node_bytes},
                          {"write_seconds", Nullable(save->write_seconds)},
                          {"copy_seconds", save->copy_seconds}};
  }
  if (plan.runtime->facts().trains_here) {
    return WriteChecked(plan, WriteConfig(plan.setup, plan.model.layers), more);
  }
  Json json = RuntimePlanJson(plan, report);
  json.update(more);
  return json.dump(2) + '\n';
}

std::string WriteProgramRecord(const Program& program, const LowerOptions& lower) {
  const TrainSetup setup = ResolveAuto(program);
  const Json json = {{"zeroplan", kVersion},
                     {"model", ModelJson(program.model)},
                     {"seq_len", setup.batch.seq_len},
                     {"gpus", setup.batch.world_size},
                     {"lower", FieldsJson(lower)},
                     {"config", Json::parse(WriteConfig(setup, program.model.layers))},
                     {"fingerprint", FormatFingerprint(Fingerprint(program))}};
  return json.dump();
}

}  // namespace zeroplan
