#include "core/config/effective_values.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "core/config/deepspeed_reader.h"

namespace zeroplan {
namespace {

std::vector<EffectiveValue> Values(std::string_view text, const ReadContext& context = {}) {
  return EffectiveValues(ReadDeepSpeedConfig(text, "c", context).setup, ParseJsonText(text, "c"));
}

// "VALUE from ORIGIN", or "" if the key is not listed.
std::string Find(const std::vector<EffectiveValue>& values, std::string_view key) {
  const auto found = std::find_if(values.begin(), values.end(),
                                  [&](const EffectiveValue& v) { return v.key == key; });
  return found == values.end() ? "" : found->value + " from " + found->origin;
}

TEST_CASE("effective values: where each comes from") {
  ReadContext context;
  context.world_size = 4;
  const auto values = Values(R"({
    "train_batch_size": 32,
    "gradient_accumulation_steps": "auto",
    "bfloat16": {"enabled": true},
    "zero_optimization": {
      "stage": 3,
      "reduce_bucket_size": "auto",
      "max_live_parameters": 1e6,
      "cpu_offload": true
    },
    "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}}
  })",
                             context);
  CHECK(Find(values, "train_batch_size") == "32 from line 2");
  CHECK(Find(values, "train_micro_batch_size_per_gpu") == "8 from derived");
  CHECK(Find(values, "gradient_accumulation_steps") == "1 from auto");
  CHECK(Find(values, "bf16.enabled") == "true from line 4");
  CHECK(Find(values, "fp16.enabled") == "false from default");
  CHECK(Find(values, "fp16.loss_scale") == "");
  CHECK(Find(values, "zero_optimization.stage") == "3 from line 6");
  CHECK(Find(values, "zero_optimization.reduce_bucket_size") == "auto from auto");
  CHECK(Find(values, "zero_optimization.stage3_max_live_parameters") == "1000000 from line 8");
  CHECK(Find(values, "zero_optimization.stage3_model_persistence_threshold") ==
        "unlimited from default");
  CHECK(Find(values, "zero_optimization.offload_optimizer.device") == "cpu from line 9");
  CHECK(Find(values, "zero_optimization.offload_optimizer.ratio") == "1 from default");
  CHECK(Find(values, "zero_optimization.allgather_bucket_size") == "");  // stages 1 and 2 only
  CHECK(Find(values, "scheduler.type") == "WarmupDecayLR from line 11");
  CHECK(Find(values, "scheduler.params.total_num_steps") == "the run's length from auto");
  CHECK(Find(values, "communication_data_type") == "bf16 from derived");
  CHECK(Find(values, "activation_checkpointing") == "off from default");
}

TEST_CASE("effective values: shard groups where there are some") {
  ReadContext context;
  context.world_size = 16;
  const auto values =
      Values("{\"zero_optimization\": {\"stage\": 3,\n\"zero_hpz_partition_size\": 8}}", context);
  CHECK(Find(values, "_zeroplan.shard_group") == "8 from line 2");
  CHECK(Find(values, "_zeroplan.across_groups") == "gradients from derived");
  CHECK(Find(Values(R"({"zero_optimization": {"stage": 3}})", context), "_zeroplan.shard_group") ==
        "");
}

TEST_CASE("effective values: what gradients are sent in") {
  ReadContext context;
  context.world_size = 2;
  const auto sent = [&](const char* more) {
    const std::string text = std::string("{\"bf16\": {\"enabled\": true}") + more + "}";
    return Find(Values(text.c_str(), context), "communication_data_type");
  };
  CHECK(sent("") == "bf16 from derived");
  CHECK(sent(",\n\"communication_data_type\": \"fp32\"") == "fp32 from line 2");
  CHECK(sent(",\n\"fp32_allreduce\": true") == "fp32 from line 2");
  CHECK(sent(", \"data_types\": {\"grad_accum_dtype\": \"fp32\"}") == "fp32 from derived");
}

TEST_CASE("effective values: sections left open or in an old form") {
  const auto values = Values(R"({"zero_optimization": true, "optimizer": "auto"})");
  CHECK(Find(values, "zero_optimization.stage") == "1 from line 1");
  CHECK(Find(values, "optimizer.params.lr") == "0.001 from auto");
  const auto recompute = Values("{\n\"activation_checkpointing\": {}}");
  CHECK(Find(recompute, "activation_checkpointing") == "every layer from line 2");
  const auto selective = Values("{\n\"_zeroplan\": {\n\"checkpointing\": \"selective\"}}");
  CHECK(Find(selective, "activation_checkpointing") == "selective from line 3");
  CHECK(Find(selective, "_zeroplan.deterministic") == "false from default");
  CHECK(Find(selective, "_zeroplan.offload_activations") == "false from default");
  CHECK(Find(selective, "_zeroplan.checkpoint_layers") == "");
  const auto offloaded = Values(
      "{\"activation_checkpointing\": {\"cpu_checkpointing\": true},\n"
      "\"_zeroplan\": {\"checkpoint_layers\": 3,\n\"checkpointing_above\": \"selective\",\n"
      "\"offload_activation_layers\": 2}}");
  CHECK(Find(offloaded, "activation_checkpointing") == "every layer from line 1");
  CHECK(Find(offloaded, "activation_checkpointing.cpu_checkpointing") == "true from line 1");
  CHECK(Find(offloaded, "_zeroplan.checkpoint_layers") == "3 from line 2");
  CHECK(Find(offloaded, "_zeroplan.checkpointing_above") == "selective from line 3");
  CHECK(Find(offloaded, "_zeroplan.offload_activation_layers") == "2 from line 4");
  const auto deterministic = Values("{\n\"_zeroplan\": {\n\"deterministic\": true}}");
  CHECK(Find(deterministic, "_zeroplan.deterministic") == "true from line 3");
}

}  // namespace
}  // namespace zeroplan
