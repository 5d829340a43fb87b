#include "library/read_results.h"

#include <nlohmann/json.hpp>

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
void Read(const Json& json, const char* key, T& value) {
  json.at(key).get_to(value);
}
// null: unset.
template <typename T>
void Read(const Json& json, const char* key, std::optional<T>& value) {
  const Json& found = json.at(key);
  if (!found.is_null()) value = found.get<T>();
}
// A key that is only there where it means something.
template <typename T>
void ReadIfThere(const Json& json, const char* key, T& value) {
  if (json.contains(key)) Read(json, key, value);
}
// null: empty.
std::string TextOrNull(const Json& json) { return json.is_null() ? "" : json.get<std::string>(); }

v1::GpuBytes ReadGpuBytes(const Json& json) {
  v1::GpuBytes bytes;
  Read(json, "params", bytes.params);
  Read(json, "grads", bytes.grads);
  Read(json, "optimizer", bytes.optimizer);
  Read(json, "activations", bytes.activations);
  Read(json, "buffers", bytes.buffers);
  Read(json, "runtime", bytes.runtime);
  Read(json, "total", bytes.total);
  return bytes;
}

v1::HostBytes ReadHostBytes(const Json& json) {
  v1::HostBytes bytes;
  Read(json, "pinned", bytes.pinned);
  Read(json, "pageable", bytes.pageable);
  Read(json, "total", bytes.total);
  return bytes;
}

v1::StepSeconds ReadStepSeconds(const Json& json) {
  v1::StepSeconds seconds;
  Read(json, "compute", seconds.compute);
  Read(json, "exposed_comm", seconds.exposed_comm);
  Read(json, "exposed_offload", seconds.exposed_offload);
  Read(json, "optimizer", seconds.optimizer);
  Read(json, "total", seconds.total);
  return seconds;
}

v1::Choice ReadChoice(const Json& json) {
  v1::Choice choice;
  Read(json, "gpus", choice.gpus);
  Read(json, "stage", choice.stage);
  Read(json, "offload_optimizer", choice.offload_optimizer);
  Read(json, "offload_ratio", choice.offload_ratio);
  Read(json, "offload_param", choice.offload_param);
  Read(json, "checkpointing", choice.checkpointing);
  Read(json, "checkpoint_every", choice.checkpoint_every);
  Read(json, "micro_batch", choice.micro_batch);
  Read(json, "grad_accum", choice.grad_accum);
  return choice;
}

std::optional<v1::Training> ReadTraining(const Json& json) {
  if (json.is_null()) return std::nullopt;
  v1::Training training;
  Read(json, "tokens", training.tokens);
  Read(json, "steps", training.steps);
  Read(json, "seconds", training.seconds);
  Read(json, "gpu_hours", training.gpu_hours);
  Read(json, "price", training.price);
  return training;
}

v1::EstimatedChoice ReadEstimatedChoice(const Json& json) {
  v1::EstimatedChoice read;
  read.choice = ReadChoice(json);
  Read(json, "dtype", read.dtype);
  Read(json, "grad_accum_dtype", read.grad_accum_dtype);
  Read(json, "communication_dtype", read.communication_dtype);
  const Json& settings = json.at("settings");
  Read(settings, "reduce_bucket", read.reduce_bucket);
  Read(settings, "prefetch_bucket", read.prefetch_bucket);
  Read(settings, "persistence_threshold", read.persistence_threshold);
  Read(settings, "reuse_distance", read.reuse_distance);
  Read(settings, "overlap", read.overlap);
  read.gpu_bytes = ReadGpuBytes(json.at("gpu_bytes"));
  Read(json.at("gpu_bytes"), "capacity", read.gpu_capacity);
  Read(json.at("gpu_bytes"), "reserve", read.gpu_reserve);
  read.host_bytes = ReadHostBytes(json.at("host_bytes"));
  Read(json.at("host_bytes"), "capacity", read.host_capacity);
  Read(json.at("host_bytes"), "reserve", read.host_reserve);
  Read(json, "nvme_bytes", read.nvme_bytes);
  Read(json, "comm_bytes_per_step", read.comm_bytes_per_step);
  Read(json, "pcie_bytes_per_step", read.pcie_bytes_per_step);
  read.step_seconds = ReadStepSeconds(json.at("step_seconds"));
  Read(json, "tokens_per_second", read.tokens_per_second);
  Read(json, "mfu", read.mfu);
  read.training = ReadTraining(json.at("training"));
  Read(json, "fits", read.fits);
  read.why_not = TextOrNull(json.at("why_not"));
  return read;
}

v1::StageAnswer ReadStage(const Json& json) {
  v1::StageAnswer stage;
  Read(json, "stage", stage.stage);
  Read(json, "fits", stage.fits);
  stage.choice = ReadChoice(json.at("choice"));
  stage.gpu_bytes = ReadGpuBytes(json.at("gpu_bytes"));
  stage.host_bytes = ReadHostBytes(json.at("host_bytes"));
  if (!stage.fits) {
    stage.why_not = TextOrNull(json.at("why_not"));
    return stage;
  }
  Read(json, "proven", stage.proven);
  stage.step_seconds = ReadStepSeconds(json.at("step_seconds"));
  stage.lost_seconds = ReadStepSeconds(json.at("lost_seconds"));
  Read(json, "tokens_per_second", stage.tokens_per_second);
  return stage;
}

v1::Claim ReadClaim(const Json& json) {
  v1::Claim read;
  Read(json, "kind", read.kind);
  const Json& change = json.at("change");
  ReadIfThere(change, "gpu_memory_bytes", read.gpu_memory_bytes);
  ReadIfThere(change, "global_batch", read.global_batch);
  ReadIfThere(change, "bandwidth_scale", read.bandwidth_scale);
  ReadIfThere(change, "stages", read.stages);
  const Json& answer = json.at("answer");
  if (!answer.is_null()) {
    read.answer = ReadChoice(answer);
    Read(answer, "tokens_per_second", read.tokens_per_second);
  }
  Read(json, "gap", read.gap);
  return read;
}

v1::SearchFacts ReadSearch(const Json& json) {
  v1::SearchFacts search;
  Read(json, "objective", search.objective);
  Read(json, "candidates", search.candidates);
  Read(json, "cut_by_memory", search.cut_by_memory);
  Read(json, "cut_by_score", search.cut_by_score);
  Read(json, "judged", search.judged);
  Read(json, "left", search.left);
  Read(json, "lowered", search.lowered);
  Read(json, "seconds", search.seconds);
  return search;
}

}  // namespace

v1::Estimate ReadEstimate(std::string_view text) {
  const Json json = Json::parse(text);
  v1::Estimate estimate;
  const Json& model = json.at("model");
  Read(model, "name", estimate.model.name);
  Read(model, "params", estimate.model.params);
  Read(model, "layers", estimate.model.layers);
  Read(model, "hidden", estimate.model.hidden);
  Read(model, "heads", estimate.model.heads);
  Read(model, "vocab", estimate.model.vocab);
  Read(model, "seq_len", estimate.model.seq_len);
  const Json& cluster = json.at("cluster");
  Read(cluster, "hw", estimate.cluster.hw);
  Read(cluster, "gpus", estimate.cluster.gpus);
  Read(cluster, "gpus_per_node", estimate.cluster.gpus_per_node);
  for (const Json& choice : json.at("choices")) {
    estimate.choices.push_back(ReadEstimatedChoice(choice));
  }
  return estimate;
}

v1::Plan ReadPlanReport(std::string_view text) {
  const Json json = Json::parse(text);
  v1::Plan plan;
  const Json& predicted = json.at("predicted");
  plan.gpu_bytes = ReadGpuBytes(predicted.at("gpu_bytes"));
  plan.host_bytes = ReadHostBytes(predicted.at("host_bytes"));
  Read(predicted, "nvme_bytes", plan.nvme_bytes);
  Read(predicted, "comm_bytes_per_step", plan.comm_bytes_per_step);
  Read(predicted, "pcie_bytes_per_step", plan.pcie_bytes_per_step);
  plan.step_seconds = ReadStepSeconds(predicted.at("step_seconds"));
  Read(predicted, "tokens_per_second", plan.tokens_per_second);
  Read(predicted, "mfu", plan.mfu);
  Read(json, "gap", plan.gap);
  for (const Json& stage : json.at("stages")) plan.stages.push_back(ReadStage(stage));
  for (const Json& claim : json.at("claims")) plan.claims.push_back(ReadClaim(claim));
  Read(json, "advice", plan.advice);
  Read(json, "assumed", plan.assumed);
  Read(json, "notes", plan.notes);
  plan.search = ReadSearch(json.at("search"));
  plan.deepspeed_config = json.at("config").dump(2) + '\n';
  return plan;
}

}  // namespace zeroplan
