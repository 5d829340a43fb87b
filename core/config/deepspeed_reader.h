// Reads a DeepSpeed JSON config. Keys, defaults and deprecated forms are DeepSpeed 0.19.6's code's.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/nearest_name.h"
#include "core/config/zero_config.h"

namespace zeroplan {

// What a config leaves open ("auto" or absent) falls back to these.
struct ReadContext {
  int world_size = 1;
  int64_t seq_len = 1024;
  int64_t layers = 0;  // turns number_checkpoints into a segment length; 0: not known
  // Set by the command line; they win over "auto" and absence, and conflict with a different value.
  std::optional<int64_t> micro_batch, grad_accum, global_batch;
  // For "auto" or absent precision. Without it: "auto" is bf16 (fp16 where only fp16 is "auto"),
  // absence of both sections fp32, as DeepSpeed has it. A dtype that the config rules out is an
  // error.
  std::optional<Dtype> dtype;
  std::optional<int64_t> total_steps;  // for a scheduler's total_num_steps: "auto"
};

struct ReadResult {
  TrainSetup setup;
  std::vector<std::string> notes;  // one line per key that is accepted without effect
};

// `text` is the config, `source` the name for messages (a file path). Comments (// # /* */) and
// trailing commas are accepted, duplicate keys are errors. Throws Error(kUsage) with "FILE:LINE:
// zero_optimization.stage: 5 is not allowed; use 0, 1, 2 or 3".
ReadResult ReadDeepSpeedConfig(std::string_view text, std::string_view source,
                               const ReadContext& context);
ReadResult ReadDeepSpeedConfigFile(const std::filesystem::path& file, const ReadContext& context);

}  // namespace zeroplan
