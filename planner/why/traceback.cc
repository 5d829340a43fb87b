#include "planner/why/traceback.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace zeroplan {
namespace {

// A frame of such a function in such a file is of that phase, whatever it calls. Empty: any.
struct PhaseRule {
  std::string_view path, function;
  RunPhase phase;
};

// In the order of a traceback the first frame with a rule decides: what calls others names the
// phase. accelerate's backward has none: of DeepSpeed it calls the engine's step too.
constexpr auto kPhaseRules = std::to_array<PhaseRule>({
    {"", "evaluate", RunPhase::kEvaluation},
    {"", "evaluation_loop", RunPhase::kEvaluation},
    {"", "evaluation", RunPhase::kEvaluation},
    {"", "prediction_loop", RunPhase::kEvaluation},
    {"", "prediction_step", RunPhase::kEvaluation},
    {"", "predict", RunPhase::kEvaluation},
    {"", "validate", RunPhase::kEvaluation},
    {"", "validation_step", RunPhase::kEvaluation},
    {"", "load_checkpoint", RunPhase::kResume},
    {"", "_load_from_checkpoint", RunPhase::kResume},
    {"", "deepspeed_load_checkpoint", RunPhase::kResume},
    {"", "_load_optimizer_and_scheduler", RunPhase::kResume},
    {"accelerate/", "load_state", RunPhase::kResume},
    {"", "load_fsdp_optimizer", RunPhase::kResume},
    {"", "save_model", RunPhase::kSaving},
    {"", "save_checkpoint", RunPhase::kSaving},
    {"", "_save_checkpoint", RunPhase::kSaving},
    {"", "save_16bit_model", RunPhase::kSaving},
    {"", "save_pretrained", RunPhase::kSaving},
    {"", "save_state", RunPhase::kSaving},
    {"", "_save", RunPhase::kSaving},
    {"", "_save_optimizer_and_scheduler", RunPhase::kSaving},
    {"", "_zero3_consolidated_16bit_state_dict", RunPhase::kSaving},
    {"accelerate/", "get_state_dict", RunPhase::kSaving},
    {"fsdp/", "state_dict", RunPhase::kSaving},
    {"", "get_model_state_dict", RunPhase::kSaving},
    {"", "_full_post_state_dict_hook", RunPhase::kSaving},
    {"", "from_pretrained", RunPhase::kLoading},
    {"", "_from_pretrained", RunPhase::kLoading},
    {"", "from_config", RunPhase::kLoading},
    {"", "_load_pretrained_model", RunPhase::kLoading},
    {"", "_move_model_to_device", RunPhase::kLoading},
    {"", "load_model", RunPhase::kLoading},
    {"", "unwrap_model_for_generation", RunPhase::kGather},
    {"", "gather_deepspeed3_params", RunPhase::kGather},
    {"", "summon_full_params", RunPhase::kGather},
    {"", "_move_model_to_vllm", RunPhase::kGather},
    {"deepspeed/__init__.py", "initialize", RunPhase::kInit},
    {"", "deepspeed_init", RunPhase::kInit},
    {"accelerate/accelerator.py", "prepare", RunPhase::kInit},
    {"", "_prepare_deepspeed", RunPhase::kInit},
    {"", "fully_shard", RunPhase::kInit},
    {"fully_sharded_data_parallel.py", "__init__", RunPhase::kInit},
    {"torch/nn/parallel/distributed.py", "__init__", RunPhase::kInit},
    {"deepspeed/runtime/engine.py", "__init__", RunPhase::kInit},
    {"partition_parameters.py", "_post_init_method", RunPhase::kLoading},
    {"partition_parameters.py", "__enter__", RunPhase::kGather},
    {"torch/nn/modules/module.py", "to", RunPhase::kLoading},
    {"torch/nn/modules/module.py", "cuda", RunPhase::kLoading},
    {"torch/", "clip_grad_norm_", RunPhase::kStep},
    {"accelerate/", "clip_grad_norm_", RunPhase::kStep},
    {"", "optimizer_step", RunPhase::kStep},
    {"", "_take_model_step", RunPhase::kStep},
    {"deepspeed/", "step", RunPhase::kStep},
    {"accelerate/", "step", RunPhase::kStep},
    {"torch/optim/", "step", RunPhase::kStep},
    {"torch/optim/adam", "", RunPhase::kStep},
    {"torch/optim/optimizer.py", "wrapper", RunPhase::kStep},
    {"torch/amp/", "step", RunPhase::kStep},
    {"bitsandbytes/optim/", "step", RunPhase::kStep},
    {"torchao/optim/", "step", RunPhase::kStep},
    {"transformers/optimization.py", "step", RunPhase::kStep},
    {"torch/_tensor.py", "backward", RunPhase::kBackward},
    {"torch/autograd/", "backward", RunPhase::kBackward},
    {"torch/autograd/", "_engine_run_backward", RunPhase::kBackward},
    {"deepspeed/", "backward", RunPhase::kBackward},
});

constexpr auto kLossFunctions = std::to_array<std::string_view>(
    {"cross_entropy", "fixed_cross_entropy", "ForCausalLMLoss", "LigerForCausalLMLoss",
     "loss_function", "fused_linear_cross_entropy_forward", "liger_cross_entropy",
     "liger_fused_linear_cross_entropy", "linear_cross_entropy", "compute_cross_entropy",
     "_convert_to_fp32", "selective_log_softmax"});

constexpr auto kFrameFacts = std::to_array<FrameFact>({
    {"liger_kernel/", "", "⟦code⟧", "liger"},
    {"torchtitan/", "", "⟦code⟧", "torchtitan"},
    {"torchtune/", "", "⟦code⟧", "torchtune"},
    {"llmfoundry/", "", "⟦code⟧", "composer"},
    {"transformers/models/", "", "⟦code⟧", "hf"},
    {"", "eager_attention_forward", "⟦attn⟧", "eager"},
    {"", "sdpa_attention_forward", "⟦attn⟧", "sdpa"},
    {"", "flash_attention_forward", "⟦attn⟧", "flash"},
    {"flash_attn/", "", "⟦attn⟧", "flash"},
    {"deepspeed/runtime/", "", "⟦runtime⟧", "deepspeed"},
    {"deepspeed/runtime/zero/stage3.py", "", "⟦stage⟧", "3"},
    {"deepspeed/runtime/zero/partition_parameters.py", "", "⟦stage⟧", "3"},
    {"deepspeed/runtime/zero/parameter_offload.py", "", "⟦stage⟧", "3"},
    {"torch/distributed/fsdp/", "", "⟦runtime⟧", "fsdp2"},
    {"torch/nn/parallel/distributed.py", "", "⟦runtime⟧", "ddp"},
    {"torch/utils/checkpoint.py", "", "⟦checkpointing⟧", "full"},
    {"transformers/optimization.py", "step", "⟦optim⟧", "adafactor"},
});

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '<' || c == '>' || c == '.';
}

// The last part of "Trainer.train".
std::string LastPart(std::string_view name) {
  const size_t dot = name.rfind('.');
  return std::string(dot == std::string_view::npos ? name : name.substr(dot + 1));
}

std::string_view NameAt(std::string_view text, size_t at) {
  size_t end = at;
  while (end < text.size() && IsNameCharacter(text[end])) ++end;
  return text.substr(at, end - at);
}

// Behind ".py": ":785 in run", ", line 87, in <module>" or " in func(args)".
bool ReadPlace(std::string_view line, size_t at, PythonFrame* frame) {
  const auto skip = [&](std::string_view text) {
    if (line.substr(at, text.size()) != text) return false;
    at += text.size();
    return true;
  };
  skip("\"");
  if (skip(", line ") || skip(":")) {
    const char* begin = line.data() + at;
    const auto [end, error] = std::from_chars(begin, line.data() + line.size(), frame->line);
    if (error != std::errc()) return false;
    at += static_cast<size_t>(end - begin);
    skip(",");
  }
  if (!skip(" in ")) return false;
  frame->function = LastPart(NameAt(line, at));
  return !frame->function.empty();
}

// The path that ends at `end`, with slashes.
std::string PathBefore(std::string_view line, size_t end) {
  size_t begin = end;
  while (begin > 0 && line[begin - 1] != '"' && line[begin - 1] != ' ') --begin;
  std::string path(line.substr(begin, end - begin));
  std::replace(path.begin(), path.end(), '\\', '/');
  return path;
}

bool Matches(std::string_view rule_path, std::string_view rule_function, const PythonFrame& frame) {
  return (rule_path.empty() || frame.file.find(rule_path) != std::string::npos) &&
         (rule_function.empty() || frame.function == rule_function);
}

}  // namespace

std::vector<PythonFrame> FramesIn(std::string_view line) {
  std::vector<PythonFrame> frames;
  for (size_t at = line.find(".py"); at != std::string_view::npos; at = line.find(".py", at + 1)) {
    PythonFrame frame;
    if (!ReadPlace(line, at + 3, &frame)) continue;
    frame.file = PathBefore(line, at + 3);
    frames.push_back(std::move(frame));
  }
  return frames;
}

std::string BrokenFrameFile(std::string_view line) {
  const size_t at = line.rfind(".py:");
  if (at == std::string_view::npos || line.find("\u2502") == std::string_view::npos) return "";
  const size_t end = line.find_first_not_of("0123456789", at + 4);
  if (end == at + 4 || end == std::string_view::npos) return "";
  const std::string_view rest = line.substr(end);
  const bool closed = rest.find_first_not_of(" ") == rest.find("\u2502");
  return closed ? PathBefore(line, at + 3) : "";
}

std::optional<PythonFrame> BrokenFrame(std::string_view line, std::string file) {
  const size_t in = line.find("in ");
  if (in == std::string_view::npos) return std::nullopt;
  const std::string_view before = line.substr(0, in);
  for (const char c : before) {
    const bool text = static_cast<unsigned char>(c) < 0x80 && c != ' ' && (c < '0' || c > '9');
    if (text) return std::nullopt;
  }
  PythonFrame frame;
  frame.file = std::move(file);
  frame.function = LastPart(NameAt(line, in + 3));
  if (frame.function.empty()) return std::nullopt;
  return frame;
}

std::string FrameText(const PythonFrame& frame) {
  const size_t slash = frame.file.rfind('/');
  const std::string name = slash == std::string::npos ? frame.file : frame.file.substr(slash + 1);
  if (frame.line == 0) return fmt::format("{} {}", name, frame.function);
  return fmt::format("{}:{} {}", name, frame.line, frame.function);
}

bool OnlyCallsOn(std::string_view function) {
  for (const std::string_view name : {"_call_impl", "_wrapped_call_impl", "wrapper", "wrapped_fn",
                                      "wrapped_func", "decorate_context", "decorate_autocast"}) {
    if (function == name) return true;
  }
  return false;
}

RunPhase PhaseOfFrames(const std::vector<PythonFrame>& frames,
                       const std::vector<std::string>& codes) {
  bool forward = false, loss = false;
  for (const PythonFrame& frame : frames) {
    for (const PhaseRule& rule : kPhaseRules) {
      if (Matches(rule.path, rule.function, frame)) return rule.phase;
    }
    forward = forward || frame.function == "forward" || frame.function == "compute_loss";
    for (const std::string_view function : kLossFunctions) {
      loss = loss || frame.function == function;
    }
    loss = loss || (frame.function == "forward" &&
                    frame.file.find("torch/nn/modules/loss.py") != std::string::npos);
  }
  for (const std::string& code : codes) {
    const bool backward = code.find(".backward(") != std::string::npos;
    if (backward && !forward) return RunPhase::kBackward;
    loss = loss || (forward && (code.find("self.lm_head(") != std::string::npos ||
                                code.find("logits.float()") != std::string::npos));
  }
  return loss ? RunPhase::kLoss : forward ? RunPhase::kForward : RunPhase::kUnknown;
}

bool Recomputes(const std::vector<PythonFrame>& frames) {
  bool backward = false;
  for (const PythonFrame& frame : frames) {
    backward = backward || frame.function.find("backward") != std::string::npos;
    if (backward && frame.file.find("torch/utils/checkpoint.py") != std::string::npos) return true;
  }
  return false;
}

std::string ListOperation(const std::vector<PythonFrame>& frames,
                          const std::vector<std::string>& codes) {
  constexpr std::string_view kForeach = "torch._foreach_";
  if (!codes.empty()) {
    // The last line of source is that of the shortage; carets may stand below it.
    for (auto code = codes.rbegin(); code != codes.rend(); ++code) {
      if (code->find("^^^") != std::string::npos) continue;
      if (const size_t at = code->find(kForeach); at != std::string::npos) {
        return std::string(NameAt(*code, at));
      }
      break;
    }
  }
  constexpr size_t kLast = 2;
  for (size_t i = frames.size() - std::min(frames.size(), kLast); i < frames.size(); ++i) {
    const std::string& name = frames[i].function;
    if (name.find("flatten_dense_tensors") != std::string::npos) return name;
    if (name.starts_with("_multi_tensor_")) return name;
  }
  return "";
}

bool ForwardWithoutWrapper(const std::vector<PythonFrame>& frames) {
  bool trainer = false;
  for (const PythonFrame& frame : frames) {
    const auto in = [&](std::string_view part) {
      return frame.file.find(part) != std::string::npos;
    };
    if (in("torch/nn/parallel/") || in("/fsdp/") || in("deepspeed/") || in("accelerate/hooks.py") ||
        frame.function.find("backward") != std::string::npos) {
      return false;
    }
    trainer = trainer || (in("transformers/trainer.py") && frame.function == "training_step");
    if (trainer && in("transformers/models/")) return true;
  }
  return false;
}

std::vector<const FrameFact*> FactsOf(const PythonFrame& frame) {
  std::vector<const FrameFact*> facts;
  for (const FrameFact& fact : kFrameFacts) {
    if (Matches(fact.path, fact.function, frame)) facts.push_back(&fact);
  }
  return facts;
}

}  // namespace zeroplan
