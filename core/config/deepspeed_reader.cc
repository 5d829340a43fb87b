#include "core/config/deepspeed_reader.h"

#include <algorithm>

#include "core/config/deepspeed_writer.h"
#include "core/config/reader_state.h"
#include "core/settings/setup_facts.h"

namespace zeroplan {

namespace {

// The most values that a config may have. Real configs have some tens. Below this limit, lookups
// and comparisons for each value stay cheap.
constexpr size_t kMaxValues = 10'000;

size_t CountValues(const JsonNode& node) {
  size_t count = 1;
  for (const JsonMember& member : node.members) count += CountValues(member.value);
  for (const JsonNode& element : node.elements) count += CountValues(element);
  return count;
}

// False where the key is absent, null or "auto".
bool HasGradAccumKey(const JsonNode& root) {
  const JsonNode* types = root.Find("data_types");
  if (types == nullptr || !types->is_object()) return false;
  const JsonNode* key = types->Find("grad_accum_dtype");
  return key != nullptr && !key->is_null() && !(key->is_string() && key->scalar == "auto");
}

void AddAutos(const JsonNode& node, const std::string& path, std::vector<std::string>* paths) {
  for (const JsonMember& member : node.members) {
    if (member.key.starts_with('_')) continue;
    const std::string at = path.empty() ? member.key : path + "." + member.key;
    if (member.value.is_string() && member.value.scalar == "auto") paths->push_back(at);
    AddAutos(member.value, at, paths);
  }
}

// Keys whose "auto" transformers 5.24 (HfTrainerDeepSpeedConfig) or accelerate 1.15
// (DeepSpeedPlugin, Accelerator._prepare_deepspeed) replaces.
constexpr std::string_view kFilledIn[] = {
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "fp16.enabled",
    "bf16.enabled",
    "optimizer.params.lr",
    "optimizer.params.betas",
    "optimizer.params.eps",
    "optimizer.params.weight_decay",
    "scheduler.params.warmup_min_lr",
    "scheduler.params.warmup_max_lr",
    "scheduler.params.warmup_num_steps",
    "scheduler.params.total_num_steps",
    "zero_optimization.stage",
    "zero_optimization.reduce_bucket_size",
    "zero_optimization.stage3_prefetch_bucket_size",
    "zero_optimization.stage3_param_persistence_threshold",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "zero_optimization.offload_optimizer.device",
    "zero_optimization.offload_optimizer.nvme_path",
    "zero_optimization.offload_param.device",
    "zero_optimization.offload_param.nvme_path",
};
// Sections that DeepSpeed reads by a DeepSpeedConfigModel, which drops keys that are "auto"
// (runtime/config_utils.py).
constexpr std::string_view kModels[] = {
    "zero_optimization.", "fp16.",        "bf16.",  "bfloat16.", "comms_logger.",
    "tensorboard.",       "csv_monitor.", "wandb.", "comet.",    "compile."};

template <size_t kCount>
bool IsOneOf(const std::string_view (&words)[kCount], std::string_view word) {
  return std::find(std::begin(words), std::end(words), word) != std::end(words);
}

// Who fills in the "auto" at `path`, and what DeepSpeed makes of it by itself. Its autotuner sets
// the batch sizes (autotuning/autotuner.py).
std::string AutoMeaning(const JsonNode& root, std::string_view path) {
  constexpr std::string_view kTuned[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                         "gradient_accumulation_steps"};
  const JsonNode* tuning = root.Find("autotuning");
  const bool tuned = tuning != nullptr && IsSwitchedOn(*tuning) && IsOneOf(kTuned, path);
  const bool dropped = std::any_of(std::begin(kModels), std::end(kModels),
                                   [&](std::string_view name) { return path.starts_with(name); });
  std::string by = !IsFilledIn(path) ? "nobody fills in this \"auto\""
                   : tuned           ? "\"auto\" is for DeepSpeed's autotuner (deepspeed "
                                       "--autotuning), transformers' Trainer or accelerate to fill in"
                           : "\"auto\" is for transformers' Trainer or accelerate to fill in";
  return by + (dropped            ? "; DeepSpeed by itself takes its default"
               : IsFilledIn(path) ? "; DeepSpeed by itself ends at it"
                                  : ", and DeepSpeed has no such value; remove the key");
}

// Warns of each kind of "auto" once, at the first key of its kind.
void WarnOfAutos(const JsonNode& root, std::string_view source, ReadResult* result) {
  std::vector<std::string> said;
  for (const std::string& path : AutoKeys(root)) {
    std::string meaning = AutoMeaning(root, path);
    if (std::find(said.begin(), said.end(), meaning) != said.end()) continue;
    result->warnings.push_back(fmt::format("{}: {}: {}", source, path, meaning));
    said.push_back(std::move(meaning));
  }
}

// Problems name settings that DeepSpeed has no key for by zeroplan's own keys. Problems with
// DeepSpeed's keys for shard groups are not among them: ReadGroups has already reported those.
constexpr FieldStyle kOwnKeys = {"_zeroplan.", '_'};

void ReadSections(ReaderState* state) {
  ReadBatch(state);
  ReadPrecision(state);
  ReadZero(state);
  ReadCommunication(state);
  ReadOptimizer(state);
  ReadScheduler(state);
  ReadRecompute(state);
  ReadOtherKeys(state);
}

}  // namespace

std::vector<std::string> AutoKeys(const JsonNode& root) {
  std::vector<std::string> paths;
  AddAutos(root, "", &paths);
  return paths;
}

bool IsFilledIn(std::string_view path) { return IsOneOf(kFilledIn, path); }

std::vector<ConfigSection> DescribeConfig(std::string_view config) {
  const JsonNode root = ParseJsonText(config, "config");
  const ReadContext context;
  ReaderState state(root, "config", context);
  ReadSections(&state);
  std::vector<ConfigSection> sections;
  for (const JsonSection& section : state.sections()) {
    sections.push_back({section.path(), section.keys()});
  }
  return sections;
}

ReadResult ReadDeepSpeedConfig(std::string_view text, std::string_view source,
                               const ReadContext& context) {
  return ReadDeepSpeedConfig(ParseJsonText(text, source), source, context);
}

ReadResult ReadDeepSpeedConfig(const JsonNode& root, std::string_view source,
                               const ReadContext& context) {
  if (const size_t count = CountValues(root); count > kMaxValues) {
    ThrowUsage("{}: has {} values; this is no DeepSpeed config (at most {})", source, count,
               kMaxValues);
  }
  ReaderState state(root, source, context);
  ReadSections(&state);
  state.CheckUnknownKeys();
  // If there are problems already, a further one may only follow from a missing value.
  if (!state.HasProblems()) {
    const std::optional<SetupProblem> problem = FindSetupProblem(state.result.setup);
    if (!problem && context.of_deepspeed) ReportDeepSpeedStates(&state);
    if (problem) {
      const auto& of_option = context.grad_accum_dtype;
      if (problem->key == kGradAccumKey && of_option && !HasGradAccumKey(root)) {
        state.AddProblem(0, fmt::format("⟦grad_accum_dtype⟧: {}", problem->message));
      } else if (problem->key == state.masters.option) {
        state.ReportSource(state.masters.Source(), problem->message);
      } else if (problem->key == state.moments.option) {
        state.ReportSource(state.moments.Source(), problem->message);
      } else if (problem->key == "⟦shard_group⟧" || problem->key == "⟦across_groups⟧") {
        state.ReportAt(NameFields(problem->key, kOwnKeys), NameFields(problem->message, kOwnKeys));
      } else {
        state.ReportAt(problem->key, problem->message);
      }
    }
  }
  // An open total_num_steps is filled in before DeepSpeed sees it.
  const TrainSetup filled = WithScheduleLength(state.result.setup);
  const std::string cannot = state.HasProblems() || context.reads_for == ConfigFor::kZeroplan
                                 ? ""
                                 : DeepSpeedCannot(filled);
  if (!cannot.empty() && context.reads_for == ConfigFor::kDeepSpeed) {
    state.AddProblem(0, fmt::format("{}: DeepSpeed does not run this: {}", source, cannot));
  } else if (!cannot.empty()) {
    state.result.warnings.push_back(
        fmt::format("{}: zeroplan runs this, DeepSpeed itself does not: {}", source, cannot));
  }
  if (context.reads_for == ConfigFor::kDeepSpeed) WarnOfAutos(root, source, &state.result);
  if (state.HasProblems()) state.ThrowProblems();
  return std::move(state.result);
}

ReaderState::ReaderState(const JsonNode& root, std::string_view source,
                         const ReadContext& read_context)
    : context(read_context), root_node_(root), source_(source) {
  sections_.emplace_back(&root, "", source_, &problems_);
}

JsonSection& ReaderState::Open(JsonSection* parent, std::string_view key) {
  return OpenNode(parent->Value(key), *parent, key);
}

JsonSection& ReaderState::OpenNode(const JsonNode* node, JsonSection& parent,
                                   std::string_view key) {
  parent.Key(key).kind = JsonKey::Kind::kSection;
  std::string path =
      parent.path().empty() ? std::string(key) : parent.path() + "." + std::string(key);
  return sections_.emplace_back(node, std::move(path), source_, &problems_);
}

void ReaderState::Note(const JsonSection& section, std::string_view key, std::string_view text) {
  result.notes.push_back(section.Where(key) + std::string(text));
}

void ReaderState::Warn(const JsonSection& section, std::string_view key, std::string_view text) {
  result.warnings.push_back(section.Where(key) + std::string(text));
}

void ReaderState::NoEffect(JsonSection* section, std::string_view key, std::string_view why) {
  section->Key(key).about = fmt::format("No effect: {}.", why);
  const JsonNode* node = section->Value(key);
  if (node == nullptr || !IsSwitchedOn(*node)) return;
  const std::string text = fmt::format("has no effect: {}", why);
  if (context.reads_for == ConfigFor::kZeroplan) {
    Warn(*section, key, text);
  } else if (context.reads_for == ConfigFor::kBoth) {
    Note(*section, key, text);
  }
}

void ReaderState::Unsupported(const JsonSection& section, std::string_view key,
                              std::string_view text) {
  if (context.reads_for != ConfigFor::kDeepSpeed) return section.Report(key, "{}", text);
  Note(section, key, fmt::format("zeroplan does not do this, DeepSpeed does: {}", text));
}

void ReaderState::DeepSpeedRefuses(const JsonSection& section, std::string_view key,
                                   std::string_view why) {
  if (context.reads_for == ConfigFor::kZeroplan) return;
  if (context.reads_for == ConfigFor::kDeepSpeed) {
    return section.Report(key, "DeepSpeed refuses this: {}", why);
  }
  Warn(section, key, fmt::format("zeroplan reads this, DeepSpeed itself refuses it: {}", why));
}

void ReaderState::Reject(JsonSection* section, std::string_view key, std::string_view why,
                         std::string_view fix, RejectedBy by) {
  JsonKey& known = section->Key(key);
  known.refused = true;
  known.about = fmt::format("Not supported: {}; {}.", why, fix);
  const JsonNode* node = section->Value(key);
  if (node != nullptr && IsSwitchedOn(*node)) {
    const std::string text = fmt::format("{} is not supported: {}; {}", node->Quote(), why, fix);
    if (by == RejectedBy::kBoth) {
      section->Report(key, "{}", text);
    } else {
      Unsupported(*section, key, text);
    }
  }
}

void ReaderState::OnlyDefault(JsonSection* section, std::string_view key, bool supported) {
  section->Key(key).about = fmt::format("Only {} is supported yet.", supported);
  const bool value = section->Bool(key).value_or(supported);
  if (value != supported) {
    Unsupported(*section, key,
                fmt::format("{} is not supported yet; use {} or remove the key", value, supported));
  }
}

void ReaderState::ReportAt(std::string_view key, std::string_view message) {
  const JsonNode* node = &root_node_;
  for (size_t start = 0; start <= key.size();) {
    const size_t dot = std::min(key.find('.', start), key.size());
    const JsonNode* child = node->Find(key.substr(start, dot - start));
    if (child == nullptr) break;
    node = child;
    start = dot + 1;
  }
  AddProblem(node->line, fmt::format("{}:{}: {}: {}", source_, node->line, key, message));
}

void ReaderState::ReportSource(std::string_view source, std::string_view message) {
  if (source.starts_with("⟦")) return AddProblem(0, fmt::format("{}: {}", source, message));
  ReportAt(source, NameFields(message, kOwnKeys));
}

void ReaderState::ThrowProblems() {
  std::stable_sort(problems_.begin(), problems_.end(),
                   [](const JsonProblem& a, const JsonProblem& b) { return a.line < b.line; });
  constexpr size_t kShown = 20;
  std::string text;
  for (size_t i = 0; i < std::min(problems_.size(), kShown); ++i) {
    text += (i == 0 ? "" : "\n") + problems_[i].text;
  }
  if (problems_.size() > kShown) {
    text += fmt::format("\nand {} more", problems_.size() - kShown);
  }
  throw Error(ExitCode::kUsage, text);
}

}  // namespace zeroplan
