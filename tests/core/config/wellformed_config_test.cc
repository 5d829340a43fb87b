// Configs as people write them, one file each in tests/fuzz/corpus/config (where they are the
// fuzzer's seeds too): all load, and come to what their authors meant.
#include <doctest/doctest.h>

#include <filesystem>
#include <set>
#include <string>

#include "core/base/dtype.h"
#include "core/config/deepspeed_reader.h"
#include "tests/paths.h"

namespace zeroplan {
namespace {

// On 8 ranks.
struct Expected {
  const char* name;
  int stage;
  const char* offload_optimizer;
  const char* offload_param;
  const char* dtype;
  int64_t micro_batch;
  size_t warnings;
};

const Expected kConfigs[] = {
    {"offload_tutorial", 2, "cpu", "none", "fp32", 1, 0},
    {"all_auto_stage3", 3, "cpu", "cpu", "bf16", 1, 0},
    {"auto_stage2", 2, "none", "none", "fp16", 1, 0},
    {"fp16_stage1", 1, "none", "none", "fp16", 4, 0},
    {"numbers_as_strings", 1, "none", "none", "bf16", 2, 1},
    {"exponents", 3, "none", "none", "bf16", 1, 0},
    {"nulls_for_default", 2, "none", "none", "fp32", 2, 0},
    {"clipping_true", 0, "none", "none", "fp32", 1, 0},
    {"zero_true", 1, "none", "none", "fp16", 1, 0},
    {"no_outer_braces", 2, "none", "none", "fp16", 1, 0},
    {"comments", 1, "none", "none", "bf16", 4, 0},
    {"python_literals", 2, "none", "none", "bf16", 1, 0},
    {"single_quotes", 1, "none", "none", "fp16", 1, 0},
    {"unquoted", 3, "nvme", "none", "bf16", 1, 0},
    {"trailing_commas", 2, "none", "none", "fp32", 1, 0},
    {"missing_commas", 1, "none", "none", "fp16", 1, 0},
    {"stage3_keys_at_stage2", 2, "none", "none", "bf16", 1, 0},
    {"stage3_without_prefix", 3, "none", "none", "bf16", 1, 0},
    {"three_batch_keys", 0, "none", "none", "fp32", 4, 0},
    {"two_batch_keys", 0, "none", "none", "fp32", 2, 0},
    {"micro_only", 0, "none", "none", "fp16", 16, 0},
    {"no_batch", 1, "none", "none", "fp16", 1, 0},
    {"auto_micro_with_accumulation", 0, "none", "none", "bf16", 1, 0},
    {"empty", 0, "none", "none", "fp32", 1, 0},
    {"no_lr", 1, "none", "none", "fp32", 1, 0},
    {"infinity_nvme", 3, "nvme", "nvme", "bf16", 1, 0},
    {"twin_flow", 3, "cpu", "none", "fp16", 1, 0},
    {"ratio_at_stage2", 2, "cpu", "none", "fp16", 1, 1},
    {"nvme_at_stage1", 1, "nvme", "none", "fp16", 1, 1},
    {"old_cpu_offload", 2, "cpu", "none", "fp16", 1, 0},
    {"old_cpu_offload_param", 3, "cpu", "cpu", "fp16", 1, 0},
    {"bfloat16", 1, "none", "none", "bf16", 1, 0},
    {"decay_schedule", 0, "none", "none", "fp32", 1, 0},
    {"cosine_schedule", 0, "none", "none", "fp32", 1, 0},
    {"one_cycle", 0, "none", "none", "fp32", 1, 0},
    {"lr_range_test", 0, "none", "none", "fp32", 1, 0},
    {"monitors", 0, "none", "none", "fp32", 1, 0},
    {"unknown_top_level", 0, "none", "none", "fp32", 1, 1},
    {"rejected_but_off", 3, "none", "none", "fp32", 1, 0},
    {"prescaled", 1, "none", "none", "fp16", 1, 0},
    {"prescaled_stage2", 2, "none", "none", "fp16", 1, 1},
    {"accepted_switches", 3, "none", "none", "bf16", 1, 0},
    {"comm_dtype", 2, "none", "none", "bf16", 1, 0},
    {"comm_dtype_fp32", 1, "none", "none", "bf16", 1, 0},
    {"long_string", 0, "none", "none", "fp32", 1, 0},
    {"byte_order_mark", 0, "none", "none", "fp32", 1, 0},
    {"selective_recompute", 0, "none", "none", "fp32", 1, 1},
    {"sections_auto", 0, "none", "none", "bf16", 1, 0},
};

TEST_CASE("reader: configs as people write them load") {
  const std::filesystem::path folder = SourcePath("tests/fuzz/corpus/config");
  std::set<std::string> listed;
  for (const Expected& expected : kConfigs) {
    const std::string name = expected.name;
    CAPTURE(name);
    listed.insert(std::string(expected.name) + ".json");
    ReadContext context;
    context.world_size = 8;
    context.layers = 24;
    const ReadResult result =
        ReadDeepSpeedConfigFile(folder / (std::string(expected.name) + ".json"), context);
    const TrainSetup& setup = result.setup;
    CHECK(setup.zero.stage == expected.stage);
    CHECK(OffloadDeviceName(setup.zero.offload_optimizer.device) == expected.offload_optimizer);
    CHECK(OffloadDeviceName(setup.zero.offload_param.device) == expected.offload_param);
    CHECK(DtypeName(setup.precision.dtype) == expected.dtype);
    CHECK(setup.batch.micro_batch == expected.micro_batch);
    const std::string warning = result.warnings.empty() ? "" : result.warnings.front();
    CAPTURE(warning);
    CHECK(result.warnings.size() == expected.warnings);
    ValidateSetup(setup, expected.name);
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(".json")) continue;
    CAPTURE(name);
    CHECK(listed.contains(name));
  }
}

}  // namespace
}  // namespace zeroplan
