#include "core/config/foreign_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/base/strings.h"

namespace zeroplan {
namespace {

// A scalar at its dotted path; sections have empty values.
struct Value {
  std::string path, text;
};
using Values = std::vector<Value>;

// The values that an option takes.
enum class Takes { kCount, kName, kDtype, kMethod, kStage, kDevice };

struct OptionOf {
  const char* path;
  const char* field;
  Takes takes;
};

struct ForeignProgram {
  const char* name;
  std::vector<std::string_view> marks;  // one of them suffices: PATH, PATH=VALUE or *.KEY=START
  std::vector<OptionOf> options;
  const char* deepspeed_file = "";  // the key that names a DeepSpeed config
  const char* runtime = "";         // the runtime of all its runs
};

// The first program that has a mark is taken.
const std::vector<ForeignProgram>& ForeignPrograms() {
  static const std::vector<ForeignProgram> programs = {
      {"accelerate",
       {"distributed_type", "compute_environment", "deepspeed_config"},
       {{"num_processes", "gpus", Takes::kCount},
        {"mixed_precision", "dtype", Takes::kDtype},
        {"deepspeed_config.zero_stage", "stage", Takes::kStage},
        {"deepspeed_config.offload_optimizer_device", "offload_optimizer", Takes::kDevice},
        {"deepspeed_config.offload_param_device", "offload_param", Takes::kDevice},
        {"deepspeed_config.gradient_accumulation_steps", "grad_accum", Takes::kCount}},
       "deepspeed_config.deepspeed_config_file"},
      {"axolotl",
       {"base_model", "sequence_len"},
       {{"base_model", "model", Takes::kName},
        {"adapter", "method", Takes::kMethod},
        {"lora_r", "lora_rank", Takes::kCount},
        {"sequence_len", "seq_len", Takes::kCount},
        {"micro_batch_size", "micro_batch", Takes::kCount},
        {"gradient_accumulation_steps", "grad_accum", Takes::kCount}},
       "deepspeed"},
      {"LLaMA-Factory",
       {"finetuning_type", "cutoff_len", "stage=sft", "stage=pt", "stage=dpo", "stage=rm",
        "stage=ppo", "stage=kto"},
       {{"model_name_or_path", "model", Takes::kName},
        {"finetuning_type", "method", Takes::kMethod},
        {"lora_rank", "lora_rank", Takes::kCount},
        {"cutoff_len", "seq_len", Takes::kCount},
        {"per_device_train_batch_size", "micro_batch", Takes::kCount},
        {"gradient_accumulation_steps", "grad_accum", Takes::kCount}},
       "deepspeed"},
      {"ms-swift",
       {"train_type", "tuner_type", "sft_type", "rlhf_type", "swift_version"},
       {{"model", "model", Takes::kName},
        {"train_type", "method", Takes::kMethod},
        {"tuner_type", "method", Takes::kMethod},
        {"lora_rank", "lora_rank", Takes::kCount},
        {"max_length", "seq_len", Takes::kCount},
        {"per_device_train_batch_size", "micro_batch", Takes::kCount},
        {"gradient_accumulation_steps", "grad_accum", Takes::kCount}},
       "deepspeed"},
      {"torchtune",
       {"*._component_=torchtune."},
       {{"tokenizer.max_seq_len", "seq_len", Takes::kCount},
        {"batch_size", "micro_batch", Takes::kCount},
        {"gradient_accumulation_steps", "grad_accum", Takes::kCount},
        {"dtype", "dtype", Takes::kDtype}}},
      {"torchtitan",
       {"model.flavor", "training.local_batch_size", "parallelism.data_parallel_shard_degree",
        "parallelism.tensor_parallel_degree"},
       {{"training.seq_len", "seq_len", Takes::kCount},
        {"training.local_batch_size", "micro_batch", Takes::kCount}},
       "",
       "fsdp2"},
      {"TRL's or transformers' Trainer",
       {"model_name_or_path", "dataset_name", "per_device_train_batch_size"},
       {{"model_name_or_path", "model", Takes::kName},
        {"lora_r", "lora_rank", Takes::kCount},
        {"max_length", "seq_len", Takes::kCount},
        {"max_seq_length", "seq_len", Takes::kCount},
        {"per_device_train_batch_size", "micro_batch", Takes::kCount},
        {"gradient_accumulation_steps", "grad_accum", Takes::kCount}},
       "deepspeed"},
  };
  return programs;
}

// Keys of the top level that only a DeepSpeed config has, with the value of a section or a number.
bool IsDeepSpeeds(const Values& values) {
  return std::any_of(values.begin(), values.end(), [](const Value& value) {
    const std::string_view section = std::string_view(value.path).substr(0, value.path.find('.'));
    if (section == "fp16" || section == "bf16") return section != value.path;
    return section == "zero_optimization" || section == "train_batch_size" ||
           section == "train_micro_batch_size_per_gpu" || section == "_zeroplan";
  });
}

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

std::string Unquoted(std::string_view text) {
  text = Trimmed(text);
  const bool quoted = text.size() > 1 && (text.front() == '"' || text.front() == '\'');
  if (quoted) {
    const size_t end = text.find(text.front(), 1);
    return std::string(text.substr(1, end == std::string_view::npos ? end : end - 1));
  }
  const size_t comment = text.find(" #");
  return std::string(Trimmed(text.substr(0, comment)));
}

bool IsKey(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return c == '_' || c == '-' || c == '.' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
           (c >= 'A' && c <= 'Z');
  });
}

// The scalars of YAML or TOML, line by line: keys of mappings by their indentation, below the last
// [section]. Elements of lists are left out.
Values ScanLines(std::string_view text) {
  struct Open {
    size_t indent;
    std::string path;
  };
  Values values;
  std::string section;
  std::vector<Open> open;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const std::string_view words = Trimmed(line);
    if (words.empty() || words.front() == '#') continue;
    if (words.front() == '[' && words.find(']') != std::string_view::npos) {
      const std::string_view name = words.substr(1, words.find(']') - 1);
      if (!IsKey(name)) continue;
      section = std::string(name) + ".";
      values.push_back({std::string(name), ""});
      continue;
    }
    const size_t split = words.find_first_of(":=");
    if (split == std::string_view::npos) continue;
    const std::string key = Unquoted(words.substr(0, split));
    if (!IsKey(key)) continue;
    const size_t indent = static_cast<size_t>(words.data() - line.data());
    while (!open.empty() && open.back().indent >= indent) open.pop_back();
    std::string path = (open.empty() ? section : open.back().path + ".") + key;
    std::string value = Unquoted(words.substr(split + 1));
    if (value.empty()) open.push_back({indent, path});
    values.push_back({std::move(path), std::move(value)});
  }
  return values;
}

void AddScalars(const JsonNode& node, const std::string& path, Values* values) {
  for (const JsonMember& member : node.members) {
    const std::string at = path.empty() ? member.key : path + "." + member.key;
    const JsonNode& value = member.value;
    const bool scalar = value.kind == JsonNode::Kind::kScalar;
    values->push_back({at, value.is_string() ? value.scalar.text()
                           : scalar          ? value.scalar.Dump()
                                             : std::string()});
    AddScalars(value, at, values);
  }
}

// Whether an object in braces is the first thing behind comments.
bool OpensWithBrace(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  for (;;) {
    text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
    const bool block = text.starts_with("/*");
    if (!block && !text.starts_with("//") && !text.starts_with('#')) return text.starts_with('{');
    const size_t end = block ? text.find("*/") : text.find('\n');
    if (end == std::string_view::npos) return false;
    text.remove_prefix(end + (block ? 2 : 1));
  }
}

Values ValuesOf(std::string_view text, std::string_view source) {
  if (!OpensWithBrace(text)) return ScanLines(text);
  Values values;
  AddScalars(ParseJsonText(text, source), "", &values);
  return values;
}

bool HasMark(const Values& values, std::string_view mark) {
  const size_t equals = mark.find('=');
  const std::string_view path = mark.substr(0, equals);
  return std::any_of(values.begin(), values.end(), [&](const Value& value) {
    if (equals == std::string_view::npos) return value.path == path;
    const std::string_view wanted = mark.substr(equals + 1);
    if (path.starts_with("*.")) {
      return value.path.ends_with(path.substr(1)) && value.text.starts_with(wanted);
    }
    return value.path == path && value.text == wanted;
  });
}

std::string TextAt(const Values& values, std::string_view path) {
  const auto found = std::find_if(values.begin(), values.end(),
                                  [&](const Value& value) { return value.path == path; });
  return found == values.end() ? "" : found->text;
}

bool CanTake(Takes takes, const std::string& text) {
  const auto in = [&](std::initializer_list<std::string_view> words) {
    return std::find(words.begin(), words.end(), text) != words.end();
  };
  switch (takes) {
    case Takes::kCount:
      return !text.empty() && text.size() < 10 && text[0] != '0' &&
             text.find_first_not_of("0123456789") == std::string::npos;
    case Takes::kName:
      return !text.empty() && text.find_first_of(" {}[]$") == std::string::npos;
    case Takes::kDtype:
      return in({"bf16", "fp16", "fp32"});
    case Takes::kMethod:
      return in({"full", "lora", "qlora"});
    case Takes::kStage:
      return in({"0", "1", "2", "3"});
    case Takes::kDevice:
      return in({"none", "cpu", "nvme"});
  }
  return false;
}

// The options that give the values of the text, such as "⟦seq_len⟧ 8192".
std::vector<std::string> OptionsFor(const ForeignProgram& program, const Values& values) {
  std::vector<std::string> options;
  for (const OptionOf& option : program.options) {
    const std::string text = TextAt(values, option.path);
    if (!CanTake(option.takes, text)) continue;
    options.push_back(fmt::format("⟦{}⟧ {}", option.field, ShellWord(text)));
  }
  return options;
}

bool IsFile(std::string_view text) {
  return text.ends_with(".json") && CanTake(Takes::kName, std::string(text));
}

[[noreturn]] void RefuseAs(const ForeignProgram& program, const Values& values,
                           std::string_view source) {
  std::vector<std::string> options = OptionsFor(program, values);
  const std::string file = TextAt(values, program.deepspeed_file);
  const std::string is =
      fmt::format("{}: is a config of {}, which zeroplan does not read yet", source, program.name);
  if (IsFile(file)) {
    ThrowUsage("{}; give the DeepSpeed config that it names, {}{}{}", is, file,
               options.empty() ? "" : ", and its values as options: ", fmt::join(options, " "));
  }
  const bool deepspeed = TextAt(values, "distributed_type") == "DEEPSPEED";
  const bool fsdp2 = TextAt(values, "fsdp_config.fsdp_version") == "2";
  const char* runtime = deepspeed ? "deepspeed" : fsdp2 ? "fsdp2" : program.runtime;
  if (*runtime != '\0') options.insert(options.begin(), fmt::format("⟦runtime⟧ {}", runtime));
  const bool has_model = std::any_of(options.begin(), options.end(), [](const std::string& option) {
    return option.starts_with("⟦model⟧");
  });
  if (!has_model) options.emplace_back("⟦model⟧ MODEL");
  ThrowUsage(
      "{}; leave it out, and give 'zeroplan estimate' or 'zeroplan plan' its values as "
      "options: {}",
      is, fmt::join(options, " "));
}

}  // namespace

void RefuseForeignConfig(std::string_view text, std::string_view source) {
  const Values values = ValuesOf(text, source);
  if (IsDeepSpeeds(values)) return;
  for (const ForeignProgram& program : ForeignPrograms()) {
    const bool marked = std::any_of(program.marks.begin(), program.marks.end(),
                                    [&](std::string_view mark) { return HasMark(values, mark); });
    if (marked) RefuseAs(program, values, source);
  }
  const bool yaml = source.ends_with(".yaml") || source.ends_with(".yml");
  if (!yaml && !source.ends_with(".toml")) return;
  ThrowUsage(
      "{}: is {}, and a DeepSpeed config is JSON; leave it out, and give 'zeroplan estimate' "
      "or 'zeroplan plan' its values as options (⟦model⟧, ⟦seq_len⟧, ⟦micro_batch⟧)",
      source, yaml ? "YAML" : "TOML");
}

}  // namespace zeroplan
