// A plan in the formats of other programs: the files and arguments for training with DeepSpeed or
// FSDP2.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json_source.h"
#include "core/model/model_spec.h"
#include "core/settings/zero_config.h"
#include "cost_models/cluster_shape.h"
#include "planner/runtime.h"

namespace zeroplan {

// "deepspeed", "hf-trainer", "accelerate", "torchtitan", "skypilot", "kubernetes": the values of
// --for.
std::string_view ConfigFormatName(ConfigFormat format);

struct FormatRequest {
  ConfigFormat format = ConfigFormat::kDeepSpeed;
  const Runtime* runtime = nullptr;  // a runtime that the format supports
  // The mark in the file, as in Runtime::version: "deepspeed 0.19.6".
  std::string runtime_name;
  ModelSpec model;
  // Nothing kAuto. For FSDP2 (planner/runtimes/fsdp2.cc) stage 3 reshards after forward, stage 2
  // does not, both offloads on the CPU are CPUOffloadPolicy, fp32_reduction is its reduce_dtype.
  TrainSetup setup;
  TorchRecipe recipe;
  ClusterShape cluster;
  // The path of the file as the user gave it: other files and command lines refer to it so.
  std::string file;
  // The DeepSpeed config that was read, or nullptr. It must outlive the call. Its other keys are
  // written again; optimizer and schedule values that it lacks are left to the program that owns
  // them.
  const JsonNode* incoming = nullptr;
  // The prediction leaves no room for its margin of error: the allocator is told to keep its memory
  // in one piece.
  bool short_of_memory = false;
  // Sequences of a GPU in the Trainer's evaluation batch; unset: its default.
  std::optional<int64_t> eval_batch;
  // 4-bit weights are quantized on the host, since all of them have no room on a GPU.
  bool quantizes_on_host = false;
  // Tokens of the longest sample after truncation, if samples are padded; unset: unknown, or all
  // are equally long.
  std::optional<int64_t> longest_sample;
};

struct WrittenFile {
  std::string path, text;
};

struct WrittenConfig {
  std::vector<WrittenFile> files;  // the first at FormatRequest::file
  std::string launch;              // the start of the command line; empty: there is none
  // the rest of the command line, an option with its value each
  std::vector<std::string> arguments;
  std::vector<std::string> notes;  // instructions for the script, or for the user
  // Lines of Python for the script: loading the model, and for DeepSpeed alone making the
  // optimizer. MODEL and LR are left open.
  std::vector<std::string> script;
  // Set with FormatRequest::longest_sample: a run of two steps of that sample alone, as lines of
  // Python that check the variable PROBE. In the second step the optimizer's states exist too, so
  // no step of the run needs more memory.
  std::vector<std::string> probe_script;
  std::string probe_text, probe_command;  // an explanation with the place of the lines; the command
  // launch and arguments, on lines that a shell joins to one command.
  std::string Command() const;
};

// The files that WriteFormat would make, to be checked before any work. The first is `file`.
std::vector<std::string> FormatFiles(ConfigFormat format, const Runtime& runtime,
                                     const std::string& file);

// Throws Error(kUsage) naming the field `for` or `out`, the value and the fix if no setup can be
// written: torchtitan without FSDP2, a DeepSpeed config for FSDP2, YAML in a file called .json.
// `field`: the field that gives `file`, and that launch files refer to.
void CheckFormat(ConfigFormat format, const Runtime& runtime, const std::string& file,
                 std::string_view field = "⟦out⟧");

// The parts of a recipe and of adapters that `format` cannot express, joined by "; "; empty: none.
std::string RecipeCannot(ConfigFormat format, const Runtime& runtime, const ModelSpec& model,
                         const TorchRecipe& recipe);

// Collects what a format cannot express, for Runtime::FormatCannot.
class Reasons {
 public:
  template <typename... Args>
  void Add(bool cannot, fmt::format_string<Args...> what, Args&&... args) {
    if (!cannot) return;
    text_ += (text_.empty() ? "" : "; ") + fmt::format(what, std::forward<Args>(args)...);
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

// Writes keys and arguments of DeepSpeed 0.19, transformers 5.23, accelerate 1.15 and torchtitan
// 0.2.2, the last release that reads TOML. tests/deepspeed loads the files with those releases.
// Every file contains its runtime's name. Throws Error(kUsage) as CheckFormat does, if the
// runtime's FormatCannot is not empty, and if a launcher cannot start equally many processes on
// each host.
WrittenConfig WriteFormat(const FormatRequest& request);

}  // namespace zeroplan
