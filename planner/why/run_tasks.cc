#include "planner/why/run_tasks.h"

#include <fmt/format.h>

#include <array>

#include "core/base/strings.h"
#include "planner/why/log_text.h"

namespace zeroplan {
namespace {

struct Task {
  std::string_view name, word, holds, ways_out;
};

constexpr std::string_view kOnline =
    "generation with its cache of keys and values, num_generations completions for each prompt, "
    "their log-probabilities, and a reference model unless beta is 0";
constexpr std::string_view kOnlineOut =
    "use_vllm (generation on GPUs or memory of its own; with adapters ZeRO-3 still gathers the "
    "whole "
    "model), ds3_gather_for_generation False under ZeRO-3, fewer num_generations, a shorter "
    "max_completion_length, beta 0 or LoRA (no second "
    "model), use_liger_kernel";
constexpr std::string_view kPairs =
    "two sequences for each example (chosen and rejected), log-probabilities over whole logits, "
    "and "
    "a reference model";
constexpr std::string_view kPairsOut =
    "LoRA (its base is the reference) or precompute_ref_log_probs (no second model), half the "
    "per_device_train_batch_size, a shorter max_length, use_liger_kernel";
constexpr std::string_view kNoReference =
    "two sequences for each example (chosen and rejected), and log-probabilities over whole logits";
constexpr std::string_view kNoReferenceOut =
    "half the per_device_train_batch_size, a shorter max_length, gradient checkpointing";

constexpr auto kTasks = std::to_array<Task>({
    {"GRPO", "grpo", kOnline, kOnlineOut},
    {"RLOO", "rloo", kOnline, kOnlineOut},
    {"PPO", "ppo",
     "generation with its cache of keys and values, and a value, a reward and a reference model",
     "LoRA on shared base weights, a smaller reward and value model, shorter responses, generation "
     "by vLLM"},
    {"DPO", "dpo", kPairs, kPairsOut},
    {"KTO", "kto", "log-probabilities over whole logits, and a reference model", kPairsOut},
    {"ORPO", "orpo", kNoReference, kNoReferenceOut},
    {"CPO", "cpo", kNoReference, kNoReferenceOut},
    {"SimPO", "simpo", kNoReference, kNoReferenceOut},
    {"reward modelling", "reward", "two sequences for each example (chosen and rejected)",
     kNoReferenceOut},
});

}  // namespace

std::string_view TaskOfWord(std::string_view word) {
  const std::string low = LowerAscii(word.substr(word.rfind('/') + 1));
  for (const Task& task : kTasks) {
    for (size_t at = low.find(task.word); at != low.npos; at = low.find(task.word, at + 1)) {
      const size_t end = at + task.word.size();
      const bool whole =
          (at == 0 || !IsLetter(low[at - 1])) && (end == low.size() || !IsLetter(low[end]));
      if (whole) return task.name;
    }
  }
  return "";
}

std::string_view TaskOfFile(std::string_view file) {
  const std::string_view name = file.substr(file.rfind('/') + 1);
  return name.find("trainer") == name.npos ? "" : TaskOfWord(name);
}

std::string TaskText(std::string_view task, int64_t line) {
  for (const Task& known : kTasks) {
    if (known.name != task) continue;
    return fmt::format(
        "It is {} (line {}). Beyond supervised training it holds {}; that is not predicted. Its "
        "own ways out: "
        "{}.",
        known.name, line, known.holds, known.ways_out);
  }
  return "";
}

}  // namespace zeroplan
