// Reads a DeepSpeed JSON config. Keys, defaults and deprecated forms are DeepSpeed 0.19.6's code's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/strings.h"
#include "core/config/config_document.h"
#include "core/settings/settings.h"
#include "core/settings/zero_config.h"

namespace zeroplan {

// Whose program a config is looked at for.
enum class ConfigFor : uint8_t {
  kBoth,       // what zeroplan refuses is an error; what DeepSpeed alone refuses a warning
  kDeepSpeed,  // what DeepSpeed accepts and zeroplan refuses is a note, what DeepSpeed refuses an
               // error
  kZeroplan,  // what DeepSpeed refuses is passed over; keys without effect in zeroplan are warnings
};

// What a config leaves open ("auto" or absent) falls back to these.
struct ReadContext {
  int world_size = 1;
  int64_t seq_len = 1024;
  int64_t layers = 0;  // turns number_checkpoints into a segment length; 0: not known
  // Set by the command line; they win over "auto" and absence, and conflict with a different value.
  std::optional<int64_t> micro_batch, grad_accum, global_batch;
  // For "auto" or absent precision. Without it: "auto" is bf16 (fp16 where only fp16 is "auto", or
  // where has_bf16 is false), absence of both sections fp32, as DeepSpeed has it. A dtype that the
  // config rules out is an error.
  std::optional<Dtype> dtype;
  // For data_types.grad_accum_dtype and communication_data_type that are "auto" or absent.
  std::optional<Dtype> grad_accum_dtype, communication_dtype;
  // For masters and moments that neither DeepSpeed's keys nor "_zeroplan" say.
  std::optional<MasterWeights> master_weights;
  std::optional<Dtype> moment_dtype;
  // For what "_zeroplan.fp8" leaves open: Fp8Config's members.
  std::optional<bool> fp8;
  std::optional<Fp8Recipe> fp8_recipe;
  std::optional<Dtype> fp8_gradients;
  // The settings with SettingRow::set that the command line sets, by their names.
  std::map<std::string_view, SettingValue> settings;
  bool has_bf16 = true;                // whether the GPU computes in bf16
  std::optional<int64_t> total_steps;  // for a scheduler's total_num_steps: "auto"
  bool strict = false;                 // an unknown key of the top level is an error
  // It is read for a run of DeepSpeed that is predicted: what zeroplan's executor does not have,
  // and the model of DeepSpeed has, is read rather than refused.
  bool of_deepspeed = false;
  ConfigFor reads_for = ConfigFor::kBoth;
};

// Lines for the user, each "FILE:LINE: key: text" in the order of the reader.
struct ReadResult {
  TrainSetup setup;
  // activation_checkpointing.cpu_checkpointing, with ReadContext::of_deepspeed.
  bool offload_activations = false;
  // Whether the config says how masters or moments are kept, fp32 too.
  bool says_states = false;
  // Warnings: keys that nobody knows, values that are taken as something else, choices that
  // zeroplan runs and DeepSpeed refuses.
  std::vector<std::string> warnings;
  // Keys that are accepted without effect, old forms, defaults worth knowing.
  std::vector<std::string> notes;
};

// `text` is the config, `source` the name for messages (a file path). The syntax is that of
// json_source.h, Hjson as DeepSpeed reads it. Throws Error(kUsage) with "FILE:LINE:
// zero_optimization.stage: 5 is not allowed; use 0, 1, 2 or 3": one line for each problem that can
// be found independently of the others, in the order of the text.
ReadResult ReadDeepSpeedConfig(std::string_view text, std::string_view source,
                               const ReadContext& context);
// The same of text that was parsed.
ReadResult ReadDeepSpeedConfig(const JsonNode& root, std::string_view source,
                               const ReadContext& context);
inline ReadResult ReadDeepSpeedConfig(const ConfigDocument& config, const ReadContext& context) {
  return ReadDeepSpeedConfig(config.root(), config.name(), context);
}
inline ReadResult ReadDeepSpeedConfigFile(const std::filesystem::path& file,
                                          const ReadContext& context) {
  return ReadDeepSpeedConfig(ConfigDocument::FromFile(file.string()), context);
}

}  // namespace zeroplan
