// What people paste where: a plan as the files and arguments of the programs that train with
// DeepSpeed or FSDP2.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json_source.h"
#include "core/config/zero_config.h"
#include "core/model/model_spec.h"
#include "cost_models/cluster_shape.h"
#include "planner/runtime.h"

namespace zeroplan {

// "deepspeed", "hf-trainer", "accelerate", "torchtitan", "skypilot", "kubernetes": as --for has
// them.
std::string_view ConfigFormatName(ConfigFormat format);

struct FormatRequest {
  ConfigFormat format = ConfigFormat::kDeepSpeed;
  const Runtime* runtime = nullptr;  // one that the format is for
  // What the file is marked with, as Runtime::version has it: "deepspeed 0.19.6".
  std::string runtime_name;
  ModelSpec model;
  // Nothing kAuto. For FSDP2 (planner/runtimes/fsdp2.cc) stage 3 reshards after forward, stage 2
  // does not, both offloads on the CPU are CPUOffloadPolicy, fp32_reduction is its reduce_dtype.
  TrainSetup setup;
  TorchRecipe recipe;
  ClusterShape cluster;
  // Where the file will be, as the user gave it: other files and command lines name it so.
  std::string file;
  // The DeepSpeed config that came in, or nullptr. It must outlive the call. Its other keys go out
  // again; a value of the optimizer or schedule that it does not say is left to whoever owns it.
  const JsonNode* incoming = nullptr;
  // What is predicted leaves no room for its margin of error: the allocator is told to keep its
  // memory in one piece.
  bool short_of_memory = false;
  // Sequences of a GPU that the Trainer evaluates at once; unset: its default.
  std::optional<int64_t> eval_batch;
  // Tokens of the longest sample, as it is cut, where samples are padded; unset: not known, or all
  // are as long.
  std::optional<int64_t> longest_sample;
};

struct WrittenFile {
  std::string path, text;
};

struct WrittenConfig {
  std::vector<WrittenFile> files;      // the first at FormatRequest::file
  std::string launch;                  // the start of the command line; empty: there is none
  std::vector<std::string> arguments;  // the rest of it, an option with its value each
  std::vector<std::string> notes;      // what is said elsewhere: in the script, or by hand
  // Lines of Python that the script has: how the model is loaded, for DeepSpeed alone how the
  // optimizer is made. MODEL and LR are open.
  std::vector<std::string> script;
  // With FormatRequest::longest_sample: a run of two steps of that sample alone, by lines of Python
  // that ask for the variable PROBE. In the second step the optimizer's states are there too, so
  // that no step of the run takes more memory.
  std::vector<std::string> probe_script;
  std::string probe_text, probe_command;  // what it is and where the lines go; the command
  // launch and arguments, on lines that a shell takes as one.
  std::string Command() const;
};

// The files that WriteFormat makes, without having anything to write yet: to be checked before work
// is spent. The first is `file`.
std::vector<std::string> FormatFiles(ConfigFormat format, const Runtime& runtime,
                                     const std::string& file);

// Throws Error(kUsage) naming the field for or out, the value and the fix where no setup can be
// written: torchtitan without FSDP2, a DeepSpeed config for FSDP2, YAML in a file called .json.
// `field`: of which `file` is, and which a launch file names too.
void CheckFormat(ConfigFormat format, const Runtime& runtime, const std::string& file,
                 std::string_view field = "⟦out⟧");

// What `format` cannot say of a recipe and of adapters, "; " between several; empty: it says all.
std::string RecipeCannot(ConfigFormat format, const Runtime& runtime, const ModelSpec& model,
                         const TorchRecipe& recipe);

// Collects what a format cannot say, for Runtime::FormatCannot.
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

// Keys and arguments of DeepSpeed 0.19, transformers 5.23, accelerate 1.15 and torchtitan 0.2.2,
// the last release that reads TOML. tests/deepspeed loads them with those. Every file carries its
// runtime's name. Throws Error(kUsage) as CheckFormat does, where the runtime's FormatCannot is not
// empty, and where a launcher cannot start as many processes on each host.
WrittenConfig WriteFormat(const FormatRequest& request);

}  // namespace zeroplan
