#include "planner/why/merged_request.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <deque>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/strings.h"
#include "core/families/load_model.h"
#include "core/model/lora.h"
#include "hwprofiles/loader.h"
#include "planner/request/parse.h"
#include "planner/runtimes/runtimes.h"
#include "planner/why/log_facts.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;
using WhyConfig = nlohmann::ordered_json;

// Stores the fields of a request, so that each can be set by name.
class NamedFields : public FieldSink {
 public:
  void Take(AddedField field) override { fields_.push_back(std::move(field)); }
  const AddedField* Find(std::string_view name) const {
    const auto found = std::find_if(fields_.begin(), fields_.end(), [&](const AddedField& field) {
      return field.info.name == name;
    });
    return found == fields_.end() ? nullptr : &*found;
  }

 private:
  std::deque<AddedField> fields_;
};

// A field, and the key of a DeepSpeed config that corresponds to it.
struct FieldAndKey {
  std::string_view field, pointer;
};
// Whether a config decides the field. If so, the log's facts about it are ignored. `config`: the
// one that is given, null for the log's. A given one leaves "auto" to the program that ran.
bool DecidedByConfig(std::string_view field, const ConfigDocument* config) {
  struct Decided {
    std::string_view field, key, other_key;  // no key: what is absent is decided, too
  };
  constexpr auto kDecided =
      std::to_array<Decided>({{"⟦stage⟧", "", ""},
                              {"⟦offload_optimizer⟧", "", ""},
                              {"⟦offload_param⟧", "", ""},
                              {"⟦checkpointing⟧", "", ""},
                              {"⟦dtype⟧", "bf16.enabled", "fp16.enabled"},
                              {"⟦micro_batch⟧", "train_micro_batch_size_per_gpu", ""},
                              {"⟦grad_accum⟧", "gradient_accumulation_steps", ""},
                              {"⟦global_batch⟧", "train_batch_size", ""}});
  for (const Decided& decided : kDecided) {
    if (decided.field != field) continue;
    return config == nullptr || decided.key.empty() || config->Says(decided.key) ||
           (!decided.other_key.empty() && config->Says(decided.other_key));
  }
  return false;
}

// The preset with as many parameters as the log counts; null: there is none.
const ModelPreset* PresetOfCount(int64_t count) {
  if (count <= 0) return nullptr;
  for (const ModelPreset& preset : ModelPresets()) {
    if (preset.spec.UnpaddedParamCount() == static_cast<uint64_t>(count)) return &preset;
  }
  return nullptr;
}

// The rank of adapters on all linears of `model` that have `trained` parameters; 0: no usual rank
// has as many.
int64_t RankOfCount(const ModelSpec& model, int64_t trained) {
  ModelSpec adapted = BaseModel(model);
  adapted.lora_targets = kAllLinear;
  constexpr int64_t kHighest = 512;
  for (int64_t rank = 1; rank <= kHighest; rank *= 2) {
    adapted.lora_rank = rank;
    if (adapted.TrainedParamCount() == static_cast<uint64_t>(trained)) return rank;
  }
  return 0;
}

// Whether memory of that phase depends on the batch and on the length of sequences.
bool DependsOnBatch(RunPhase phase) {
  return phase != RunPhase::kLoading && phase != RunPhase::kResume && phase != RunPhase::kInit &&
         phase != RunPhase::kSaving && phase != RunPhase::kGather;
}

std::string Place(const RunLog& log, int64_t line) {
  return line > 0 ? fmt::format("line {}", line) : log.source == "-" ? "the log" : log.source;
}

// Recompute as options or the log have it, which Trainer turns on outside DeepSpeed's config.
std::string RecomputeOf(const WhyRequest& request, const RunLog& log, MergedRequest& merged) {
  const auto given = request.given.find("⟦checkpointing⟧");
  if (given != request.given.end()) return given->second;
  const LogFact* fact = log.Fact("⟦checkpointing⟧");
  if (fact == nullptr) {
    merged.assumed.emplace_back("⟦checkpointing⟧ none");
    return "";
  }
  merged.used.push_back({"⟦checkpointing⟧", fact->text, fact->from, fact->line});
  return fact->text;
}

// Gives a given config the recompute of an option, or of the log if the config has none.
void SetRecompute(const WhyRequest& request, const RunLog& log, MergedRequest& merged) {
  ConfigDocument& config = merged.common.config;
  constexpr const char* kKey = "activation_checkpointing";
  if (!config.root().is_object()) return;
  const bool has = config.root().Find(kKey) != nullptr;
  const bool option = request.given.contains("⟦checkpointing⟧");
  if (has && !option) return;
  const std::string kind = RecomputeOf(request, log, merged);
  JsonNode root = config.root();
  std::erase_if(root.members, [](const JsonMember& member) { return member.key == kKey; });
  if (kind == "full") {
    JsonNode on;
    on.kind = JsonNode::Kind::kObject;
    root.members.push_back({kKey, std::move(on)});
  }
  config = ConfigDocument(std::move(root), config.name());
  merged.common.settings.checkpointing.reset();
}

// The config that DeepSpeed printed, with the values of options in place of its own. Numbers that
// are not valid JSON (inf) are removed with their keys, which only control printing.
std::string EditedConfig(const WhyRequest& request, const RunLog& log, MergedRequest& merged) {
  std::string text;
  for (const std::string_view line : Split(log.config, '\n')) {
    if (line.find(": inf") != std::string_view::npos ||
        line.find(": nan") != std::string_view::npos) {
      continue;
    }
    text += line;
    text += '\n';
  }
  // The removed key may have been the last before a closing brace.
  for (size_t at; (at = text.find(",\n}")) != std::string::npos;) text.erase(at, 1);
  WhyConfig config = WhyConfig::parse(text, nullptr, false);
  if (!config.is_object()) return text;
  const auto said = [&](std::string_view field, std::string_view pointer, const WhyConfig& value) {
    const WhyConfig::json_pointer at{std::string(pointer)};
    if (config.contains(at) && config[at] != value) {
      merged.conflicts.push_back(fmt::format("{} {}: the log's config has {} (line {})", field,
                                             request.given.at(std::string(field)),
                                             config[at].dump(), log.config_line));
    }
  };
  const AskedSettings& batch = request.common.settings;
  const std::pair<const Given<int64_t>*, FieldAndKey> batches[] = {
      {&batch.micro_batch, {"⟦micro_batch⟧", "/train_micro_batch_size_per_gpu"}},
      {&batch.grad_accum, {"⟦grad_accum⟧", "/gradient_accumulation_steps"}},
      {&batch.global_batch, {"⟦global_batch⟧", "/train_batch_size"}}};
  bool batch_changed = request.common.cluster.gpus.has_value();
  for (const auto& [value, key] : batches) {
    if (!*value) continue;
    said(key.field, key.pointer, WhyConfig(**value));
    config.erase(std::string(key.pointer.substr(1)));
    batch_changed = true;
  }
  if (batch_changed) config.erase("train_batch_size");
  // Changes keep the number of sequences of a step.
  const auto number = [&](const Given<int64_t>& option, const char* key, int64_t otherwise) {
    if (option) return *option;
    const auto at = config.find(key);
    return at != config.end() && at->is_number_integer() ? at->get<int64_t>() : otherwise;
  };
  const int64_t micro = number(batch.micro_batch, "train_micro_batch_size_per_gpu", 0);
  const int64_t accum = number(batch.grad_accum, "gradient_accumulation_steps", 1);
  const bool shares =
      config.contains("sequence_parallel_size") || request.given.contains("⟦sequence_ranks⟧");
  constexpr int64_t kMostCount = 1'000'000;  // keeps their product in range
  const bool sane = micro > 0 && micro <= kMostCount && accum > 0 && accum <= kMostCount;
  if (sane && !shares && !batch.global_batch && !batch.global_batch_tokens &&
      !config.contains("train_batch_size") && merged.common.cluster.gpus) {
    config["train_batch_size"] = micro * accum * *merged.common.cluster.gpus;
  }
  WhyConfig& zero = config["zero_optimization"];
  const AskedSettings& choice = request.common.settings;
  const auto one = [&](const auto& values, std::string_view field) {
    if (values->size() != 1) {
      ThrowUsage("{}: {} are several; a run had one", field, values.text);
    }
    return values->front();
  };
  const bool edits = choice.stage || choice.offload_optimizer || choice.offload_param;
  // In DeepSpeed's old syntax true means stage 1.
  if (edits && zero.is_boolean()) zero = {{"stage", zero.get<bool>() ? 1 : 0}};
  if (edits && zero.is_null()) zero = WhyConfig::object();
  const bool editable = zero.is_object();  // else the config's reader names the key in its error
  if (choice.stage && editable) {
    const int stage = one(choice.stage, "⟦stage⟧");
    said("⟦stage⟧", "/zero_optimization/stage", WhyConfig(stage));
    zero["stage"] = stage;
  }
  const auto offload = [&](const Given<std::vector<OffloadDevice>>& devices, std::string_view field,
                           const std::string& key) {
    if (!devices || !editable) return;
    const std::string device(OffloadDeviceName(one(devices, field)));
    said(field, "/zero_optimization/" + key + "/device", WhyConfig(device));
    zero.erase(key);
    if (device != "none") zero[key] = {{"device", device}, {"pin_memory", true}};
  };
  offload(choice.offload_optimizer, "⟦offload_optimizer⟧", "offload_optimizer");
  offload(choice.offload_param, "⟦offload_param⟧", "offload_param");
  const std::string kind = RecomputeOf(request, log, merged);
  config.erase("activation_checkpointing");
  if (kind == "full") config["activation_checkpointing"] = WhyConfig::object();
  return config.dump(4);
}

// A Trainer whose forward pass shows neither a wrapper nor a rank has one GPU.
void AssumeOneGpu(const RunLog& log, MergedRequest& merged) {
  const std::string because = fmt::format("(its frames have no DDP, FSDP or DeepSpeed, {})",
                                          Place(log, log.plain_forward_line));
  if (!SetField(merged.common, "⟦runtime⟧", "ddp")) return;
  merged.assumed.push_back("⟦runtime⟧ ddp " + because);
  if (merged.common.cluster.gpus || !SetField(merged.common, "⟦gpus⟧", "1")) return;
  merged.assumed.push_back("⟦gpus⟧ 1 " + because);
}

// Fills in what counts of parameters tell: the model, and the rank of its adapters.
void FromCounts(const RunLog& log, MergedRequest& merged) {
  ModelFields& fields = merged.common.model;
  const auto use = [&](const char* field, const std::string& text, std::string from) {
    if (SetField(merged.common, field, text)) {
      merged.used.push_back({field, text, std::move(from), log.params_line});
    }
  };
  if (!fields.given() && log.model_config.empty()) {
    if (const ModelPreset* preset = PresetOfCount(log.all_params)) {
      use("⟦model⟧", preset->spec.name, fmt::format("{} parameters, as it has", log.all_params));
    }
  }
  const bool tuned = fields.method && *fields.method != TuningMethod::kFull;
  if (fields.lora.rank || fields.model.empty() || log.trained_params <= 0) return;
  if (!log.adapters && !tuned) return;
  try {
    const ModelSpec model = FindModel(fields.model, {.allowed = true, .preferred = true}).spec;
    const int64_t rank = RankOfCount(model, log.trained_params);
    if (rank == 0) return;
    use("⟦lora_rank⟧", std::to_string(rank),
        fmt::format("{} trained parameters, as on all linears", log.trained_params));
  } catch (const Error&) {
    return;  // the model is refused later, by name
  }
}

}  // namespace

std::optional<uint64_t> UsableOf(const OomMessage& gpu) {
  std::optional<uint64_t> usable = gpu.total;
  if (gpu.in_use && gpu.free) {
    const uint64_t own = *gpu.in_use + *gpu.free;
    usable = usable ? std::min(*usable, own) : own;
  }
  if (!gpu.allowed) return usable;
  // The process may use the allocator's limit and its memory outside the allocator.
  const uint64_t reserved = gpu.reserved.value_or(0);
  const uint64_t outside = gpu.in_use && *gpu.in_use > reserved ? *gpu.in_use - reserved : 0;
  const uint64_t allowed = *gpu.allowed + outside;
  return usable ? std::min(*usable, allowed) : allowed;
}

bool SetField(Request& request, const std::string& field, const std::string& text) {
  NamedFields fields;
  AddRunFields(fields, request);
  const AddedField* found = fields.Find(field);
  if (found == nullptr) return false;
  try {
    found->take(text, field);
  } catch (const Error&) {
    return false;
  }
  return true;
}

MergedRequest MergeLog(const WhyRequest& request, const RunLog& log) {
  MergedRequest merged;
  merged.common = request.common;
  Request& common = merged.common;
  common.hardware.find = {};  // a log may be from another machine
  NamedFields fields;
  AddRunFields(fields, common);
  const auto given = [&](std::string_view field) {
    return request.given.contains(std::string(field));
  };
  const bool own_config = !log.config.empty() && !given("⟦config⟧");
  const LogFact* program = log.Fact("⟦runtime⟧");
  const bool deepspeed = given("⟦runtime⟧") ? common.runtime.of().reads_deepspeed_config()
                                            : program != nullptr && program->text == "deepspeed";
  std::string model_hint;
  const auto decided = [&](std::string_view name) {
    if (given("⟦config⟧")) return DecidedByConfig(name, &common.config);
    return own_config && DecidedByConfig(name, nullptr);
  };
  for (const auto& [name, fact] : log.facts) {
    const AddedField* field = fields.Find(name);
    if (field == nullptr) continue;
    if (const auto said = request.given.find(name); said != request.given.end()) {
      if (said->second != fact.text && !(own_config && decided(name)) && fact.strength > kByName) {
        merged.conflicts.push_back(fmt::format("{} {}: the log says {} ({}, {})", name,
                                               said->second, fact.text, fact.from,
                                               Place(log, fact.line)));
      }
      continue;
    }
    if (decided(name)) continue;
    // DeepSpeed has masters of its own, regardless of the loaded dtype.
    if (name == "⟦param_dtype⟧" && deepspeed) continue;
    if (name == "⟦model⟧") {
      if (given("⟦params⟧") || !log.model_config.empty()) continue;
      try {
        FindModel(fact.text, {.allowed = true});
      } catch (const Error&) {
        // A model that exists here and is refused has an error message of its own.
        std::error_code unknown;
        if (!fs::exists(fact.text, unknown)) model_hint = fact.text;
        if (!model_hint.empty()) continue;
      }
    }
    if (name == "⟦hw⟧") {
      try {
        FindProfile(fact.text);
      } catch (const Error&) {
        continue;
      }
    }
    try {
      field->take(fact.text, fmt::format("{}, {}", Place(log, fact.line), name));
      if (fact.strength == kByName) {
        merged.assumed.push_back(
            fmt::format("{} {} ({}, {})", name, fact.text, fact.from, Place(log, fact.line)));
      } else {
        merged.used.push_back({name, fact.text, fact.from, fact.line});
      }
    } catch (const Error&) {
      continue;  // the field does not accept the value
    }
  }
  FromCounts(log, merged);
  const std::string source = log.source == "-" ? "the log" : log.source;
  const auto document = [&](const std::string& text, const std::string& named,
                            ConfigDocument& into) {
    try {
      into = ConfigDocument(text, named);
    } catch (const Error& error) {
      if (merged.unreadable.empty()) merged.unreadable = error.what();
    }
  };
  if (!log.model_config.empty() && !given("⟦model⟧") && !given("⟦params⟧")) {
    document(log.model_config,
             fmt::format("{} (model config, line {})", source, log.model_config_line),
             common.model.described);
    merged.used.push_back({"⟦model⟧", "the model config", "Model config", log.model_config_line});
  }
  const Runtime& runtime = common.runtime.of();
  if (given("⟦config⟧") && runtime.reads_deepspeed_config()) SetRecompute(request, log, merged);
  const bool own_config_used = own_config && runtime.reads_deepspeed_config();
  if (own_config_used) {
    document(EditedConfig(request, log, merged),
             fmt::format("{} (config, line {})", source, log.config_line), common.config);
    // The config contains these settings now.
    ClearSettings(common.settings, SettingGroup::kZero);
    common.settings.dtype.reset();
    merged.used.push_back({"⟦config⟧", "DeepSpeed's config", "json =", log.config_line});
  }
  const auto miss = [&](bool missing, const char* field, const char* what, std::string hint = "") {
    if (missing) merged.missing.push_back({field, what, std::move(hint)});
  };
  const bool describes = common.model.given() || (!log.model_config.empty() && !given("⟦model⟧"));
  miss(!describes, "⟦model⟧", "the model",
       model_hint.empty() ? "" : fmt::format("the log has {}, which is not here", model_hint));
  const RunFailure* cause = log.Cause();
  const bool batch_counts = cause == nullptr || DependsOnBatch(cause->phase);
  if (log.plain_forward_line > 0 && log.highest_rank < 0 && !common.runtime.runtime) {
    AssumeOneGpu(log, merged);
  }
  const bool node_given = given("⟦hw⟧");
  miss(!common.runtime.runtime, "⟦runtime⟧", "what trained it");
  miss(!common.cluster.gpus && !node_given, "⟦gpus⟧", "the number of GPUs",
       log.highest_rank > 0 ? fmt::format("the log has a rank {}", log.highest_rank) : "");
  miss(!common.settings.seq_len && batch_counts, "⟦seq_len⟧", "the length of sequences");
  const bool has_config = own_config_used || common.config.given();
  const bool micro_in_config =
      own_config_used && common.config.root().Find("train_micro_batch_size_per_gpu") != nullptr;
  const bool own_file = has_config && !own_config_used;
  miss(!common.settings.micro_batch && !micro_in_config && !own_file && batch_counts,
       "⟦micro_batch⟧", "the sequences of a GPU and micro-step");
  const bool tuned = common.model.method || common.model.lora.given();
  miss(log.adapters && !tuned, "⟦lora_rank⟧",
       "the rank of PEFT's adapters (or ⟦method⟧ qlora; ⟦lora_targets⟧, where they are not on all "
       "linears)");
  const bool shards = common.runtime.runtime && !runtime.facts().trains_here &&
                      runtime.EstimateSpace().stages.size() > 1;
  const bool stage_open = shards && !has_config && !common.settings.stage;
  miss(stage_open && runtime.reads_deepspeed_config(), "⟦stage⟧",
       "the ZeRO stage (or ⟦config⟧ with DeepSpeed's JSON)");
  merged.hardware_known = !common.hardware.profile.empty();
  std::optional<uint64_t> usable;
  if (cause != nullptr && cause->kind == FailureKind::kGpuMemory) usable = UsableOf(cause->gpu);
  if (usable && !common.cluster.gpu_memory) Set(common.cluster.gpu_memory, *usable);
  if (cause != nullptr && cause->of_host() && log.host_total) {
    const double total = log.host_total->value;
    const std::string text = fmt::format("{:.1f}GiB", total / (1ull << 30));
    const Given<uint64_t>& memory = common.cluster.host_memory;
    constexpr double kRounded = 0.05;  // the total excludes memory of the host's firmware
    if (!memory) {
      Set(common.cluster.host_memory, static_cast<uint64_t>(total));
      merged.used.push_back({"⟦host_memory⟧", text, log.host_total->from, log.host_total->line});
    } else if (std::abs(static_cast<double>(*memory) / total - 1) > kRounded) {
      merged.conflicts.push_back(fmt::format(
          "⟦host_memory⟧ {}: the log says {} ({}, {})", request.given.at("⟦host_memory⟧"), text,
          log.host_total->from, Place(log, log.host_total->line)));
    }
  }
  // A host's memory is predicted without any figure of its GPUs.
  const bool of_host = cause != nullptr && cause->of_host();
  if (of_host && !merged.hardware_known && !common.cluster.gpu_memory) merged.gpu_unknown = true;
  miss(!merged.hardware_known && !common.cluster.gpu_memory && !of_host, "⟦hw⟧",
       "the GPUs (or their memory alone, ⟦gpu_memory⟧)");
  if (!common.cluster.gpu_reserve) {
    common.cluster.gpu_reserve.emplace(0);
    common.cluster.gpu_reserve.text = "0";
  }
  if (has_config) return merged;
  // The defaults of these programs.
  const auto assume = [&](auto& value, auto otherwise, std::string text) {
    if (value) return;
    value.emplace(std::move(otherwise));
    merged.assumed.push_back(std::move(text));
  };
  const std::vector<OffloadDevice> none = {OffloadDevice::kNone};
  assume(common.settings.checkpointing, Checkpointing::kNone, "⟦checkpointing⟧ none");
  if (stage_open && !runtime.reads_deepspeed_config()) {
    // FULL_SHARD, and reshard_after_forward of layers.
    SetField(common, "⟦stage⟧", "3");
    merged.assumed.emplace_back("⟦stage⟧ 3 (parameters resharded after forward)");
  }
  // FSDP's CPUOffloadPolicy moves both.
  const bool both = !runtime.reads_deepspeed_config() && common.settings.offload_param &&
                    common.settings.offload_param->front() == OffloadDevice::kCpu;
  if (shards && both) SetField(common, "⟦offload_optimizer⟧", "cpu");
  if (shards) {
    assume(common.settings.offload_optimizer, none, "⟦offload_optimizer⟧ none");
    assume(common.settings.offload_param, none, "⟦offload_param⟧ none");
  }
  if (!batch_counts) assume(common.settings.micro_batch, int64_t{1}, "⟦micro_batch⟧ 1");
  if (!common.settings.global_batch && !common.settings.global_batch_tokens) {
    assume(common.settings.grad_accum, int64_t{1}, "⟦grad_accum⟧ 1");
  }
  return merged;
}

}  // namespace zeroplan
