#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/config/deepspeed_reader.h"
#include "core/config/deepspeed_writer.h"
#include "tests/core/config/random_setup.h"

namespace zeroplan {
namespace {

using Json = nlohmann::json;

// A config full of what zeroplan does not steer, beside what it does.
constexpr const char* kFull = R"({
  // what a Trainer's config looks like, with more around it
  "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto", "steps_per_print": 100, "wall_clock_breakdown": false,
  "comment": "of the user's", "my_launcher": {"queue": "long", "tags": [1, null, {"a": 2.5}]},
  "zero_optimization": {
    "stage": 2, "reduce_bucket_size": "auto", "allgather_bucket_size": 2e8, "sub_group_size": "auto",
    "round_robin_gradients": true, "load_from_fp32_weights": true,
    "offload_optimizer": {"device": "cpu", "pin_memory": true, "pipeline_read": true},
    "offload_param": {"device": "none", "buffer_size": 1e8}, "stage3_max_live_parameters": 3e9,
    "stage3_gather_16bit_weights_on_model_save": false},
  "bf16": {"enabled": true, "check_grad_overflow": false},
  "fp16": {"enabled": false, "loss_scale": 0, "loss_scale_window": 500},
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "weight_decay": "auto", "torch_adam": true}},
  "activation_checkpointing": {"partition_activations": false},
  "flops_profiler": {"enabled": true, "profile_step": 5, "module_depth": -1},
  "tensorboard": {"enabled": true, "output_path": "tb/", "job_name": "j"},
  "wandb": {"enabled": false, "project": "p"}, "csv_monitor": {"enabled": false},
  "comet": {"enabled": false, "project": "p"},
  "comms_logger": {"enabled": false, "prof_ops": ["all_reduce"]},
  "data_efficiency": {"enabled": false, "seed": 7}, "elasticity": {"enabled": false},
  "aio": {"block_size": 1048576, "queue_depth": 8}, "checkpoint": {"tag_validation": "Warn"},
  "curriculum_learning": {"enabled": false, "params": {"a": 1}}, "amp": {"enabled": false}
})";

TrainSetup Read(const std::string& text, const BatchSpec& batch, int64_t layers) {
  ReadContext context;
  context.world_size = batch.world_size;
  context.seq_len = batch.seq_len;
  context.layers = layers;
  return ReadDeepSpeedConfig(text, "kept.json", context).setup;
}

TEST_CASE("kept keys: every other section goes out again, what is planned replaces what came in") {
  const JsonNode incoming = ParseJsonText(kFull, "in.json");
  TrainSetup setup = Read(kFull, {1, 1, 4, 1024}, 12);
  setup.batch = {6, 2, 4, 1024};
  setup.zero.reduce_bucket_elements = 123'000'000;
  const std::string text = KeepOtherKeys(WriteDeepSpeedConfig(setup, 12), incoming);
  const Json out = Json::parse(text);
  CAPTURE(text);

  CHECK(out["train_batch_size"] == 48);
  CHECK(out["train_micro_batch_size_per_gpu"] == 6);
  CHECK(out["gradient_accumulation_steps"] == 2);
  const Json& zero = out["zero_optimization"];
  CHECK(zero["reduce_bucket_size"] == 123'000'000);
  CHECK(zero["allgather_bucket_size"] == 2e8);
  CHECK_FALSE(zero.contains("sub_group_size"));  // was left to zeroplan, and is the default
  CHECK(zero["round_robin_gradients"] == true);
  CHECK(zero["load_from_fp32_weights"] == true);
  CHECK(zero["offload_optimizer"]["device"] == "cpu");
  CHECK(zero["offload_optimizer"]["pipeline_read"] == true);
  CHECK(zero["offload_param"] == Json{{"device", "none"}, {"buffer_size", 1e8}});
  CHECK(zero["stage3_max_live_parameters"] == 3e9);
  CHECK(zero["stage3_gather_16bit_weights_on_model_save"] == false);
  CHECK(out["bf16"] == Json{{"enabled", true}, {"check_grad_overflow", false}});
  CHECK(out["fp16"] == Json{{"enabled", false}, {"loss_scale", 0}, {"loss_scale_window", 500}});
  CHECK(out["optimizer"]["params"]["lr"] == 3e-4);
  CHECK(out["optimizer"]["params"]["weight_decay"] == 0);
  CHECK(out["optimizer"]["params"]["torch_adam"] == true);
  CHECK(out["activation_checkpointing"]["partition_activations"] == false);
  CHECK(out["activation_checkpointing"]["number_checkpoints"] == 12);
  const Json source = Json::parse(kFull, nullptr, true, /*ignore_comments=*/true);
  for (const char* key :
       {"steps_per_print", "wall_clock_breakdown", "comment", "my_launcher", "flops_profiler",
        "tensorboard", "wandb", "csv_monitor", "comet", "comms_logger", "data_efficiency",
        "elasticity", "aio", "checkpoint", "curriculum_learning", "amp"}) {
    CAPTURE(key);
    CHECK(out[key] == source[key]);
  }
  // No top-level key of the one that came in is missing.
  for (const auto& [key, value] : source.items()) CHECK(out.contains(key));
  // It means what was planned.
  CHECK(CanonicalSetup(Read(text, setup.batch, 12), 12) == CanonicalSetup(setup, 12));
}

TEST_CASE("kept keys: other names of what is written do not stand beside it") {
  const char* in =
      R"({"train_batch_size": 8, "bfloat16": {"enabled": true, "immediate_grad_update": true},
    "fp32_allreduce": true, "zero_optimization": {"stage": 3, "prefetch_bucket_size": 7,
    "max_live_parameters": "auto", "cpu_offload": true, "cpu_offload_use_pin_memory": false,
    "stage3_gather_fp16_weights_on_model_save": true}})";
  const TrainSetup setup = Read(in, {1, 1, 4, 1024}, 4);
  TrainSetup planned = setup;
  planned.zero.max_live_parameters = 9;
  const std::string text =
      KeepOtherKeys(WriteDeepSpeedConfig(planned, 4), ParseJsonText(in, "in.json"));
  CAPTURE(text);
  const Json out = Json::parse(text);
  CHECK_FALSE(out.contains("bfloat16"));
  CHECK(out["bf16"] == Json{{"enabled", true}, {"immediate_grad_update", true}});
  CHECK_FALSE(out.contains("fp32_allreduce"));
  CHECK(out["communication_data_type"] == "fp32");
  const Json& zero = out["zero_optimization"];
  CHECK(zero["stage3_prefetch_bucket_size"] == 7);
  CHECK(zero["stage3_max_live_parameters"] == 9);
  for (const char* key :
       {"prefetch_bucket_size", "max_live_parameters", "cpu_offload", "cpu_offload_use_pin_memory",
        "stage3_gather_16bit_weights_on_model_save"}) {
    CHECK_FALSE(zero.contains(key));
  }
  CHECK(zero["stage3_gather_fp16_weights_on_model_save"] == true);
  CHECK(zero["offload_optimizer"]["pin_memory"] == false);
  CHECK(CanonicalSetup(Read(text, planned.batch, 4), 4) == CanonicalSetup(planned, 4));

  const char* old = R"({"train_batch_size": 8, "zero_optimization": true, "allgather_size": 77})";
  const TrainSetup old_setup = Read(old, {1, 1, 4, 1024}, 4);
  const std::string of_old =
      KeepOtherKeys(WriteDeepSpeedConfig(old_setup, 4), ParseJsonText(old, "in.json"));
  CHECK_FALSE(Json::parse(of_old).contains("allgather_size"));
  CHECK(CanonicalSetup(Read(of_old, old_setup.batch, 4), 4) == CanonicalSetup(old_setup, 4));
}

// What a plan decides is "auto" in the config that came in; all else is as it came.
TEST_CASE("kept keys: at random, the result means the plan") {
  testing::RandomSetup random(23);
  for (int i = 0; i < 500; ++i) {
    const int64_t layers = 1 + i % 50;
    const TrainSetup setup = random.Next(layers);
    Json in = Json::parse(WriteDeepSpeedConfig(setup, layers));
    in["train_batch_size"] = in["train_micro_batch_size_per_gpu"] = "auto";
    in["gradient_accumulation_steps"] = in["zero_optimization"]["reduce_bucket_size"] = "auto";
    in["zero_optimization"]["ignore_unused_parameters"] = true;
    in["optimizer"]["params"]["fused"] = true;
    in["wandb"] = {{"enabled", false}};
    in["own"] = i;
    TrainSetup planned = setup;
    planned.batch.micro_batch += 3;
    planned.batch.grad_accum += 1;
    planned.zero.reduce_bucket_elements = 1000 + static_cast<uint64_t>(i);
    const std::string text =
        KeepOtherKeys(WriteDeepSpeedConfig(planned, layers), ParseJsonText(in.dump(), "in.json"));
    CAPTURE(text);
    const Json out = Json::parse(text);
    CHECK(out["own"] == i);
    CHECK(out["wandb"] == in["wandb"]);
    CHECK(out["optimizer"]["params"]["fused"] == true);
    CHECK(out["zero_optimization"]["ignore_unused_parameters"] == true);
    CHECK(Read(text, planned.batch, layers) == CanonicalSetup(planned, layers));
  }
}

TEST_CASE("kept keys: what a config says") {
  const JsonNode config = ParseJsonText(
      R"({"a": {"b": 1, "c": "auto", "d": null, "e": false}, "f": "auto"})", "in.json");
  CHECK(ConfigSays(config, "a"));
  CHECK(ConfigSays(config, "a.b"));
  CHECK(ConfigSays(config, "a.e"));
  for (const char* key : {"a.c", "a.d", "a.x", "f", "f.g", "x.y"})
    CHECK_FALSE(ConfigSays(config, key));
}

TEST_CASE("kept keys: a config carries its runtime's name, and the reader knows it") {
  const std::string text = NameRuntime(
      R"({"train_batch_size": 4, "_zeroplan": {"compile": "all"}})", "deepspeed 0.19.6", {});
  CHECK(Json::parse(text)["_zeroplan"] == Json{{"runtime", "deepspeed 0.19.6"}});
  ReadContext context;
  context.strict = true;
  const ReadResult read = ReadDeepSpeedConfig(text, "d.json", context);
  CHECK(read.warnings.empty());
  const std::string moved = NameRuntime(R"({"activation_checkpointing": {}})", "deepspeed 0.19.6",
                                        {{"offload_activations", "true"}});
  CHECK(Json::parse(moved)["activation_checkpointing"]["cpu_checkpointing"] == true);
  const std::string other =
      NameRuntime(R"({"train_batch_size": 4})", "fsdp2", {{"compile", "layers"}, {"code", "hf"}});
  CHECK_THROWS_WITH_AS(
      ReadDeepSpeedConfig(other, "d.json", context),
      doctest::Contains("_zeroplan.runtime: \"fsdp2\" is not read here: this is no "
                        "DeepSpeed config"),
      Error);
  CHECK_THROWS_WITH_AS(
      ReadDeepSpeedConfig(R"({"train_batch_size": 4, "_zeroplan": {"compile": "half"}})", "d.json",
                          context),
      doctest::Contains("_zeroplan.compile: \"half\" is not allowed; use \"none\", \"layers\" or "
                        "\"all\""),
      Error);
}

}  // namespace
}  // namespace zeroplan
