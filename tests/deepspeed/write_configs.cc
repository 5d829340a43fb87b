// Usage: write_deepspeed_configs FOLDER COUNT. Writes COUNT random setups as N.json, and what
// DeepSpeed must make of each as N.expected.json; then configs with single values of keys as
// bounds_N.json, with whether 'config check --for deepspeed' accepts each.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/config/deepspeed_reader.h"
#include "core/settings/setup_facts.h"
#include "executor/optimizer/step_scalars.h"
#include "tests/core/config/random_setup.h"

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;

Json Offload(OffloadDevice device, bool pin_memory, int buffer_count, const std::string& path) {
  if (device == OffloadDevice::kNone) return nullptr;
  Json out = {{"device", OffloadDeviceName(device)},
              {"pin_memory", pin_memory},
              {"buffer_count", buffer_count}};
  out["nvme_path"] = path.empty() ? Json() : Json(path);
  return out;
}

Json Zero(const ZeroConfig& zero) {
  Json out = {
      {"stage", zero.stage},
      {"reduce_bucket_size", zero.reduce_bucket_elements},
      {"allgather_bucket_size", zero.allgather_bucket_elements},
      {"contiguous_gradients", zero.contiguous_gradients},
      {"reduce_scatter", zero.reduce_scatter},
      {"allgather_partitions", zero.allgather_partitions},
      {"overlap_comm", zero.overlap_comm},
      {"sub_group_size", zero.sub_group_elements},
      {"mics_shard_size",
       zero.stage == 3 && zero.shard_group > 0 && zero.across_stage == 0 ? zero.shard_group : -1},
      {"zero_hpz_partition_size", zero.stage == 3 && zero.across_stage == 2 ? zero.shard_group : 1},
      {"zero_quantized_weights", zero.quantized_weights},
      {"zero_quantized_gradients", zero.quantized_gradients},
      {"prefetch_bucket_size", zero.prefetch_bucket_elements},
      {"param_persistence_threshold", zero.param_persistence_threshold},
      {"model_persistence_threshold", zero.model_persistence_threshold},
      {"max_live_parameters", zero.max_live_parameters},
      {"max_reuse_distance", zero.max_reuse_distance}};
  const auto& optimizer = zero.offload_optimizer;
  out["offload_optimizer"] =
      Offload(optimizer.device, optimizer.pin_memory, optimizer.buffer_count, optimizer.nvme_path);
  if (optimizer.device != OffloadDevice::kNone) {
    out["offload_optimizer"]["ratio"] = optimizer.ratio;
  }
  const auto& param = zero.offload_param;
  out["offload_param"] =
      Offload(param.device, param.pin_memory, param.buffer_count, param.nvme_path);
  if (param.device != OffloadDevice::kNone) {
    out["offload_param"]["max_in_cpu"] = param.max_in_cpu_elements;
  }
  return out;
}

Json Expected(const TrainSetup& setup, int64_t layers) {
  const PrecisionConfig& precision = setup.precision;
  const OptimizerConfig& optimizer = setup.optimizer;
  Json out = {{"world_size", setup.batch.world_size},
              {"train_batch_size", setup.batch.global_batch()},
              {"train_micro_batch_size_per_gpu", setup.batch.micro_batch},
              {"gradient_accumulation_steps", setup.batch.grad_accum},
              {"zero", Zero(setup.zero)},
              {"bf16", precision.dtype == Dtype::kBF16},
              {"grad_accum_dtype", DtypeName(precision.grad_accum_dtype)},
              {"communication_dtype", DtypeName(SentGradDtype(setup))},
              {"dtype", DtypeName(precision.dtype)},
              {"gradient_clipping", optimizer.gradient_clipping}};
  out["fp16"] = {{"enabled", precision.dtype == Dtype::kF16},
                 {"loss_scale", precision.loss_scale},
                 {"initial_scale_power", precision.initial_scale_power},
                 {"loss_scale_window", precision.loss_scale_window},
                 {"hysteresis", precision.hysteresis},
                 {"consecutive_hysteresis", precision.consecutive_hysteresis},
                 {"min_loss_scale", precision.min_loss_scale}};
  out["optimizer"] = {{"type", optimizer.adam_w_mode ? "adamw" : "adam"},
                      {"lr", optimizer.lr},
                      {"betas", optimizer.betas},
                      {"eps", optimizer.eps},
                      {"weight_decay", optimizer.weight_decay}};
  const int every = setup.recompute.every;
  out["number_checkpoints"] = every <= 0 ? Json() : Json((layers + every - 1) / every);
  out["learning_rates"] = Json::array();
  for (int64_t step :
       {0, 1, 2, 3, 4, 5, 7, 10, 30, 100, 999, 1000, 1001, 2500, 6000, 20000, 99999}) {
    out["learning_rates"].push_back({step, LearningRate(optimizer, step)});
  }
  return out;
}

// Values at and past the bounds of the keys of DeepSpeed's classes.
std::vector<Json> BoundConfigs() {
  const std::vector<Json> values = {0, 1, -1, 1.5, 5e8, "0", "5e8", nullptr};
  std::vector<Json> configs;
  const auto add = [&](const Json& zero) {
    configs.push_back({{"train_micro_batch_size_per_gpu", 1},
                       {"bf16", {{"enabled", true}}},
                       {"zero_optimization", zero}});
  };
  for (const char* key :
       {"reduce_bucket_size", "allgather_bucket_size", "sub_group_size", "prefetch_bucket_size",
        "stage3_prefetch_bucket_size", "param_persistence_threshold", "model_persistence_threshold",
        "stage3_max_live_parameters", "max_reuse_distance"}) {
    for (const Json& value : values) add({{"stage", 3}, {key, value}});
  }
  for (const auto& [section, key] :
       {std::pair{"offload_optimizer", "buffer_count"}, std::pair{"offload_optimizer", "ratio"},
        std::pair{"offload_param", "buffer_count"}, std::pair{"offload_param", "max_in_cpu"}}) {
    for (const Json& value : {Json(0), Json(1), Json(-1), Json(1.5), Json("0")}) {
      add({{"stage", 3}, {section, {{"device", "cpu"}, {key, value}}}});
    }
  }
  for (const Json& zero : std::vector<Json>{
           {{"stage", 3}, {"max_live_parameters", 5}, {"stage3_max_live_parameters", 7}},
           {{"stage", 3}, {"cpu_offload", true}},
           {{"stage", 3}, {"cpu_offload", true}, {"offload_optimizer", {{"device", "cpu"}}}},
           {{"stage", 3}, {"cpu_offload", false}, {"offload_optimizer", {{"device", "cpu"}}}},
           {{"stage", 3}, {"cpu_offload_param", true}, {"offload_param", {{"device", "cpu"}}}},
           {{"stage", 3}, {"cpu_offload_params", true}},
           {{"stage", 3}, {"gather_16bit_weights_on_model_save", true}},
           {{"stage", 3}, {"gather_fp16_weights_on_model_save", true}},
           {{"stage", 3}, {"stage3_gather_fp16_weights_on_model_save", true}},
           {{"stage", 3},
            {"stage3_gather_fp16_weights_on_model_save", true},
            {"stage3_gather_16bit_weights_on_model_save", true}},
           {{"stage", 3}, {"zero3_save_16bit_model", true}},
           {{"stage", 3}, {"load_from_fp32_weights", false}},
           {{"stage", 3}, {"stage3_log_trace_cache_warnings", true}},
           {{"stage", 3}, {"overlap_comm", nullptr}},
           {{"stage", 2}, {"elastic_checkpoint", true}}}) {
    add(zero);
  }
  for (const Json& fp16 : std::vector<Json>{{{"enabled", true}, {"loss_scale_window", 0}},
                                            {{"enabled", false}, {"loss_scale_window", 0}},
                                            {{"enabled", true}, {"loss_scale", -1}},
                                            {{"enabled", true}, {"min_loss_scale", 0}},
                                            {{"enabled", true}, {"initial_scale_power", 0}}}) {
    configs.push_back({{"train_batch_size", 1}, {"fp16", fp16}});
  }
  return configs;
}

bool IsTaken(const std::string& config) {
  ReadContext context;
  context.reads_for = ConfigFor::kDeepSpeed;
  try {
    ReadDeepSpeedConfig(config, "config", context);
  } catch (const Error&) {
    return false;
  }
  return true;
}

}  // namespace
}  // namespace zeroplan

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s FOLDER COUNT\n", argv[0]);
    return 2;
  }
  zeroplan::testing::RandomSetup random(2026);
  for (int i = 0; i < std::atoi(argv[2]); ++i) {
    const int64_t layers = 1 + i % 50;
    const zeroplan::TrainSetup setup = zeroplan::CanonicalSetup(random.Next(layers), layers);
    const std::string stem = std::string(argv[1]) + "/" + std::to_string(i);
    std::ofstream(stem + ".json") << zeroplan::WriteDeepSpeedConfig(setup, layers);
    std::ofstream(stem + ".expected.json") << zeroplan::Expected(setup, layers).dump(1);
  }
  int bound = 0;
  for (const auto& config : zeroplan::BoundConfigs()) {
    const std::string stem = std::string(argv[1]) + "/bounds_" + std::to_string(bound++);
    std::ofstream(stem + ".json") << config.dump();
    std::ofstream(stem + ".expected.json")
        << zeroplan::Json{{"world_size", 1}, {"taken", zeroplan::IsTaken(config.dump())}}.dump(1);
  }
  return 0;
}
