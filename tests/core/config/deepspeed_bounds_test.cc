// Numbers, deprecated keys and "auto" as DeepSpeed's own classes take them. What is expected was
// compared with DeepSpeedConfig of 0.19.6 and 0.19.8 (runtime/zero/config.py, offload_config.py,
// runtime/precision_config.py).
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "tests/core/config/read_config.h"
#include "tests/has.h"

namespace zeroplan {
namespace {

using testing::HasNote;
using testing::OfDeepSpeed;
using testing::Read;

ReadContext For(ConfigFor whose) {
  ReadContext context;
  context.reads_for = whose;
  return context;
}

std::string Zero(const std::string& keys, int stage = 3) {
  return fmt::format(R"({{"zero_optimization": {{"stage": {}, {}}}}})", stage, keys);
}

std::string Offload(const std::string& section, const std::string& keys) {
  return Zero(fmt::format(R"("{}": {{{}}})", section, keys));
}

bool Warned(const ReadResult& result, std::string_view part) {
  return std::any_of(result.warnings.begin(), result.warnings.end(),
                     [&](const std::string& line) { return Has(line, std::string(part)); });
}

TEST_CASE("bounds: keys of ZeRO that DeepSpeed takes at 0 are taken at 0, in both spellings") {
  for (const char* key : {"allgather_bucket_size", "sub_group_size", "prefetch_bucket_size",
                          "stage3_prefetch_bucket_size", "param_persistence_threshold",
                          "stage3_param_persistence_threshold", "model_persistence_threshold",
                          "max_live_parameters", "stage3_max_live_parameters", "max_reuse_distance",
                          "zero_hpz_partition_size", "module_granularity_threshold"}) {
    CAPTURE(key);
    for (const char* zero : {"0", "\"0\"", "0.0"}) {
      for (const ConfigFor whose :
           {ConfigFor::kBoth, ConfigFor::kDeepSpeed, ConfigFor::kZeroplan}) {
        CHECK_NOTHROW(Read(Zero(fmt::format("\"{}\": {}", key, zero)), For(whose)));
      }
    }
  }
  const ZeroConfig zero =
      Read(Zero(R"("sub_group_size": 0, "allgather_bucket_size": 0, "max_live_parameters": 0,
                   "max_reuse_distance": 0, "prefetch_bucket_size": 0)"))
          .setup.zero;
  CHECK(zero.sub_group_elements == 0);
  CHECK(zero.allgather_bucket_elements == 0);
  CHECK(zero.max_live_parameters == 0);
  CHECK(zero.max_reuse_distance == 0);
  CHECK(zero.prefetch_bucket_elements == 0);
  // gt=0 there.
  CHECK_THROWS_WITH_AS(Read(Zero("\"reduce_bucket_size\": 0"), For(ConfigFor::kDeepSpeed)),
                       doctest::Contains("reduce_bucket_size: 0 is not allowed"), Error);
}

TEST_CASE(
    "bounds: sub_group_size 0 is refused by zeroplan's executor alone, where it has a meaning") {
  const std::string axolotl =
      Zero(R"("offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"},
              "sub_group_size": 0)");
  CHECK_THROWS_WITH_AS(Read(axolotl), doctest::Contains("zeroplan's executor updates"), Error);
  CHECK(Read(axolotl, OfDeepSpeed()).setup.zero.sub_group_elements == 0);
  const ReadResult theirs = Read(axolotl, For(ConfigFor::kDeepSpeed));
  CHECK(HasNote(theirs, "zeroplan does not do this, DeepSpeed does: 0 is not supported"));
  // ratio 0 leaves the whole optimizer on the GPU.
  CHECK_NOTHROW(Read(Zero(R"("offload_optimizer": {"device": "cpu", "ratio": 0},
                             "sub_group_size": 0)")));
}

TEST_CASE("bounds: offload at 0 means what DeepSpeed makes of it") {
  const ReadResult ratio = Read(Offload("offload_optimizer", R"("device": "cpu", "ratio": 0)"));
  CHECK(ratio.setup.zero.offload_optimizer.device == OffloadDevice::kNone);
  CHECK(HasNote(ratio, "ratio: 0 offloads nothing"));
  const ReadResult theirs =
      Read(Offload("offload_optimizer", R"("device": "cpu", "ratio": 0)"), OfDeepSpeed());
  CHECK(theirs.setup.zero.offload_optimizer.device == OffloadDevice::kCpu);
  CHECK(theirs.setup.zero.offload_optimizer.ratio == 0);
  // Buffers are for files alone.
  const ReadResult cpu =
      Read(Offload("offload_optimizer", R"("device": "cpu", "buffer_count": 0)"));
  CHECK(cpu.setup.zero.offload_optimizer.buffer_count == 4);
  CHECK(HasNote(cpu, "0 is read as 4"));
  const ReadResult param = Read(Offload("offload_param", R"("device": "cpu", "buffer_count": 0,
                                                            "buffer_size": 0, "max_in_cpu": 0)"));
  CHECK(param.setup.zero.offload_param.buffer_count == 5);
  CHECK(param.setup.zero.offload_param.max_in_cpu_elements == 0);
  CHECK(Read(Offload("offload_param", R"("buffer_count": 0)"))
            .setup.zero.offload_param.buffer_count == 5);
  const ReadResult nvme =
      Read(Offload("offload_param",
                   R"("device": "nvme", "nvme_path": "/n", "buffer_size": 7, "max_in_cpu": 0)"));
  CHECK(nvme.setup.zero.offload_param.buffer_elements == 7);
  CHECK(nvme.setup.zero.offload_param.max_in_cpu_elements == 0);
}

TEST_CASE("bounds: fp16 at 0") {
  const auto fp16 = [](const std::string& keys) { return R"({"fp16": {)" + keys + "}}"; };
  // Without a dynamic loss scale the window has no effect, and DeepSpeed takes any.
  CHECK_NOTHROW(Read(fp16(R"("enabled": false, "loss_scale_window": 0)")));
  CHECK_NOTHROW(Read(fp16(R"("enabled": true, "loss_scale": 128, "loss_scale_window": 0)")));
  CHECK(Read(fp16(R"("enabled": true, "loss_scale": 128, "loss_scale_window": 0)"))
            .setup.precision.loss_scale_window == 1000);
  CHECK_THROWS_WITH_AS(Read(fp16(R"("enabled": true, "loss_scale_window": 0)")),
                       doctest::Contains("fp16.loss_scale_window: 0 is not allowed"), Error);
  CHECK_THROWS_WITH_AS(Read(fp16(R"("enabled": true, "hysteresis": 0)")),
                       doctest::Contains("DeepSpeed never lowers the loss scale"), Error);
  CHECK_NOTHROW(Read(fp16(R"("enabled": true, "initial_scale_power": 0)")));
}

TEST_CASE("bounds: values that zeroplan reads and DeepSpeed refuses are errors for DeepSpeed") {
  struct Case {
    std::string keys;
    const char* said;
  };
  for (const Case& c : {
           Case{R"("sub_group_size": "1e9")", "write the number without quotes"},
           Case{R"("reduce_bucket_size": "5e8")", "write the number without quotes"},
           Case{R"("stage3_max_live_parameters": "1e9")", "write the number without quotes"},
           Case{R"("reduce_bucket_size": null)", "null is no value of this key"},
           Case{R"("contiguous_gradients": null)", "null is no value of this key"},
           Case{R"("stage3_max_reuse_distance": null)", "null is no value of this key"},
           Case{R"("cpu_offload": true, "offload_optimizer": {"device": "cpu"})",
                "takes no cpu_offload beside offload_optimizer"},
           Case{R"("cpu_offload": false, "offload_optimizer": {"device": "cpu"})",
                "takes no cpu_offload beside offload_optimizer"},
           Case{R"("cpu_offload_param": true, "offload_param": {"device": "cpu"})",
                "takes no cpu_offload_param beside offload_param"},
           Case{R"("stage3_gather_fp16_weights_on_model_save": true,
                   "gather_16bit_weights_on_model_save": false)",
                "takes no stage3_gather_fp16_weights_on_model_save beside"},
       }) {
    CAPTURE(c.keys);
    CHECK_THROWS_WITH_AS(Read(Zero(c.keys), For(ConfigFor::kDeepSpeed)), doctest::Contains(c.said),
                         Error);
    const ReadResult both = Read(Zero(c.keys));
    CHECK(Warned(both, c.said));
    CHECK(Warned(both, "DeepSpeed itself refuses it"));
    CHECK_FALSE(Warned(Read(Zero(c.keys), For(ConfigFor::kZeroplan)), c.said));
  }
  for (const char* keys : {R"("overlap_comm": null)", R"("sub_group_size": "1000000000")",
                           R"("stage3_gather_fp16_weights_on_model_save": true)",
                           R"("cpu_offload": true)", R"("offload_param": null)"}) {
    CAPTURE(keys);
    CHECK_NOTHROW(Read(Zero(keys), For(ConfigFor::kDeepSpeed)));
    CHECK_FALSE(Warned(Read(Zero(keys)), "DeepSpeed itself refuses it"));
  }
}

TEST_CASE("bounds: old and new keys keep DeepSpeed's meaning") {
  CHECK(HasNote(Read(Zero(R"("elastic_checkpoint": true)", 2)), "load at any number of ranks"));
  CHECK_NOTHROW(Read(Zero(R"("load_from_fp32_weights": false)"), OfDeepSpeed()));
  CHECK_NOTHROW(Read(Zero(R"("parameter_alignment": true, "compute_grad_norm": false)", 2)));
  CHECK(HasNote(Read(Zero(R"("compute_grad_norm": false)", 2)), "always computes the norm"));
  CHECK_THROWS_AS(Read(Zero(R"("legacy_stage1": true)"), For(ConfigFor::kDeepSpeed)), Error);
  CHECK_THROWS_AS(Read(Zero(R"("stage3_log_trace_cache_warnings": true)")), Error);
  CHECK_THROWS_AS(Read(Zero(R"("cpu_offload_params": true)")), Error);
  // 0.19.8 refuses what 0.19.6 has, and has what 0.19.6 refuses.
  for (const char* config :
       {R"({"amp": {"enabled": false}})", R"({"sparse_gradients": false})",
        R"({"nebula": {"enabled": false}})", R"({"elasticity": {"enabled": false}})",
        R"({"zero_optimization": {"stage": 3, "mics_shard_size": -1}})",
        R"({"zero_optimization": {"stage": 3, "mics_hierarchical_params_gather": false}})"}) {
    CAPTURE(config);
    const ReadResult theirs = Read(config, For(ConfigFor::kDeepSpeed));
    REQUIRE(theirs.warnings.size() == 1);
    CHECK(Has(theirs.warnings[0], "DeepSpeed 0.19.8 refuses this key at any value"));
    CHECK(Read(config).warnings.empty());
  }
  CHECK(Warned(Read(Zero(R"("parameter_alignment": true)", 2), For(ConfigFor::kDeepSpeed)),
               "0.19.6 refuses it"));
}

TEST_CASE("auto: who fills it in, and what DeepSpeed makes of it by itself") {
  struct Case {
    const char* config;
    const char* said;
  };
  for (const Case& c : {
           Case{R"({"train_batch_size": "auto"})", "DeepSpeed by itself ends at it"},
           Case{R"({"gradient_clipping": "auto"})", "DeepSpeed by itself ends at it"},
           Case{R"({"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}})",
                "DeepSpeed by itself ends at it"},
           Case{R"({"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}})",
                "to fill in; DeepSpeed by itself takes its default"},
           Case{R"({"bf16": {"enabled": "auto"}})",
                "to fill in; DeepSpeed by itself takes its default"},
           Case{R"({"zero_optimization": {"stage": 3, "overlap_comm": "auto"}})",
                "nobody fills in this \"auto\"; DeepSpeed by itself takes its default"},
           Case{R"({"zero_optimization": {"stage": 3, "prefetch_bucket_size": "auto"}})",
                "nobody fills in this \"auto\""},
           Case{R"({"steps_per_print": "auto"})", "DeepSpeed has no such value; remove the key"},
           Case{R"({"train_micro_batch_size_per_gpu": "auto", "autotuning": {"enabled": true}})",
                "for DeepSpeed's autotuner"},
           Case{R"({"gradient_accumulation_steps": "auto", "train_batch_size": 8,
                    "autotuning": {"enabled": true, "arg_mappings":
                      {"gradient_accumulation_steps ": "--gradient_accumulation_steps"}}})",
                "for DeepSpeed's autotuner"},
       }) {
    CAPTURE(c.config);
    const ReadResult theirs = Read(c.config, For(ConfigFor::kDeepSpeed));
    REQUIRE(theirs.warnings.size() == 1);
    CHECK(Has(theirs.warnings[0], c.said));
    CHECK(Read(c.config).warnings.empty());
  }
  const ReadResult off = Read(R"({"train_micro_batch_size_per_gpu": "auto",
                                  "autotuning": {"enabled": false}})",
                              For(ConfigFor::kDeepSpeed));
  CHECK_FALSE(Warned(off, "autotuner"));
  CHECK(HasNote(Read(R"({"autotuning": {"enabled": true}})", OfDeepSpeed()),
                "DeepSpeed's autotuner tries stages and micro-batches of its own"));
}

}  // namespace
}  // namespace zeroplan
