// Damaged configs, several problems at once, and bad values on the command line.
#include <doctest/doctest.h>

#include <random>
#include <string>

#include "core/base/error.h"
#include "core/config/deepspeed_reader.h"

namespace zeroplan {
namespace {

TEST_CASE("reader: a damaged config loads or is a usage error, nothing else") {
  const std::string good = R"({"train_batch_size": 8, "fp16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.5}},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}}})";
  // The terminating zero is one of the bytes.
  static constexpr char kText[] = "{}[]\",:0123456789eE.-+ \\\nabtrufalsn#/*\xff";
  constexpr std::string_view kBytes(kText, sizeof kText);
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string text = good;
    for (size_t edits = 1 + random() % 3; edits > 0; --edits) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = kBytes[random() % kBytes.size()];
          break;
        case 1:
          text.erase(at, 1 + random() % 8);
          break;
        default:
          text.insert(at, good.substr(random() % good.size(), random() % 20));
          break;
      }
    }
    try {
      ReadDeepSpeedConfig(text, "c", {});
    } catch (const Error& error) {
      if (error.code() != ExitCode::kUsage) FAIL_CHECK(text);
    }
  }
}

TEST_CASE("reader: every problem is said, in the order of the text") {
  const char* text = R"({
  "zero_optimization": {"satge": 2, "overlap_comm": "maybe"},
  "optimizer": {"type": "AdamW", "params": {"lr": -1}},
  "train_batch_size": 7,
  "lr": 3
})";
  ReadContext context;
  context.world_size = 4;
  try {
    ReadDeepSpeedConfig(text, "c", context);
    FAIL_CHECK("loaded");
  } catch (const Error& error) {
    CHECK(std::string(error.what()) ==
          "c:2: zero_optimization.overlap_comm: \"maybe\" is not allowed; use true or false\n"
          "c:2: zero_optimization.satge: is not a known key; did you mean 'stage'?\n"
          "c:3: optimizer.params.lr: -1 is not allowed; use a finite number of at least 0, such as "
          "1e-4\n"
          "c:4: train_batch_size: 7 is not a multiple of 4 GPUs = 4; use 4 or 8, or change the "
          "other sizes\n"
          "c:5: lr: is not a key of the top level; move it to 'optimizer.params'");
  }
}

TEST_CASE("reader: far too many values are no config") {
  std::string many = "{\"a\": [";
  for (int i = 0; i < 20'000; ++i) many += "1,";
  CHECK_THROWS_WITH_AS(ReadDeepSpeedConfig(many + "]}", "c", {}),
                       doctest::Contains("c: has 20002 values; this is no DeepSpeed config"),
                       Error);
}

TEST_CASE("reader: bad values on the command line") {
  ReadContext context;
  context.micro_batch = 0;
  CHECK_THROWS_WITH_AS(ReadDeepSpeedConfig("{}", "c", context),
                       doctest::Contains("⟦micro_batch⟧: 0 is not allowed"), Error);
  context = {};
  context.world_size = 0;
  CHECK_THROWS_WITH_AS(ReadDeepSpeedConfig("{}", "c", context), doctest::Contains("⟦gpus⟧: 0"),
                       Error);
  context = {};
  context.seq_len = -1;
  CHECK_THROWS_WITH_AS(ReadDeepSpeedConfig("{}", "c", context), doctest::Contains("⟦seq_len⟧"),
                       Error);
  context = {};
  context.dtype = Dtype::kF16;
  CHECK_THROWS_WITH_AS(ReadDeepSpeedConfig("{\"bf16\": {\"enabled\": true}}", "c", context),
                       doctest::Contains("bf16: enabled true contradicts ⟦dtype⟧ fp16"), Error);
  CHECK_THROWS_AS(ReadDeepSpeedConfig("{\"fp16\": {\"enabled\": false}}", "c", context), Error);
  context = {};
  context.strict = true;
  CHECK_THROWS_WITH_AS(ReadDeepSpeedConfig("{\"mine\": 1}", "c", context),
                       doctest::Contains("c:1: mine: is not a known key; remove it"), Error);
  CHECK_NOTHROW(ReadDeepSpeedConfig("{\"_mine\": 1, \"comment\": 2}", "c", context));
  context = {};
  context.has_bf16 = false;
  CHECK_THROWS_WITH_AS(
      ReadDeepSpeedConfig(R"({"bf16": {"enabled": "auto"}, "fp16": {"enabled": false}})", "c",
                          context),
      doctest::Contains("the GPU has no bf16"), Error);
  CHECK_THROWS_AS(ReadDeepSpeedConfigFile("/no/such/config.json", {}), Error);
}

}  // namespace
}  // namespace zeroplan
