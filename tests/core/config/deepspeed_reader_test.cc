// Configs that load, and what they come to. Those that do not: malformed_config_test.cc.
#include "core/config/deepspeed_reader.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "core/base/error.h"
#include "tests/core/config/read_config.h"
#include "tests/error_of.h"
#include "tests/has.h"

namespace zeroplan {
namespace {

using testing::HasNote;
using testing::OfDeepSpeed;
using testing::Read;

TEST_CASE("reader: an empty config is DeepSpeed's defaults") {
  const ReadResult r = Read("{}");
  const ZeroConfig& z = r.setup.zero;
  CHECK(z.stage == 0);
  CHECK(z.reduce_bucket_elements == 500'000'000);
  CHECK(z.allgather_bucket_elements == 500'000'000);
  CHECK(z.prefetch_bucket_elements == 50'000'000);
  CHECK(z.param_persistence_threshold == 100'000);
  CHECK(z.model_persistence_threshold == kUnlimited);
  CHECK(z.max_live_parameters == 1'000'000'000);
  CHECK(z.max_reuse_distance == 1'000'000'000);
  CHECK(z.sub_group_elements == 1'000'000'000);
  CHECK_FALSE(z.overlap_comm);
  CHECK(z.contiguous_gradients);
  CHECK(z.reduce_scatter);
  CHECK(z.allgather_partitions);
  CHECK(z.offload_optimizer.device == OffloadDevice::kNone);
  CHECK(z.offload_optimizer.buffer_count == 4);
  CHECK(z.offload_param.buffer_count == 5);
  CHECK(z.offload_param.max_in_cpu_elements == 1'000'000'000);
  CHECK(r.setup.precision.dtype == Dtype::kF32);
  CHECK(r.setup.precision.grad_accum_dtype == Dtype::kF32);
  CHECK(HasNote(r, "fp32, as DeepSpeed does"));
  CHECK(r.setup.recompute == kNoRecompute);
  CHECK(r.setup.optimizer.lr == 1e-3);
  CHECK(r.setup.optimizer.gradient_clipping == 1.0);
  CHECK(r.setup.optimizer.schedule.kind == ScheduleKind::kConstant);
  CHECK(r.setup.batch.global_batch() == 1);
}

TEST_CASE("reader: ranks that share sequences, by DeepSpeed's key") {
  ReadContext context;
  context.world_size = 8;
  const auto batch = [&](const char* config) { return Read(config, context).setup.batch; };
  CHECK(batch("{}").sequence_ranks == 1);
  const BatchSpec four = batch(R"({"sequence_parallel_size": 4, "train_batch_size": 12,
                                   "train_micro_batch_size_per_gpu": 2})");
  CHECK(four.sequence_ranks == 4);
  CHECK(four.data_ranks() == 2);
  CHECK(four.grad_accum == 3);
  CHECK(four.global_batch() == 12);
  const auto refused = [&](const char* config, const char* why) {
    CHECK_THROWS_WITH_AS(Read(config, context), doctest::Contains(why), Error);
  };
  refused(
      R"({"sequence_parallel_size": 3})",
      "ds.json:1: sequence_parallel_size: 3 is not allowed with 8 GPUs; use a divisor of these");
  refused(R"({"sequence_parallel_size": 4, "train_batch_size": 5})", "2 groups of 4 GPUs");
  context.seq_len = 1022;
  refused(R"({"sequence_parallel_size": 4})",
          "sequence_parallel_size: 4 is not allowed with sequences of 1022 tokens");
  context.of_deepspeed = true;
  CHECK(batch(R"({"sequence_parallel_size": 2})").sequence_ranks == 2);
}

TEST_CASE("reader: the ZeRO-Offload tutorial's config as printed") {
  const ReadResult r = Read(R"({
    "zero_optimization": {
        "stage": 2,
        "offload_optimizer": {
            "device": "cpu",
        }
        "contiguous_gradients": true,
        "overlap_comm": true
    }
})");
  CHECK(r.setup.zero.stage == 2);
  CHECK(r.setup.zero.offload_optimizer.device == OffloadDevice::kCpu);
  CHECK(r.setup.zero.overlap_comm);
}

TEST_CASE("reader: a stage 3 config as people write it") {
  ReadContext context;
  context.world_size = 8;
  context.seq_len = 2048;
  context.layers = 32;
  const ReadResult r = Read(R"({
    "train_batch_size": "64",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.5,
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 12},
    "data_types": {"grad_accum_dtype": "fp32"},
    "zero_optimization": {
      "stage": "3",
      "stage3_max_live_parameters": 1e9,
      "max_reuse_distance": 5e8,
      "stage3_prefetch_bucket_size": "auto",
      "reduce_bucket_size": "auto",
      "stage3_param_persistence_threshold": 1e14,
      "sub_group_size": 2e8,
      "stage3_gather_16bit_weights_on_model_save": true,
      "offload_optimizer": {"device": "nvme", "nvme_path": "/disk", "buffer_count": 3, "pin_memory": false},
      "offload_param": {"device": "cpu", "max_in_cpu": 7, "buffer_size": 1e8}
    },
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-7, "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 10, "total_num_steps": 100, "warmup_type": "linear"}},
    "activation_checkpointing": {"partition_activations": true, "number_checkpoints": 5},
    "steps_per_print": 100, "wall_clock_breakdown": false, "_mine": 1, "comment": "x"
  })",
                            context);
  const TrainSetup& s = r.setup;
  CHECK(s.zero.stage == 3);
  CHECK(s.zero.overlap_comm);
  CHECK(s.zero.max_reuse_distance == 500'000'000);
  CHECK(s.zero.prefetch_bucket_elements == kAuto);
  CHECK(s.zero.reduce_bucket_elements == kAuto);
  CHECK(s.zero.param_persistence_threshold == 100'000'000'000'000);
  CHECK(s.zero.sub_group_elements == 200'000'000);
  CHECK(s.zero.offload_optimizer.device == OffloadDevice::kNvme);
  CHECK(s.zero.offload_optimizer.nvme_path == "/disk");
  CHECK(s.zero.offload_optimizer.buffer_count == 3);
  CHECK_FALSE(s.zero.offload_optimizer.pin_memory);
  CHECK(s.zero.offload_param.device == OffloadDevice::kCpu);
  CHECK(s.zero.offload_param.max_in_cpu_elements == 7);
  CHECK(s.batch.micro_batch == 4);
  CHECK(s.batch.grad_accum == 2);
  CHECK(s.batch.seq_len == 2048);
  CHECK(s.precision.dtype == Dtype::kBF16);
  CHECK(s.precision.grad_accum_dtype == Dtype::kF32);
  CHECK(s.precision.initial_scale_power == 12);
  CHECK(s.optimizer.lr == 3e-4);
  CHECK(s.optimizer.betas[1] == 0.95);
  CHECK(s.optimizer.weight_decay == 0.1);
  CHECK(s.optimizer.gradient_clipping == 0.5);
  CHECK(s.optimizer.schedule.kind == ScheduleKind::kWarmupDecay);
  CHECK(s.optimizer.schedule.warmup_max_lr == 0.001);
  REQUIRE(r.warnings.size() == 1);  // the optimizer's rate would be passed over in silence
  CHECK(r.warnings[0].find("scheduler.params.warmup_max_lr: is not set: the rate is DeepSpeed's "
                           "default 0.001, not optimizer.params.lr 0.0003") != std::string::npos);
  CHECK(s.optimizer.schedule.total_steps == 100);
  CHECK_FALSE(s.optimizer.schedule.log_warmup);
  CHECK(s.recompute.every == 7);  // ceil(32 / 5)
  CHECK(HasNote(r, "steps_per_print"));
  CHECK(HasNote(r, "partition_activations"));
  CHECK(HasNote(r, "buffer_size"));
  CHECK_FALSE(HasNote(r, "wall_clock_breakdown"));
  CHECK_FALSE(HasNote(r, "_mine"));
}

TEST_CASE("reader: precision from config and command line") {
  auto dtype = [](const char* text, std::optional<Dtype> wanted = {}) {
    ReadContext context;
    context.dtype = wanted;
    return Read(text, context).setup.precision.dtype;
  };
  CHECK(dtype(R"({"fp16": {"enabled": true}})") == Dtype::kF16);
  CHECK(dtype(R"({"bf16": {"enabled": true}})") == Dtype::kBF16);
  CHECK(dtype(R"({"bfloat16": {"enabled": true}})") == Dtype::kBF16);
  CHECK(dtype(R"({"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}})") == Dtype::kBF16);
  CHECK(dtype(R"({"fp16": {"enabled": "auto"}})") == Dtype::kF16);
  CHECK(dtype(R"({"fp16": "auto"})") == Dtype::kF16);
  CHECK(dtype(R"({"fp16": {"enabled": "auto"}})", Dtype::kF32) == Dtype::kF32);
  CHECK(dtype(R"({"fp16": {"enabled": false}, "bf16": {"enabled": false}})") == Dtype::kF32);
  CHECK(dtype("{}", Dtype::kBF16) == Dtype::kBF16);
  CHECK(dtype(R"({"bf16": {"enabled": true}})", Dtype::kBF16) == Dtype::kBF16);
  CHECK(Read(R"({"bf16": {"enabled": true}})").setup.precision.grad_accum_dtype == Dtype::kBF16);
}

TEST_CASE("reader: what gradients are summed and sent in, from config and command line") {
  ReadContext four;
  four.world_size = 4;
  const auto precision = [&](const std::string& more, const ReadContext& context) {
    return Read(R"({"bf16": {"enabled": true})" + more + "}", context).setup.precision;
  };
  const auto reduces = [&](const std::string& more, const ReadContext& context) {
    return precision(more, context).fp32_reduction;
  };
  for (const char* stage : {"0", "1", "2", "3"}) {
    CAPTURE(stage);
    const std::string zero = std::string(R"(, "zero_optimization": {"stage": )") + stage + "}";
    CHECK_FALSE(reduces(zero, four));
    CHECK_FALSE(reduces(zero + R"(, "communication_data_type": "bf16")", four));
    CHECK(reduces(zero + R"(, "communication_data_type": "fp32")", four));
    CHECK(reduces(zero + R"(, "fp32_allreduce": true)", four));
    CHECK(reduces(zero + R"(, "communication_data_type": "fp32", "fp32_allreduce": true)", four));
    ReadContext asked = four;
    asked.grad_accum_dtype = asked.communication_dtype = Dtype::kF32;
    CHECK(reduces(zero, asked));
    CHECK(reduces(zero + R"(, "communication_data_type": "auto")", asked));
    CHECK(precision(zero, asked).grad_accum_dtype == Dtype::kF32);
    const std::string open = R"(, "data_types": {"grad_accum_dtype": "auto"})";
    CHECK(precision(zero + open, asked).grad_accum_dtype == Dtype::kF32);
    CHECK_THROWS_WITH_AS(
        precision(zero + R"(, "data_types": {"grad_accum_dtype": "bf16"})", asked),
        doctest::Contains("grad_accum_dtype: bf16 contradicts ⟦grad_accum_dtype⟧ fp32; use "
                          "⟦grad_accum_dtype⟧ bf16 or change the config"),
        Error);
    CHECK_THROWS_WITH_AS(
        precision(zero + R"(, "communication_data_type": "bf16")", asked),
        doctest::Contains("communication_data_type: bf16 contradicts ⟦communication_dtype⟧ fp32"),
        Error);
  }
  ReadContext half = four;
  half.grad_accum_dtype = Dtype::kF16;
  CHECK_THROWS_WITH_AS(
      precision("", half),
      doctest::Contains("⟦grad_accum_dtype⟧: fp16 is not allowed with bf16 parameters"), Error);
  half.grad_accum_dtype.reset();
  half.communication_dtype = Dtype::kF16;
  CHECK_THROWS_WITH_AS(precision("", half),
                       doctest::Contains("⟦communication_dtype⟧: fp16 is not supported"), Error);
  // Nothing is sent by one GPU; in fp32 nothing is converted.
  const ReadResult alone =
      Read(R"({"bf16": {"enabled": true}, "communication_data_type": "fp32"})");
  CHECK(HasNote(alone, "communication_data_type: has no effect on one GPU"));
  CHECK_FALSE(Read(R"({"communication_data_type": "fp32"})", four).setup.precision.fp32_reduction);
}

TEST_CASE("reader: deprecated forms") {
  CHECK(Read(R"({"zero_optimization": true})").setup.zero.stage == 1);
  CHECK(Read(R"({"zero_optimization": false})").setup.zero.stage == 0);
  CHECK(Read(R"({"zero_optimization": null})").setup.zero.stage == 0);
  const ReadResult r = Read(R"({"zero_optimization": {"stage": 3, "cpu_offload": true,
      "cpu_offload_param": true, "cpu_offload_use_pin_memory": false}})");
  CHECK(r.setup.zero.offload_optimizer.device == OffloadDevice::kCpu);
  CHECK(r.setup.zero.offload_param.device == OffloadDevice::kCpu);
  CHECK_FALSE(r.setup.zero.offload_optimizer.pin_memory);
  CHECK_FALSE(r.setup.zero.offload_param.pin_memory);
  CHECK(HasNote(r, "cpu_offload is deprecated") == false);
  CHECK(HasNote(r, "zero_optimization.cpu_offload: is deprecated"));
  CHECK(Read(R"({"gradient_clipping": true})").setup.optimizer.gradient_clipping == 1.0);
  CHECK(Read(R"({"gradient_clipping": 0})").setup.optimizer.gradient_clipping == 0.0);
}

TEST_CASE("reader: optimizers and schedules") {
  auto optimizer = [](const std::string& text) { return Read("{" + text + "}").setup.optimizer; };
  CHECK(optimizer(R"("optimizer": {"type": "Adam"})").adam_w_mode);
  CHECK_FALSE(
      optimizer(R"("optimizer": {"type": "Adam", "params": {"adam_w_mode": false}})").adam_w_mode);
  // DeepSpeed's AdamW decays decoupled whatever the switch says.
  CHECK(
      optimizer(R"("optimizer": {"type": "adamw", "params": {"adam_w_mode": false}})").adam_w_mode);
  CHECK(optimizer(R"("optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}})")
            .lr == 1e-3);

  const std::string adam = R"("optimizer": {"type": "Adam", "params": {"lr": 0.5}}, )";
  const auto warmup =
      optimizer(adam + R"("scheduler": {"type": "WarmupLR", "params": {}})").schedule;
  CHECK(warmup.kind == ScheduleKind::kWarmup);
  CHECK(warmup.warmup_max_lr == 0.5);
  CHECK(warmup.warmup_steps == 1000);
  CHECK(warmup.log_warmup);
  const auto decay = optimizer(adam + R"("scheduler": {"type": "WarmupDecayLR",
      "params": {"total_num_steps": "auto", "warmup_max_lr": "auto"}})")
                         .schedule;
  CHECK(decay.kind == ScheduleKind::kWarmupDecay);
  CHECK(decay.total_steps == 0);
  CHECK(decay.warmup_max_lr == 0.5);
  const auto cosine = optimizer(adam + R"("scheduler": {"type": "WarmupCosineLR",
      "params": {"total_num_steps": 1e4, "cos_min_ratio": 0.1, "warmup_min_ratio": 0.2}})")
                          .schedule;
  CHECK(cosine.kind == ScheduleKind::kWarmupCosine);
  CHECK(cosine.total_steps == 10'000);
  CHECK(cosine.cos_min_ratio == 0.1);
  CHECK(cosine.warmup_min_ratio == 0.2);
}

TEST_CASE("reader: recompute") {
  auto every = [](const char* text, int64_t layers) {
    ReadContext context;
    context.layers = layers;
    return Read(text, context).setup.recompute.every;
  };
  CHECK(every(R"({"activation_checkpointing": {}})", 24) == 1);
  CHECK(every(R"({"activation_checkpointing": {"number_checkpoints": null}})", 24) == 1);
  CHECK(every(R"({"activation_checkpointing": {"number_checkpoints": 24}})", 24) == 1);
  CHECK(every(R"({"activation_checkpointing": {"number_checkpoints": 6}})", 24) == 4);
  CHECK(every(R"({"activation_checkpointing": {"number_checkpoints": 1}})", 24) == 24);
  CHECK(every(R"({"activation_checkpointing": {"number_checkpoints": 1e6}})", 24) == 1);
  CHECK(every(R"({"activation_checkpointing": {"number_checkpoints": 6}})", 0) == 1);
  CHECK(every(R"({"activation_checkpointing": null})", 24) == 0);
}

TEST_CASE("reader: deterministic runs are zeroplan's own key") {
  auto read = [](const char* text) { return Read(text, {}); };
  CHECK_FALSE(read("{}").setup.deterministic);
  CHECK_FALSE(read(R"({"_zeroplan": {"deterministic": false}})").setup.deterministic);
  const ReadResult on = read(R"({"_zeroplan": {"deterministic": true}})");
  CHECK(on.setup.deterministic);
  REQUIRE(on.warnings.size() == 1);
  CHECK(on.warnings[0].find("DeepSpeed itself does not: deterministic runs") != std::string::npos);
  CHECK_THROWS_WITH_AS(read(R"({"_zeroplan": {"deterministic": "often"}})"),
                       doctest::Contains("ds.json:1: _zeroplan.deterministic: \"often\" is not "
                                         "allowed; use true or false"),
                       Error);
}

TEST_CASE("reader: updates in the backward pass, and what they rule out") {
  const auto read = [](const std::string& keys) {
    return Read(R"({"bf16": {"enabled": true}, "_zeroplan": {"optimizer_in_backward": true}, )" +
                    keys + "}",
                {});
  };
  const ReadResult on = read(R"("gradient_clipping": 0, "zero_optimization": {"stage": 2})");
  CHECK(on.setup.zero.optimizer_in_backward);
  REQUIRE(on.warnings.size() == 1);
  CHECK(on.warnings[0].find("updates in the backward pass") != std::string::npos);
  const auto refuses = [&](const char* keys, const char* why) {
    CAPTURE(keys);
    CHECK_THROWS_WITH_AS(read(keys), doctest::Contains(why), Error);
  };
  refuses(R"("gradient_clipping": 0, "zero_optimization": {"stage": 1})",
          "_zeroplan.optimizer_in_backward: true is not allowed at stage 1, which keeps whole "
          "gradients; use stage 2 or 3");
  refuses(R"("zero_optimization": {"stage": 2})",
          "with gradient_clipping 1: the norm is known after the backward pass; use "
          "gradient_clipping 0");
  refuses(R"("gradient_clipping": 0, "zero_optimization": {"stage": 2,
             "offload_optimizer": {"device": "cpu", "ratio": 0.5}})",
          "(offload_optimizer.ratio 0.5); use ratio 1");
  CHECK_THROWS_WITH_AS(Read(R"({"fp16": {"enabled": true}, "gradient_clipping": 0,
                               "zero_optimization": {"stage": 3},
                               "_zeroplan": {"optimizer_in_backward": true}})",
                            {}),
                       doctest::Contains("true is not allowed in fp16"), Error);
}

TEST_CASE("reader: a schedule of the run is zeroplan's own key") {
  auto read = [](const char* text) { return Read(text, {}); };
  const ScheduleConfig schedule =
      read(R"({"_zeroplan": {"lr_schedule": "cosine", "warmup_ratio": 0.03, "min_lr_ratio": 0.1}})")
          .setup.optimizer.schedule;
  CHECK(schedule.kind == ScheduleKind::kOfRun);
  CHECK(schedule.of_run == RunScheduleConfig{DecayShape::kCosine, 0.03, 0, 0.1});
  CHECK_THROWS_WITH_AS(read(R"({"_zeroplan": {"lr_schedule": "square"}})"),
                       doctest::Contains("ds.json:1: _zeroplan.lr_schedule: \"square\" is not "
                                         "allowed; use \"constant\", \"linear\" or \"cosine\""),
                       Error);
  CHECK_THROWS_WITH_AS(
      read(R"({"_zeroplan": {"lr_schedule": "linear"}, "scheduler": {"type": "WarmupLR"}})"),
      doctest::Contains("_zeroplan.lr_schedule: does not go with a scheduler"), Error);
}

TEST_CASE("reader: selective recompute is zeroplan's own key") {
  auto read = [](const char* text) { return Read(text, {}); };
  const ReadResult selective = read(R"({"_zeroplan": {"checkpointing": "selective"}})");
  CHECK(selective.setup.recompute == kSelectiveRecompute);
  REQUIRE(selective.warnings.size() == 1);
  CHECK(selective.warnings[0].find("DeepSpeed itself does not: selective recompute") !=
        std::string::npos);
  CHECK(read(R"({"_zeroplan": {}})").setup.recompute == kNoRecompute);
  CHECK(read(R"({"_zeroplan": {"checkpointing": null}})").setup.recompute == kNoRecompute);
  const ReadResult both =
      read(R"({"activation_checkpointing": {}, "_zeroplan": {"checkpointing": "selective"}})");
  CHECK(both.setup.recompute == FullRecompute());
  REQUIRE(both.warnings.size() == 1);
  CHECK(both.warnings[0].find("_zeroplan.checkpointing: does not go with") != std::string::npos);
  const ReadResult alone = read(R"({"_zeroplan": {"checkpoint_every": 3}})");
  CHECK(alone.setup.recompute == kNoRecompute);
  REQUIRE(alone.warnings.size() == 1);
  CHECK(alone.warnings[0].find("_zeroplan.checkpoint_every: has no effect without") !=
        std::string::npos);
  CHECK_THROWS_WITH_AS(read(R"({"_zeroplan": 7})"), doctest::Contains("ds.json:1: _zeroplan: 7"),
                       Error);
  CHECK_THROWS_WITH_AS(read(R"({"_zeroplan": {"checkpointing": "full"}})"),
                       doctest::Contains("ds.json:1: _zeroplan.checkpointing: \"full\" is not "
                                         "allowed; use \"selective\" or \"products\""),
                       Error);
}

TEST_CASE("reader: cpu_checkpointing is honoured, with a note of what has no effect beside it") {
  const ReadResult r = Read(R"({"activation_checkpointing":
      {"cpu_checkpointing": true, "partition_activations": true, "number_checkpoints": 2}})",
                            {.layers = 8});
  RecomputeConfig expected = FullRecompute(4);
  expected.offload.device = OffloadDevice::kCpu;
  CHECK(r.setup.recompute == expected);
  CHECK(r.warnings.empty());
  CHECK(HasNote(r, "partition_activations: has no effect: it splits what is kept over ranks of"));
  CHECK_FALSE(HasNote(r, "cpu_checkpointing"));
  CHECK_FALSE(r.offload_activations);  // that is DeepSpeed's
  CHECK(Read(R"({"activation_checkpointing": {"cpu_checkpointing": false}})", {}).setup.recompute ==
        FullRecompute());
}

TEST_CASE("reader: what of activations has no key of DeepSpeed's is read, or ignored aloud") {
  using enum RecomputeKind;
  constexpr ActivationHome kAll = {OffloadDevice::kCpu}, kFive = {OffloadDevice::kCpu, 5};
  struct Case {
    const char* text;
    RecomputeConfig expected;
    const char* warning;  // "" for none beside what DeepSpeed cannot
  };
  const Case cases[] = {
      {R"({"_zeroplan": {"checkpointing": "products"}})", kProductsRecompute, ""},
      {R"({"_zeroplan": {"checkpointing": "products", "checkpoint_layers": 3}})",
       {kProducts, 0, 3},
       ""},
      {R"({"_zeroplan": {"checkpointing": "products", "checkpoint_layers": 3,
           "checkpointing_above": "selective"}})",
       {kProducts, 0, 3, kSelective},
       ""},
      {R"({"_zeroplan": {"checkpointing": "products", "checkpoint_layers": 3,
           "checkpointing_above": "none"}})",
       {kProducts, 0, 3},
       ""},
      {R"({"activation_checkpointing": {}, "_zeroplan": {"checkpoint_layers": 3}})",
       {kFull, 1, 3},
       ""},
      {R"({"_zeroplan": {"offload_activations": true}})", {kNone, 0, 0, kNone, kAll}, ""},
      {R"({"_zeroplan": {"offload_activations": false}})", kNoRecompute, ""},
      {R"({"_zeroplan": {"offload_activation_layers": 5}})", {kNone, 0, 0, kNone, kFive}, ""},
      {R"({"activation_checkpointing": {"cpu_checkpointing": true},
           "_zeroplan": {"offload_activation_layers": 5}})",
       {kFull, 1, 0, kNone, kFive},
       ""},
      {R"({"activation_checkpointing": {}, "_zeroplan": {"offload_activations": true}})",
       {kFull, 1, 0, kNone, kAll},
       ""},
      {R"({"_zeroplan": {"checkpoint_layers": 3}})", kNoRecompute,
       "_zeroplan.checkpoint_layers: has no effect without activation_checkpointing or"},
      {R"({"_zeroplan": {"checkpointing": "products", "checkpointing_above": "selective"}})",
       kProductsRecompute, "_zeroplan.checkpointing_above: has no effect without recompute of"},
      {R"({"_zeroplan": {"checkpointing": "selective", "checkpoint_layers": 3,
           "checkpointing_above": "selective"}})",
       {kSelective, 0, 3},
       "_zeroplan.checkpointing_above: does not go with checkpointing \"selective\""},
      {R"({"_zeroplan": {"offload_activations": false, "offload_activation_layers": 5}})",
       kNoRecompute, "_zeroplan.offload_activation_layers: has no effect on activations that stay"},
      {R"({"activation_checkpointing": {"cpu_checkpointing": false},
           "_zeroplan": {"offload_activations": true}})",
       FullRecompute(), "_zeroplan.offload_activations: does not go with activation_checkpointing"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.text);
    const ReadResult read = Read(c.text, {});
    CHECK(read.setup.recompute == c.expected);
    const std::string warning = read.warnings.empty() ? "" : read.warnings.front();
    CAPTURE(warning);
    if (*c.warning == '\0') {
      CHECK((warning.empty() || warning.find("DeepSpeed itself does not") != std::string::npos));
    } else {
      CHECK(warning.find(c.warning) != std::string::npos);
      CHECK(warning.find("and is ignored") != std::string::npos);
    }
  }
  const ReadResult other = Read(R"({"_zeroplan": {"offload_activations": true}})", OfDeepSpeed());
  CHECK(other.setup.recompute == kNoRecompute);
  CHECK_FALSE(other.offload_activations);
  REQUIRE_FALSE(other.warnings.empty());
  CHECK(other.warnings[0].find("_zeroplan.offload_activations: is not read for DeepSpeed; use") !=
        std::string::npos);
}

TEST_CASE("reader: the command line fills what is open") {
  ReadContext context;
  context.world_size = 4;
  context.micro_batch = 2;
  context.global_batch = 32;
  const BatchSpec batch = Read(R"({"train_batch_size": "auto"})", context).setup.batch;
  CHECK(batch.micro_batch == 2);
  CHECK(batch.grad_accum == 4);
  CHECK(Read(R"({"train_batch_size": 32})", context).setup.batch.grad_accum == 4);
  CHECK_THROWS_WITH_AS(
      Read(R"({"train_batch_size": 16})", context),
      doctest::Contains("ds.json:1: train_batch_size: 16 contradicts ⟦global_batch⟧ 32"), Error);
}

TEST_CASE("reader: shard groups by DeepSpeed's keys and zeroplan's") {
  ReadContext context;
  context.world_size = 16;
  const auto zero = [&](const std::string& keys, const std::string& own = "{}") {
    return Read(fmt::format(R"({{"zero_optimization": {{"stage": 3{}}}, "_zeroplan": {}}})", keys,
                            own),
                context)
        .setup.zero;
  };
  const auto groups = [&](const std::string& keys, const std::string& own = "{}") {
    const ZeroConfig of = zero(keys, own);
    return std::pair(of.shard_group, of.across_stage);
  };
  CHECK(groups("") == std::pair(0, 0));
  CHECK(groups(R"(, "mics_shard_size": 8)") == std::pair(8, 0));
  CHECK(groups(R"(, "mics_shard_size": -1, "zero_hpz_partition_size": 8)") == std::pair(8, 2));
  CHECK(groups("", R"({"shard_group": 4, "across_groups": "optimizer"})") == std::pair(4, 1));
  CHECK(groups("", R"({"shard_group": "all"})") == std::pair(0, 0));
  CHECK(groups("", R"({"shard_group": 16})") == std::pair(0, 0));
  for (const char* all : {R"({"shard_group": 16, "across_groups": "optimizer"})",
                          R"({"shard_group": "all", "across_groups": "optimizer"})"}) {
    CHECK_THROWS_WITH_AS(groups("", all),
                         doctest::Contains("_zeroplan.across_groups: optimizer is not allowed: one "
                                           "group of all 16 ranks has none to share with"),
                         Error);
  }
  // All ranks are one group; DeepSpeed cuts a larger hpZ group down to these.
  CHECK(groups(R"(, "mics_shard_size": 16)") == std::pair(0, 0));
  CHECK(groups(R"(, "zero_hpz_partition_size": 32)") == std::pair(0, 0));
  // What is said twice may agree.
  CHECK(groups(R"(, "mics_shard_size": 8)",
               R"({"shard_group": 8, "across_groups": "replicate"})") == std::pair(8, 0));
  CHECK_THROWS_WITH_AS(
      groups(R"(, "mics_shard_size": 8)", R"({"shard_group": 4})"),
      doctest::Contains("_zeroplan.shard_group: 4 contradicts zero_optimization.mics_shard_size 8"),
      Error);
  CHECK_THROWS_WITH_AS(groups(R"(, "zero_hpz_partition_size": 8)", R"({"shard_group": "all"})"),
                       doctest::Contains("contradicts zero_optimization.zero_hpz_partition_size 8"),
                       Error);
  CHECK_THROWS_WITH_AS(
      groups(R"(, "mics_shard_size": 8)", R"({"across_groups": "gradients"})"),
      doctest::Contains("across_groups: gradients contradicts zero_optimization.mics_shard_size 8"),
      Error);
  CHECK_THROWS_WITH_AS(
      groups(R"(, "mics_shard_size": 6)"),
      doctest::Contains("mics_shard_size: 6 is not allowed with 16 GPUs; use a divisor"), Error);
  CHECK_THROWS_WITH_AS(
      groups(R"(, "zero_hpz_partition_size": 8, "offload_param": {"device": "cpu"})"),
      doctest::Contains("not supported with offload_param.device cpu"), Error);
  const std::string two = R"({"zero_optimization": {"stage": 2, "mics_shard_size": 8}})";
  const ReadResult below = Read(two, context);
  CHECK(below.setup.zero.shard_group == 0);
  CHECK(HasNote(below, "mics_shard_size: has no effect below stage 3"));
  CHECK_NOTHROW(
      Read(R"({"zero_optimization": {"stage": 3, "mics_hierarchical_params_gather": true}})"));
  // Stage 1 keeps whole gradients; the line of the key is named.
  CHECK_THROWS_WITH_AS(
      Read("{\"zero_optimization\": {\"stage\": 1},\n\"_zeroplan\": {\"shard_group\": 8,\n"
           "\"across_groups\": \"gradients\"}}",
           context),
      doctest::Contains("ds.json:3: _zeroplan.across_groups: gradients is not allowed at stage 1"),
      Error);
}

TEST_CASE("reader: quantized collectives are those of stage 3") {
  for (const int stage : {2, 3}) {
    const ReadResult r = Read(fmt::format(
        R"({{"zero_optimization": {{"stage": {}, "zero_quantized_weights": true,
            "zero_quantized_gradients": true}}}})",
        stage));
    CHECK(r.setup.zero.quantized_weights == (stage == 3));
    CHECK(r.setup.zero.quantized_gradients == (stage == 3));
    const auto ignored = [](const std::string& note) {
      return note.find("has no effect below stage 3") != std::string::npos;
    };
    CHECK(std::count_if(r.notes.begin(), r.notes.end(), ignored) == (stage == 3 ? 0 : 2));
  }
}

TEST_CASE("reader: offload that DeepSpeed alone has, for a run of it") {
  const ReadResult r = Read(
      R"({"activation_checkpointing": {"cpu_checkpointing": true}, "zero_optimization": {"stage": 3,
          "offload_optimizer": {"device": "nvme", "nvme_path": "/n", "pipeline_read": true},
          "offload_param": {"device": "nvme", "nvme_path": "/n", "buffer_size": 5}}})",
      OfDeepSpeed());
  CHECK(r.offload_activations);
  CHECK(r.setup.zero.offload_optimizer.pipeline_read);
  CHECK_FALSE(r.setup.zero.offload_optimizer.pipeline_write);
  CHECK(r.setup.zero.offload_param.buffer_elements == 5);
  CHECK_FALSE(HasNote(r, "pipeline_read"));
  // Asynchronous updates and superchips are refused there too, with a way out.
  for (const char* key :
       {"\"zenflow\": {\"topk_ratio\": 0.1}",
        "\"offload_optimizer\": {\"device\": \"cpu\", \"super_offload\": true}"}) {
    CHECK_THROWS_WITH_AS(
        Read(fmt::format(R"({{"zero_optimization": {{"stage": 3, {}}}}})", key), OfDeepSpeed()),
        doctest::Contains("remove it, which"), Error);
  }
}

TEST_CASE("reader: switched off is fine") {
  CHECK_NOTHROW(Read(
      R"({"amp": {"enabled": false}, "sparse_gradients": false, "elasticity": {"enabled": false},
    "prescale_gradients": false, "gradient_predivide_factor": 1.0, "communication_data_type": null,
    "curriculum_learning": {"enabled": false}, "zero_optimization": {"stage": 2, "zenflow": null,
    "round_robin_gradients": false, "zero_quantized_weights": false, "zero_hpz_partition_size": 1,
    "mics_shard_size": -1, "offload_param": {"device": "none"}, "stage3_max_live_parameters": 1}})"));
  const ReadResult r = Read(R"({"my_own_setting": 3})");
  REQUIRE(r.warnings.size() == 1);
  CHECK(r.warnings[0] ==
        "ds.json:1: my_own_setting: is not a known key and is ignored, by DeepSpeed as well");
}

}  // namespace
}  // namespace zeroplan
