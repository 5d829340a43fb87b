// Reads a DeepSpeed JSON config. Keys, defaults and deprecated forms follow the code of DeepSpeed
// 0.19.6.
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

// The program that a config is checked for.
enum class ConfigFor : uint8_t {
  kBoth,       // a value that zeroplan refuses is an error; one that only DeepSpeed refuses is a
               // warning
  kDeepSpeed,  // a value that DeepSpeed refuses is an error; one that only zeroplan refuses is a
               // note
  kZeroplan,   // a value that only DeepSpeed refuses is accepted; keys without effect in zeroplan
               // are warnings
};

// Values for keys that a config leaves open ("auto" or absent).
struct ReadContext {
  int world_size = 1;
  int64_t seq_len = 1024;
  int64_t layers = 0;  // turns number_checkpoints into a segment length; 0: unknown
  // Set by the command line. They replace "auto" and absent keys; a different value in the config
  // is an error.
  std::optional<int64_t> micro_batch, grad_accum, global_batch;
  // The dtype where the config's precision is "auto" or absent. If unset, "auto" means bf16 (fp16
  // where only fp16 is "auto", or where has_bf16 is false), and without both sections the dtype is
  // fp32, as in DeepSpeed. A dtype that the config rules out is an error.
  std::optional<Dtype> dtype;
  // Used where data_types.grad_accum_dtype or communication_data_type is "auto" or absent.
  std::optional<Dtype> grad_accum_dtype, communication_dtype;
  // Used for masters and moments that neither DeepSpeed's keys nor "_zeroplan" specify.
  std::optional<MasterWeights> master_weights;
  std::optional<Dtype> moment_dtype;
  // Used for the members of Fp8Config that "_zeroplan.fp8" leaves open.
  std::optional<bool> fp8;
  std::optional<Fp8Recipe> fp8_recipe;
  std::optional<Dtype> fp8_gradients;
  // Settings that have SettingRow::set and that the command line sets, by name.
  std::map<std::string_view, SettingValue> settings;
  bool has_bf16 = true;                // whether the GPU computes in bf16
  std::optional<int64_t> total_steps;  // for a scheduler with total_num_steps "auto"
  bool strict = false;                 // an unknown key of the top level is an error
  // True if the config is read to predict a run of DeepSpeed. Features that zeroplan's executor
  // lacks, but its model of DeepSpeed has, are then read rather than refused.
  bool of_deepspeed = false;
  ConfigFor reads_for = ConfigFor::kBoth;
};

// Lines for the user, each "FILE:LINE: key: text" in the order of the reader.
struct ReadResult {
  TrainSetup setup;
  // activation_checkpointing.cpu_checkpointing, with ReadContext::of_deepspeed.
  bool offload_activations = false;
  // True if the config specifies the format of masters or moments, including fp32.
  bool says_states = false;
  // Unknown keys, values that are read as another value, and choices that zeroplan runs and
  // DeepSpeed refuses.
  std::vector<std::string> warnings;
  // Keys that are accepted without effect, deprecated forms, and defaults worth knowing.
  std::vector<std::string> notes;
};

// The paths of the keys whose value is "auto", in the order of the text. Keys that begin with '_'
// are left out, because they are not DeepSpeed's.
std::vector<std::string> AutoKeys(const JsonNode& root);
// Whether transformers' Trainer or accelerate replaces an "auto" at that path.
bool IsFilledIn(std::string_view path);

// `text` is the config, `source` its name in messages (a file path). The syntax is that of
// json_source.h: Hjson as DeepSpeed reads it. Throws Error(kUsage) with "FILE:LINE:
// zero_optimization.stage: 5 is not allowed; use 0, 1, 2 or 3": one line for each problem that can
// be found independently of the others, in the order of the text.
ReadResult ReadDeepSpeedConfig(std::string_view text, std::string_view source,
                               const ReadContext& context);
// The same for a parsed config.
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
