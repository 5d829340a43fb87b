// What plan and estimate say of attention's kernels, and that their times have it.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/run/train/train_work.h"
#include "core/base/error.h"
#include "planner/plan/plan_file.h"
#include "tests/cli/run_binary.h"
#include "tests/planner/plan_fixture.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

using Json = nlohmann::json;

// Without line breaks.
std::string Flat(std::string text) {
  for (size_t at = 0; (at = text.find("\n  ", at)) != std::string::npos;) text.replace(at, 3, " ");
  return text;
}
bool HasFlat(const std::string& text, const std::string& part) {
  CAPTURE(text);
  CAPTURE(part);
  const bool has = Flat(text).find(part) != std::string::npos;
  CHECK(has);
  return has;
}

struct OneChoice {
  double compute = 0, gpu_bytes = 0;
  std::string notes;
};
// One GPU, nothing offloaded, nothing computed again.
OneChoice EstimateOne(const std::string& arguments) {
  const RunResult run = RunZeroplan(
      "estimate --format json --stage 0 --offload-optimizer none --checkpointing none --gpus 1 "
      "--hw h200-141gb-sxm " +
      arguments);
  INFO(arguments, "\n", run.err);
  REQUIRE(run.exit_code == 0);
  const Json choice = Json::parse(run.out)["choices"][0];
  return {choice["step_seconds"]["compute"], choice["gpu_bytes"]["total"], run.err};
}

TEST_CASE("attention: --deterministic costs its calls, in bytes that hardly change") {
  const std::string llama = "--model llama3.2-1b --micro-batch 8 --seq-len 2048 ";
  const OneChoice usual = EstimateOne(llama), ordered = EstimateOne(llama + "--deterministic");
  HasFlat(ordered.notes,
          "--deterministic: attention's backward pass takes 16 calls of cuDNN's kernel, "
          "each of 4 of 8 heads of keys");
  HasFlat(ordered.notes, "--deterministic: matrix products run by cuBLASLt's first suggestion");
  CHECK(usual.notes.find("attention") == std::string::npos);
  CHECK(usual.notes.find("cuBLASLt") == std::string::npos);
  // 16 layers of 16 calls, each of 13 us and more beyond its share.
  CHECK(ordered.compute > usual.compute + 16 * 16 * 13e-6);
  CHECK(ordered.compute < 1.5 * usual.compute);
  CHECK(ordered.gpu_bytes == usual.gpu_bytes);
}

TEST_CASE("attention: lengths that are no multiple of 128 keep their speed") {
  const std::string model = "--model llama3.2-1b --micro-batch 8 ";
  const OneChoice odd = EstimateOne(model + "--seq-len 1000"),
                  even = EstimateOne(model + "--seq-len 1024");
  CHECK(odd.notes.find("ttention") == std::string::npos);
  // All but attention is 1000/1024 of it; attention is the same.
  CHECK(odd.compute < even.compute);
  CHECK(odd.compute > even.compute * 1000 / 1024);
}

TEST_CASE("attention: plain kernels are said, and take their time") {
  const std::string model = "--model gpt2 --micro-batch 8 --seq-len 1024 ";
  const OneChoice fused = EstimateOne(model), plain = EstimateOne(model + "--dtype fp32");
  CHECK(fused.notes.find("plain kernels") == std::string::npos);
  HasFlat(plain.notes,
          "Attention runs on plain kernels, many times slower than fused ones: fused kernels take "
          "bf16 and fp16, not fp32. Use --dtype bf16.");
  // Alone the attention of 12 layers: 9 products of 8 x 12 heads of 64 over half of 1024 x 1024,
  // at less than 0.3 of 67 TFLOP/s.
  CHECK(plain.compute - fused.compute >
        12 * 9 * 2.0 * 8 * 12 * 64 * 1024 * 1024 / 2 / (0.3 * 67e12));
}

TEST_CASE("attention: a plan says it once, and carries --deterministic to its file") {
  const TempDir folder;
  const std::string file = folder.path("plan.json");
  const std::string arguments =
      "plan --explain --quick --model gpt2 --gpus 1 --hw h200-141gb-sxm --micro-batch 8 "
      "--grad-accum 1 "
      "--stage 0 --checkpointing none --offload-optimizer none ";
  const RunResult run = RunZeroplan(arguments + "--deterministic --plan-out " + file);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  HasFlat(run.out, "--deterministic: attention's backward pass takes ");
  std::ifstream in(file);
  const Json plan = Json::parse(in);
  CHECK(plan["config"]["_zeroplan"]["deterministic"] == true);
  const RunResult explained = RunZeroplan("explain " + file);
  CAPTURE(explained.err);
  CHECK(explained.exit_code == 0);
  // DeepSpeed's config cannot say it.
  const RunResult refused =
      RunZeroplan(arguments + "--deterministic --runtime zeroplan --out " + file);
  CHECK(refused.exit_code == 2);
  HasFlat(refused.err,
          "--out: DeepSpeed cannot do what is asked for: deterministic runs; leave "
          "--deterministic out, or use --plan-out");
}

TEST_CASE("attention: train is deterministic if its plan or its option is, and says what differs") {
  const TempDir folder;
  const std::string file = folder.path("plan.json");
  for (bool planned : {false, true}) {
    for (bool asked : {false, true}) {
      CAPTURE(planned);
      CAPTURE(asked);
      std::string config = kSmallConfig;
      config.insert(1, R"("bf16": {"enabled": true},)");
      if (planned) config.insert(1, R"("_zeroplan": {"deterministic": true},)");
      std::ofstream(file) << WritePlan(SmallPlan(config), config);
      TrainCommand command;
      command.plan = file;
      command.common.hardware.profile = "h200-141gb-sxm";
      command.common.settings.deterministic = asked;
      Assumptions assumptions;
      const TrainWork work = ResolveWork(command, Backend::kCuda, {}, assumptions);
      CHECK(LowerWork(work).setup.deterministic == (planned || asked));
      std::string notes;
      for (const std::string& note : assumptions.notes) notes += NameFields(note) + '\n';
      CAPTURE(notes);
      if (planned || asked) HasFlat(notes, "--deterministic: matrix products run by cuBLASLt's ");
      // One sequence takes 2 heads of 2 * 64 * 128 bytes and more. Any program reserves 4 heads of
      // 4 * 64 * 64 bytes and more for own kernels.
      if (planned || asked) {
        HasFlat(notes,
                "attention's backward pass takes 2 calls of cuDNN's kernel, each of 1 of 2 "
                "sequences");
        if (!planned) HasFlat(notes, "was planned without it");
      } else {
        CHECK(notes.empty());
      }
    }
  }
}

TEST_CASE("attention: GPUs without fused kernels keep the scores, and say so") {
  const RunResult run = RunZeroplan("plan --explain --quick --model gpt2 --hw dgx-2 --gpus 1");
  REQUIRE(run.exit_code == 0);
  HasFlat(run.out,
          "Attention keeps the scores in memory (cuDNN has no fused kernel for NVIDIA V100");
}

TEST_CASE("attention: ZEROPLAN_ATTENTION=own plans without cuDNN, another value is refused") {
  const std::string arguments =
      "estimate --format json --stage 0 --offload-optimizer none --checkpointing none --gpus 1 "
      "--hw "
      "h200-141gb-sxm --model llama3.2-1b --micro-batch 8 --seq-len 2048";
  const auto compute = [&](const std::string& variable) {
    const RunResult run = RunZeroplan(arguments, "ZEROPLAN_NO_DETECT=1 " + variable);
    INFO(run.err);
    REQUIRE(run.exit_code == 0);
    return Json::parse(run.out)["choices"][0]["step_seconds"]["compute"].get<double>();
  };
  CHECK(compute("ZEROPLAN_ATTENTION=own") > 1.02 * compute("ZEROPLAN_ATTENTION="));
  const RunResult run = RunZeroplan(arguments, "ZEROPLAN_NO_DETECT=1 ZEROPLAN_ATTENTION=flash");
  CHECK(run.exit_code == static_cast<int>(ExitCode::kUsage));
  HasFlat(run.err, "ZEROPLAN_ATTENTION: 'flash' is not allowed; use own, or leave it out");
}

}  // namespace
}  // namespace zeroplan
