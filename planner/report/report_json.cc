#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/settings/setup_facts.h"
#include "planner/estimate/choices.h"
#include "planner/report/choice_json.h"
#include "planner/report/report.h"

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;

Json WithCapacity(Json bytes, Json capacity, uint64_t reserve) {
  bytes["capacity"] = std::move(capacity);
  bytes["reserve"] = reserve;
  return bytes;
}

// Adds the fields that only runtimes other than zeroplan's own executor have.
void AddRuntimeFields(const ChoiceEstimate& choice, Json& json) {
  const Footprint& footprint = choice.footprint;
  const BatchSpec& batch = choice.setup.batch;
  json["settings"]["overlap_comm"] = choice.settings.overlap;
  json["step_parts"] = TorchStepJson(choice.time);
  json["tokens_per_second_of_gpu"] = nullptr;
  if (const auto& rate = choice.time.tokens_per_second) {
    json["tokens_per_second_of_gpu"] = *rate / batch.world_size;
  }
  const bool empties = choice.fits && footprint.gpu_spare_bytes > 0;
  json["room"] = MemoryRoomName(choice.room);
  json["empties_cache"] = empties;
  json["tight"] = choice.fits && !empties && choice.room != MemoryRoom::kAmple;
  if (!footprint.torch) return;
  const TorchFootprint& torch = *footprint.torch;
  json["gpu_bytes"].update({{"phases", TorchPhasesJson(torch)},
                            {"deciding_phase", TorchPhaseName(torch.DecidingPhase())},
                            {"after_init", torch.after_init_bytes},
                            {"reserved", torch.ReservedBytes()},
                            {"context", torch.context_bytes}});
  json["process_host_bytes"] = {{"pinned", torch.host.pinned_bytes},
                                {"pageable", torch.host.pageable_bytes},
                                {"base", torch.host_base_bytes},
                                {"total", torch.HostBytes()}};
  json["phases_around"] = PhasesAroundJson(torch);
}

Json Choice(const ChoiceEstimate& choice, const Estimate& estimate) {
  const Cluster& cluster = estimate.cluster;
  const Runtime& runtime = *estimate.runtime;
  const TorchRecipe* recipe = RecipeOf(estimate);
  Json json = Json::object();
  AddRecord(kEstimateSettings, choice.setup, recipe, json);
  json.update(Json{
      {"settings",
       {{"reduce_bucket", ElementsJson(choice.settings.reduce_bucket_elements)},
        {"prefetch_bucket", ElementsJson(choice.settings.prefetch_bucket_elements)},
        {"persistence_threshold", choice.settings.persistence_threshold},
        {"reuse_distance", choice.settings.reuse_distance},
        {"overlap", choice.settings.overlap}}},
      {"gpu_bytes", WithCapacity(GpuBytesJson(choice.footprint), cluster.gpu_capacity_bytes,
                                 cluster.gpu_reserve_bytes)},
      {"host_bytes",
       WithCapacity(HostBytesJson(choice.footprint), Nullable(cluster.host_capacity_bytes),
                    cluster.host_reserve_bytes)},
  });
  AddRecord(kGroupSettings, choice.setup, recipe, json["settings"]);
  json.update(StepFiguresJson(choice));
  if (runtime.facts().has_recipe) AddRuntimeFields(choice, json);
  json["training"] = RunJson(estimate.goal, choice);
  if (choice.interrupted) json["interruptions"] = InterruptionsJson(*choice.interrupted);
  json["fits"] = choice.fits;
  json["why_not"] = choice.fits ? Json(nullptr) : Json(choice.why_not);
  json["choice"] = ChoiceJson(choice.setup, recipe);
  return json;
}

}  // namespace

std::string ReportJson(const Estimate& estimate) {
  const ModelSpec& model = estimate.model;
  const Cluster& cluster = estimate.cluster;
  Json choices = Json::array();
  for (const ChoiceEstimate& choice : estimate.choices) {
    choices.push_back(Choice(choice, estimate));
  }
  Json report = {{"schema", "zeroplan.estimate/1"}};
  if (estimate.runtime->facts().has_recipe) {
    report["runtime"] = estimate.runtime->version();
    report["compiled"] = CompiledJson(estimate.recipe.compile);
    report["recipe"] = RecipeJson(estimate.recipe);
  }
  report.update(Json{{"model",
                      {{"name", model.name},
                       {"params", model.ParamCount()},
                       {"layers", model.layers},
                       {"hidden", model.hidden},
                       {"heads", model.heads},
                       {"vocab", model.vocab},
                       {"seq_len", estimate.seq_len}}},
                     {"cluster",
                      {{"hw", cluster.hardware},
                       {"gpus", cluster.gpus},
                       {"gpus_per_node", cluster.gpus_per_node}}}});
  if (estimate.goal.data) {
    report["data"] = DataJson(estimate.goal, estimate.batch());
  }
  report["choices"] = std::move(choices);
  return report.dump(2) + '\n';
}

}  // namespace zeroplan
