#include "core/config/deepspeed_writer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/config/deepspeed_reader.h"
#include "core/config/effective_values.h"
#include "core/lowering/lower.h"
#include "core/program/program.h"
#include "core/settings/setup_facts.h"
#include "tests/core/config/random_setup.h"
#include "tests/core/lowering/matrix.h"
#include "tests/error_of.h"

namespace zeroplan {
namespace {

TrainSetup ReadBack(const std::string& text, const BatchSpec& batch, int64_t layers) {
  ReadContext context;
  context.world_size = batch.world_size;
  context.seq_len = batch.seq_len;
  context.layers = layers;
  context.strict = true;
  return ReadDeepSpeedConfig(text, "written", context).setup;
}

TEST_CASE("writer: what is written is read back exactly") {
  testing::RandomSetup random(7);
  for (int i = 0; i < 3000; ++i) {
    const int64_t layers = 1 + i % 50;
    const TrainSetup setup = random.Next(layers);
    ValidateSetup(setup, "random");
    const std::string text = WriteDeepSpeedConfig(setup, layers);
    CAPTURE(text);
    // Strict JSON: the library accepts no comments and no trailing commas.
    REQUIRE(nlohmann::json::accept(text));
    const TrainSetup canonical = CanonicalSetup(setup, layers);
    const TrainSetup back = ReadBack(text, setup.batch, layers);
    CHECK(back.zero == canonical.zero);
    CHECK(back.precision == canonical.precision);
    CHECK(back.batch == canonical.batch);
    CHECK(back.recompute == canonical.recompute);
    CHECK(back.optimizer == canonical.optimizer);
    CHECK(back == canonical);
    CHECK(CanonicalSetup(back, layers) == back);
    CHECK(WriteDeepSpeedConfig(back, layers) == text);
  }
}

TEST_CASE("writer: shard groups are read back, by DeepSpeed's keys where it has the same") {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int group : {0, 2, 8, 16}) {
      for (int across = 0; across <= 2; ++across) {
        TrainSetup setup;
        setup.batch = {1, 2, 16, 1024};
        setup.zero.stage = stage;
        setup.zero.shard_group = group;
        setup.zero.across_stage = across;
        setup.zero.reduce_bucket_elements = setup.zero.prefetch_bucket_elements = 1000;
        setup.zero.max_live_parameters = 1000;
        if (FindSetupProblem(setup)) continue;
        CAPTURE(stage);
        CAPTURE(group);
        CAPTURE(across);
        const TrainSetup canonical = CanonicalSetup(setup, 4);
        const std::string text = WriteConfig(setup, 4);
        CHECK(ReadBack(text, setup.batch, 4) == canonical);
        const auto json = nlohmann::json::parse(text);
        const auto& zero = json["zero_optimization"];
        const bool hybrid = group == 2 || group == 8;
        CHECK(zero.contains("mics_shard_size") == (hybrid && stage == 3 && across == 0));
        CHECK(zero.contains("zero_hpz_partition_size") == (hybrid && stage == 3 && across == 2));
        const bool own = hybrid && (stage < 3 || across == 1);
        CHECK(json.contains("_zeroplan") == own);
        CHECK(DeepSpeedCannot(canonical).empty() == !own);
        if (own) CHECK(json["_zeroplan"]["across_groups"] == AcrossName(across));
      }
    }
  }
  TrainSetup mics;
  mics.batch = {1, 1, 16, 1024};
  mics.zero.stage = 3;
  mics.zero.shard_group = 8;
  mics.zero.offload_optimizer.device = OffloadDevice::kCpu;
  CHECK(DeepSpeedCannot(mics) == "shard groups of replicas (MiCS) with the optimizer on cpu");
}

TEST_CASE("writer: ranks that share sequences are read back, and said") {
  TrainSetup setup;
  setup.batch = {2, 3, 16, 1024, 4};
  setup.zero.reduce_bucket_elements = setup.zero.prefetch_bucket_elements = 1000;
  setup.zero.max_live_parameters = 1000;
  const std::string text = WriteDeepSpeedConfig(setup, 4);
  const auto json = nlohmann::json::parse(text);
  CHECK(json["sequence_parallel_size"] == 4);
  CHECK(json["train_batch_size"] == 2 * 3 * 4);
  CHECK(ReadBack(text, setup.batch, 4).batch == setup.batch);
  const auto values = EffectiveValues(setup, ParseJsonText(text, "written"));
  CHECK(std::any_of(values.begin(), values.end(), [](const EffectiveValue& value) {
    return value.key == "sequence_parallel_size" && value.value == "4";
  }));
}

TEST_CASE("writer: what it leaves out has no effect: the same program comes out") {
  testing::RandomSetup random(11);
  for (int i = 0; i < 60; ++i) {
    TrainSetup setup = random.Next(3);
    setup.batch = {2, 1 + i % 3, 1 + i % 4, 8};
    // Sizes at which a tiny model shards, cuts and gathers.
    setup.zero.reduce_bucket_elements = setup.zero.sub_group_elements = 5000;
    const ModelSpec model = testing::TinyModel(3);
    const TrainSetup back =
        ReadBack(WriteDeepSpeedConfig(setup, model.layers), setup.batch, model.layers);
    CHECK(FormatProgram(Lower(model, back)) == FormatProgram(Lower(model, setup)));
  }
}

TEST_CASE("writer: a common setup reads like one") {
  TrainSetup setup;
  setup.zero.stage = 3;
  setup.zero.reduce_bucket_elements = 201'326'592;
  setup.zero.prefetch_bucket_elements = 50'331'648;
  setup.zero.max_live_parameters = 1'000'000'000;
  setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
  setup.batch = {4, 2, 8, 2048};
  setup.recompute = FullRecompute();
  CHECK(WriteDeepSpeedConfig(setup, 24) == R"({
  "train_batch_size": 64,
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 2,
  "zero_optimization": {
    "stage": 3,
    "offload_optimizer": {
      "device": "cpu",
      "pin_memory": true
    },
    "overlap_comm": true,
    "reduce_bucket_size": 201326592,
    "sub_group_size": 16777216,
    "stage3_prefetch_bucket_size": 50331648,
    "stage3_param_persistence_threshold": 100000,
    "stage3_max_live_parameters": 1000000000,
    "stage3_max_reuse_distance": 0,
    "stage3_gather_16bit_weights_on_model_save": true
  },
  "bf16": {
    "enabled": true
  },
  "fp16": {
    "enabled": false
  },
  "gradient_clipping": 1.0,
  "optimizer": {
    "type": "AdamW",
    "params": {
      "lr": 0.001,
      "betas": [
        0.9,
        0.999
      ],
      "eps": 1e-08,
      "weight_decay": 0.0
    }
  },
  "activation_checkpointing": {
    "number_checkpoints": 24
  }
}
)");
}

TEST_CASE("writer: segments that no number of checkpoints gives") {
  TrainSetup setup;
  setup.zero.reduce_bucket_elements = setup.zero.prefetch_bucket_elements = 1000;
  setup.recompute = FullRecompute(6);
  const auto json = nlohmann::json::parse(WriteDeepSpeedConfig(setup, 10));
  CHECK(json["activation_checkpointing"]["number_checkpoints"] == 2);
  CHECK(json["_zeroplan"]["checkpoint_every"] == 6);
  CHECK(ReadBack(json.dump(), setup.batch, 10).recompute.every == 6);
  auto edited = json;
  edited["activation_checkpointing"]["number_checkpoints"] = 5;  // by hand: that is what counts
  CHECK(ReadBack(edited.dump(), setup.batch, 10).recompute.every == 2);
  setup.recompute = FullRecompute(5);
  CHECK_FALSE(nlohmann::json::parse(WriteDeepSpeedConfig(setup, 10)).contains("_zeroplan"));
}

TEST_CASE("writer: selective recompute is for zeroplan's reader alone") {
  TrainSetup setup;
  setup.zero.reduce_bucket_elements = setup.zero.prefetch_bucket_elements = 1000;
  setup.recompute = kSelectiveRecompute;
  const std::string text = WriteConfig(setup, 10);
  const auto json = nlohmann::json::parse(text);
  CHECK(json["_zeroplan"] == nlohmann::json{{"checkpointing", "selective"}});
  CHECK_FALSE(json.contains("activation_checkpointing"));
  for (const int64_t layers : {0, 10}) {
    CHECK(ReadBack(text, setup.batch, layers).recompute == kSelectiveRecompute);
  }
}

TEST_CASE("writer: every way to keep activations is read back exactly") {
  TrainSetup setup;
  setup.zero.reduce_bucket_elements = setup.zero.prefetch_bucket_elements = 1000;
  for (const int64_t layers : {0, 5, 4, 3, 1}) {
    for (const RecomputeConfig& homes : testing::Homes()) {
      setup.recompute = homes;
      const std::string text = WriteConfig(setup, layers);
      CAPTURE(text);
      const TrainSetup canonical = CanonicalSetup(setup, layers);
      CHECK(ReadBack(text, setup.batch, layers).recompute == canonical.recompute);
      CHECK(WriteConfig(canonical, layers) == text);
    }
  }
  setup.recompute = {
      RecomputeKind::kProducts, 0, 3, RecomputeKind::kSelective, {OffloadDevice::kCpu, 2}};
  auto json = nlohmann::json::parse(WriteConfig(setup, 5));
  CHECK(json["_zeroplan"] == nlohmann::json{{"checkpointing", "products"},
                                            {"checkpoint_layers", 3},
                                            {"checkpointing_above", "selective"},
                                            {"offload_activations", true},
                                            {"offload_activation_layers", 2}});
  // DeepSpeed's own key where it has one.
  setup.recompute = FullRecompute();
  setup.recompute.offload.device = OffloadDevice::kCpu;
  json = nlohmann::json::parse(WriteDeepSpeedConfig(setup, 5));
  CHECK(json["activation_checkpointing"] ==
        nlohmann::json{{"number_checkpoints", 5}, {"cpu_checkpointing", true}});
  CHECK_FALSE(json.contains("_zeroplan"));
}

TEST_CASE("writer: updates in the backward pass are for zeroplan's reader alone") {
  TrainSetup setup;
  setup.zero.stage = 2;
  setup.zero.reduce_bucket_elements = setup.zero.prefetch_bucket_elements = 1000;
  setup.optimizer.gradient_clipping = 0;
  setup.zero.optimizer_in_backward = true;
  CHECK(DeepSpeedCannot(setup) == "updates in the backward pass");
  CHECK(ReadBack(WriteConfig(setup, 10), setup.batch, 10).zero.optimizer_in_backward);
}

TEST_CASE("writer: deterministic runs are for zeroplan's reader alone") {
  TrainSetup setup;
  setup.zero.reduce_bucket_elements = setup.zero.prefetch_bucket_elements = 1000;
  CHECK_FALSE(nlohmann::json::parse(WriteConfig(setup, 10)).contains("_zeroplan"));
  setup.deterministic = true;
  CHECK(DeepSpeedCannot(setup) == "deterministic runs");
  for (const RecomputeConfig& recompute :
       {kNoRecompute, kSelectiveRecompute, FullRecompute(), FullRecompute(6)}) {
    setup.recompute = recompute;
    const std::string text = WriteConfig(setup, 10);
    CHECK(nlohmann::json::parse(text)["_zeroplan"]["deterministic"] == true);
    const TrainSetup back = ReadBack(text, setup.batch, 10);
    CHECK(back.deterministic);
    CHECK(back.recompute == recompute);
  }
}

TEST_CASE("writer: what DeepSpeed cannot do is said, and not written") {
  TrainSetup good;
  good.zero.reduce_bucket_elements = good.zero.prefetch_bucket_elements = 1000;
  CHECK(DeepSpeedCannot(good).empty());
  struct Case {
    void (*change)(TrainSetup*);
    const char* text;
  };
  const Case cases[] = {
      {[](TrainSetup* s) {
         s->zero.stage = 2;
         s->zero.offload_optimizer.device = OffloadDevice::kNvme;
         s->zero.offload_optimizer.nvme_path = "/d";
       },
       "the optimizer on NVMe below stage 3"},
      {[](TrainSetup* s) {
         s->zero.stage = 1;
         s->zero.offload_optimizer.device = OffloadDevice::kCpu;
         s->zero.offload_optimizer.ratio = 0.4;
       },
       "ratio 0.4 below stage 3"},
      {[](TrainSetup* s) { s->precision.grad_accum_dtype = Dtype::kF32; },
       "data_types.grad_accum_dtype fp32 with bf16 parameters at stage 0"},
      {[](TrainSetup* s) {
         s->precision.dtype = s->precision.grad_accum_dtype = Dtype::kF16;
         s->precision.min_loss_scale = 0.5;
       },
       "min_loss_scale 0.5"},
      {[](TrainSetup* s) {
         s->optimizer.schedule.kind = ScheduleKind::kWarmup;
         s->optimizer.schedule.warmup_steps = 0;
       },
       "warmup_num_steps 0"},
      {[](TrainSetup* s) { s->recompute = kSelectiveRecompute; }, "selective recompute"},
      {[](TrainSetup* s) { s->recompute = kProductsRecompute; }, "recompute of all but attention"},
      {[](TrainSetup* s) { s->recompute = {RecomputeKind::kFull, 1, 3}; },
       "recompute of the first 3 layers alone"},
      {[](TrainSetup* s) {
         s->recompute = {RecomputeKind::kFull, 1, 3, RecomputeKind::kSelective};
       },
       "selective recompute; recompute of the first 3 layers alone"},
      {[](TrainSetup* s) { s->recompute.offload.device = OffloadDevice::kCpu; },
       "activations on the CPU without full recompute"},
      {[](TrainSetup* s) {
         s->recompute = FullRecompute();
         s->recompute.offload = {OffloadDevice::kCpu, 2};
       },
       "activations of 2 layers alone on the CPU"},
  };
  for (const Case& c : cases) {
    TrainSetup setup = good;
    c.change(&setup);
    CAPTURE(c.text);
    CHECK(DeepSpeedCannot(setup).find(c.text) == 0);
    CHECK_THROWS_AS(WriteDeepSpeedConfig(setup, 0), CheckFailure);
  }
  good.zero.reduce_bucket_elements = kAuto;
  CHECK_THROWS_AS(WriteDeepSpeedConfig(good, 0), CheckFailure);
}

TEST_CASE("writer: a schedule as long as the run is auto, and read back") {
  TrainSetup setup;
  setup.batch = {1, 2, 16, 1024};
  setup.zero.reduce_bucket_elements = setup.zero.prefetch_bucket_elements = 1000;
  setup.zero.max_live_parameters = 1000;
  for (const ScheduleKind kind : {ScheduleKind::kWarmupDecay, ScheduleKind::kWarmupCosine}) {
    setup.optimizer.schedule.kind = kind;
    setup.optimizer.schedule.warmup_steps = 100;
    CHECK(DeepSpeedCannot(setup) == "a schedule without total_num_steps");
    const std::string text = WriteDeepSpeedConfig(setup, 4);
    CHECK(text == WriteConfig(setup, 4));
    CHECK(nlohmann::json::parse(text)["scheduler"]["params"]["total_num_steps"] == "auto");
    CHECK(ReadBack(text, setup.batch, 4).optimizer.schedule ==
          CanonicalSetup(setup, 4).optimizer.schedule);
  }
}

TEST_CASE("writer: quantized collectives are read back, and said to change in DeepSpeed") {
  TrainSetup setup;
  setup.batch = {1, 2, 16, 1024};
  setup.zero.stage = 3;
  setup.zero.reduce_bucket_elements = setup.zero.prefetch_bucket_elements = 1000;
  setup.zero.max_live_parameters = 1000;
  CHECK_FALSE(nlohmann::json::parse(WriteConfig(setup, 4))["zero_optimization"].contains(
      "zero_quantized_weights"));
  setup.zero.quantized_weights = true;
  CHECK(DeepSpeedCannot(setup).empty());
  setup.zero.quantized_gradients = true;
  const std::string text = WriteConfig(setup, 4);
  CHECK(ReadBack(text, setup.batch, 4) == CanonicalSetup(setup, 4));
  const auto zero = nlohmann::json::parse(text)["zero_optimization"];
  CHECK(zero["zero_quantized_weights"] == true);
  CHECK(zero["zero_quantized_gradients"] == true);
  CHECK(DeepSpeedCannot(setup) == "quantized gradients that are not fp16");
  setup.precision.dtype = setup.precision.grad_accum_dtype = Dtype::kF16;
  CHECK(DeepSpeedCannot(setup).empty());
  setup.zero.shard_group = 8;
  CHECK(DeepSpeedCannot(setup).find("in shard groups of replicas (MiCS)") != std::string::npos);
  setup.zero.across_stage = 2;
  CHECK(DeepSpeedCannot(setup).empty());
}

TEST_CASE("writer: states of every kind are read back, with DeepSpeed's keys where it has them") {
  TrainSetup setup;
  setup.batch = {1, 2, 4, 1024};
  setup.zero.reduce_bucket_elements = setup.zero.prefetch_bucket_elements = 1000;
  setup.zero.max_live_parameters = 1000;
  ReadContext context;
  context.world_size = 4;
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16, Dtype::kF32}) {
    for (const MasterWeights masters :
         {MasterWeights::kFp32, MasterWeights::kSplit, MasterWeights::kParam}) {
      for (const Dtype moments : {Dtype::kF32, Dtype::kBF16, Dtype::kDynamic8}) {
        for (int stage = 0; stage <= 3; ++stage) {
          for (const OffloadDevice device : {OffloadDevice::kNone, OffloadDevice::kCpu}) {
            if (stage == 0 && device != OffloadDevice::kNone) continue;
            setup.precision.dtype = setup.precision.grad_accum_dtype = dtype;
            setup.precision.master_weights = masters;
            setup.precision.moment_dtype = moments;
            setup.zero.stage = stage;
            setup.zero.offload_optimizer.device = device;
            if (FindSetupProblem(setup)) continue;
            const TrainSetup canonical = CanonicalSetup(setup, 4);
            CAPTURE(MasterWeightsName(masters));
            CAPTURE(MomentsName(moments));
            CAPTURE(stage);
            const std::string text = WriteConfig(setup, 4);
            const auto json = nlohmann::json::parse(text);
            const ReadResult back = ReadDeepSpeedConfig(text, "written", context);
            CHECK(back.setup == canonical);
            const bool own = json.contains("_zeroplan");
            CHECK(own == !DeepSpeedStatesCannot(setup).empty());
            CHECK(DeepSpeedCannot(canonical).empty() == !own);
            CHECK(back.warnings.size() == (own ? 1 : 0));
            ReadContext of_deepspeed = context;
            of_deepspeed.of_deepspeed = true;
            if (own) {
              CHECK(ErrorOf(ExitCode::kUsage,
                            [&] { ReadDeepSpeedConfig(text, "written", of_deepspeed); }) != "");
            } else {
              CHECK(ReadDeepSpeedConfig(text, "written", of_deepspeed).setup == canonical);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("writer: what DeepSpeed alone has is read back for a run of it") {
  TrainSetup setup;
  setup.batch = {1, 2, 4, 1024};
  setup.zero.stage = 3;
  setup.zero.reduce_bucket_elements = setup.zero.prefetch_bucket_elements = 1000;
  setup.zero.max_live_parameters = 1000;
  ReadContext context;
  context.world_size = 4;
  context.of_deepspeed = true;
  const auto read_back = [&] {
    const std::string text = WriteDeepSpeedConfig(setup, 4);
    CHECK(ReadDeepSpeedConfig(text, "written", context).setup == CanonicalSetup(setup, 4));
    return nlohmann::json::parse(text);
  };
  setup.precision.master_weights = MasterWeights::kParam;
  setup.precision.moment_dtype = Dtype::kBF16;
  CHECK(read_back()["bf16"]["bf16_optimizer_states"] == true);
  setup.precision.moment_dtype = Dtype::kF32;
  setup.precision.dtype = setup.precision.grad_accum_dtype = Dtype::kF16;
  setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
  CHECK(read_back()["fp16"]["fp16_master_weights_and_grads"] == true);
  setup.precision.master_weights = MasterWeights::kFp32;
  auto& optimizer = setup.zero.offload_optimizer;
  optimizer.pipeline_write = true;
  CHECK(read_back()["zero_optimization"]["offload_optimizer"].count("pipeline_write") == 0);
  optimizer.device = OffloadDevice::kNvme;
  optimizer.nvme_path = setup.zero.offload_param.nvme_path = "/nvme";
  setup.zero.offload_param.device = OffloadDevice::kNvme;
  setup.zero.offload_param.buffer_elements = 1234;
  const auto zero = read_back()["zero_optimization"];
  CHECK(zero["offload_optimizer"]["pipeline_write"] == true);
  CHECK(zero["offload_param"]["buffer_size"] == 1234);
}

}  // namespace
}  // namespace zeroplan
