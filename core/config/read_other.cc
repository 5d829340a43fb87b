// Reads activation_checkpointing, and keys that do not steer a run.
#include <algorithm>
#include <array>
#include <limits>

#include "core/base/strings.h"
#include "core/base/units.h"
#include "core/config/deepspeed_writer.h"
#include "core/config/reader_state.h"
#include "core/settings/settings.h"

namespace zeroplan {

namespace {

struct KeyNote {
  const char* key;
  const char* why;
};

constexpr KeyNote kNoEffect[] = {
    {"steps_per_print", "zeroplan has its own progress lines; see ⟦metrics⟧"},
    {"wall_clock_breakdown", "zeroplan has ⟦trace⟧ and ⟦metrics⟧"},
    {"memory_breakdown", "zeroplan prints its planned and real memory"},
    {"dump_state", "nothing is dumped"},
    {"zero_allow_untested_optimizer", "zeroplan has its own optimizer"},
    {"zero_force_ds_cpu_optimizer", "zeroplan has its own optimizer"},
    {"seq_parallel_communication_data_type", "gradients are reduced in communication_data_type"},
    {"load_universal_checkpoint", "zeroplan's checkpoints load at any number of ranks"},
    {"nebula", "not supported; see ⟦save⟧"},
    {"timers", "zeroplan has ⟦trace⟧ and ⟦metrics⟧"},
    {"disable_allgather", "zeroplan chooses its collectives itself"},
    {"graph_harvesting", "the CPU backend has no graphs"},
    {"pipeline", "there is no pipeline parallelism"},
    {"log_level", "see ⟦help⟧ for zeroplan's own messages"},
    {"dataloader_drop_last", "zeroplan's data wraps"},
    {"managed_gradient_accumulation", "zeroplan runs the micro-steps itself"},
    {"datastates_ckpt", "zeroplan has its own checkpoints; see ⟦save⟧"},
    {"vocabulary_size", "the model says it"},
};

constexpr KeyNote kRejected[] = {
    {"amp", "zeroplan does not use Apex"},
    {"torch_autocast", "zeroplan has no autocast"},
    {"sparse_gradients", "zeroplan's gradients are dense"},
    {"sparse_attention", "zeroplan's attention is dense"},
    {"tensor_parallel", "zeroplan has no tensor parallelism"},
    {"expert_parallel", "zeroplan has no expert parallelism"},
    {"compression_training", "zeroplan does not compress models"},
    {"curriculum_learning", "zeroplan trains at one sequence length"},
    {"data_efficiency", "zeroplan has no sampling or routing of data by its difficulty"},
    {"hybrid_engine", "zeroplan does not switch to inference"},
    {"elasticity", "zeroplan's number of ranks is fixed for a run"},
    {"progressive_layer_drop", "zeroplan trains all layers"},
    {"eigenvalue", "zeroplan has no mixture of quantization"},
    {"quantize_training", "zeroplan has no mixture of quantization"},
    {"weight_quantization", "zeroplan has no mixture of quantization"},
    {"random_ltd", "zeroplan trains all layers on all tokens"},
    {"use_data_before_expert_parallelism", "zeroplan has no expert parallelism"},
};

// Keys that DeepSpeed 0.19.6 has and 0.19.8 refuses at any value (runtime/config.py,
// _reject_removed_config_keys), with their section.
constexpr std::pair<const char*, const char*> kRemoved[] = {
    {"zero_optimization", "mics_shard_size"},
    {"zero_optimization", "mics_hierarchical_params_gather"},
    {"zero_optimization", "zeropp_loco_param"},
    {"", "nebula"},
    {"", "amp"},
    {"", "elasticity"},
    {"", "sparse_gradients"},
    {"", "sparse_attention"},
    {"", "graph_harvesting"},
    {"", "curriculum_learning"},
    {"", "eigenvalue"},
    {"", "quantize_training"},
    {"", "compression_training"},
    {"", "progressive_layer_drop"},
};
// Keys of zero_optimization that DeepSpeed 0.19.8 has and 0.19.6 refuses.
constexpr const char* kAdded[] = {"parameter_alignment", "compute_grad_norm"};

void WarnOfVersions(ReaderState* state) {
  if (state->context.reads_for != ConfigFor::kDeepSpeed) return;
  for (JsonSection& section : state->sections()) {
    for (const auto& [of, key] : kRemoved) {
      if (section.path() != of || section.Raw(key) == nullptr) continue;
      state->Warn(section, key,
                  "DeepSpeed 0.19.8 refuses this key at any value, 0.19.6 has it; remove it");
    }
    for (const char* key : kAdded) {
      if (section.path() != "zero_optimization" || section.Raw(key) == nullptr) continue;
      state->Warn(section, key, "DeepSpeed 0.19.8 has this key, 0.19.6 refuses it");
    }
  }
}

// A section that steers nothing in zeroplan, with the keys that DeepSpeed knows in it.
struct IdleSection {
  const char* key;
  const char* why;
  std::vector<const char*> keys;
};

const std::vector<IdleSection>& IdleSections() {
  static const std::vector<IdleSection> sections = {
      {"flops_profiler",
       "zeroplan counts FLOPs itself; see ⟦metrics⟧",
       {"enabled", "recompute_fwd_factor", "profile_step", "module_depth", "top_modules",
        "detailed", "output_file"}},
      {"comms_logger",
       "zeroplan accounts for communication itself; see ⟦metrics⟧",
       {"enabled", "verbose", "prof_all", "debug", "prof_ops"}},
      {"tensorboard", "not supported; see ⟦metrics⟧", {"enabled", "output_path", "job_name"}},
      {"csv_monitor", "not supported; see ⟦metrics⟧", {"enabled", "output_path", "job_name"}},
      {"wandb", "not supported; see ⟦metrics⟧", {"enabled", "group", "team", "project"}},
      {"comet",
       "not supported; see ⟦metrics⟧",
       {"enabled", "samples_log_interval", "project", "workspace", "api_key", "experiment_name",
        "experiment_key", "online", "mode"}},
      {"compile",
       "zeroplan has fused kernels of its own",
       {"enabled",
        "deepcompile",
        "free_activation",
        "free_activation_threshold",
        "offload_activation",
        "offload_activation_pin_memory",
        "offload_opt_states",
        "offload_parameters",
        "double_buffer",
        "symmetric_memory",
        "debug_log",
        "sync_before_reduce",
        "sync_after_reduce",
        "sync_before_allgather",
        "sync_after_allgather",
        "keep_int_input_tensors",
        "keep_all_input_tensors",
        "passes",
        "backend",
        "kwargs"}},
  };
  return sections;
}

void ReadIdleSections(ReaderState* state) {
  for (const IdleSection& idle : IdleSections()) {
    JsonSection& section = state->Open(&state->root(), idle.key);
    for (const char* key : idle.keys) section.Raw(key);
    section.Bool("enabled");
    state->NoEffect(&state->root(), idle.key, idle.why);
  }
}

void ReadCheckpoint(ReaderState* state) {
  JsonSection& section = state->Open(&state->root(), "checkpoint");
  section.Word("tag_validation", {"Ignore", "Warn", "Fail"}, "\"Ignore\", \"Warn\" or \"Fail\"",
               /*any_case=*/true);
  section.Bool("load_universal");
  section.Bool("use_node_local_storage");
  for (const char* key : {"parallel_write", "writer", "checkpoint_serialization"}) section.Raw(key);
  if (section.present()) {
    state->Note(state->root(), "checkpoint",
                "has no effect: zeroplan's own checkpoints load at any number of ranks; see ⟦save⟧ "
                "and ⟦resume⟧");
  }
}

void ReadAio(ReaderState* state) {
  JsonSection& aio = state->Open(&state->root(), "aio");
  for (const char* key : {"block_size", "queue_depth", "intra_op_parallelism", "thread_count"}) {
    aio.Int(key, 1);
  }
  for (const char* key : {"single_submit", "overlap_events"}) aio.Bool(key);
  state->Reject(&aio, "use_gds", "zeroplan does not use GPUDirect Storage", "remove it");
  if (aio.present()) {
    state->Note(state->root(), "aio",
                state->context.of_deepspeed
                    ? "files are taken to be as fast as the profile's disks, however they are read"
                    : "has no effect yet: zeroplan chooses its own file I/O sizes");
  }
}

// Reads which activations are recomputed, for all layers. Segments of equal length,
// number_checkpoints of them, cannot have every length (6 layers of 10). Where they cannot, the
// writer adds the length under "_zeroplan", which DeepSpeed ignores. DeepSpeed has no key for
// recompute of less than whole layers; only "_zeroplan" sets it.
void ReadKind(ReaderState* state, JsonSection* section, JsonSection* own) {
  RecomputeConfig& out = state->result.setup.recompute;
  const std::optional<int64_t> checkpoints = section->Int("number_checkpoints", 1);
  const std::optional<int64_t> every =
      own->Int("checkpoint_every", 1, std::numeric_limits<int32_t>::max());
  const std::optional<std::string> kind =
      own->Word("checkpointing", {"selective", "products"}, "\"selective\" or \"products\"");
  if (!section->present()) {
    if (kind) out = *kind == "products" ? kProductsRecompute : kSelectiveRecompute;
    if (every) {
      state->Warn(*own, "checkpoint_every",
                  "has no effect without activation_checkpointing, which switches full recompute "
                  "on");
    }
    return;
  }
  if (kind) {
    state->Warn(*own, "checkpointing",
                "does not go with activation_checkpointing, which switches full recompute on, and "
                "is ignored");
  }
  out = FullRecompute();
  const int64_t layers = state->context.layers;
  auto per = [](int64_t a, int64_t b) {
    return static_cast<int64_t>(CeilDiv(static_cast<uint64_t>(a), static_cast<uint64_t>(b)));
  };
  if (every &&
      (layers == 0 || (checkpoints && *every <= layers && *checkpoints == per(layers, *every)))) {
    out.every = static_cast<int>(*every);
    return;
  }
  if (every) {
    state->Warn(*own, "checkpoint_every",
                "does not go with number_checkpoints and the model's layers, and is ignored");
  }
  if (checkpoints && layers > 0) {
    out.every = static_cast<int>(per(layers, std::min(*checkpoints, layers)));
  } else if (checkpoints) {
    state->Note(*section, "number_checkpoints",
                "needs the model's number of layers; until then every layer is recomputed");
  }
}

// Reads which layers recompute, what the layers above them recompute, and where the kept
// activations live. Runs after ReadKind. `offloads`: the value of DeepSpeed's cpu_checkpointing.
void ReadHomes(ReaderState* state, JsonSection* own, std::optional<bool> offloads) {
  RecomputeConfig& out = state->result.setup.recompute;
  const auto ignore = [&](const char* key, std::string_view why) {
    state->Warn(*own, key, fmt::format("{}, and is ignored", why));
  };
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const std::optional<int64_t> layers = own->Int("checkpoint_layers", 1, kMost);
  const std::optional<RecomputeKind> above = own->Word("checkpointing_above", kAboveWords);
  const bool recomputes = out.kind != RecomputeKind::kNone;
  if (layers && recomputes) out.layers = static_cast<int>(*layers);
  if (layers && !recomputes) {
    ignore("checkpoint_layers",
           "has no effect without activation_checkpointing or _zeroplan.checkpointing");
  }
  if (above == RecomputeKind::kSelective && out.layers == 0) {
    ignore("checkpointing_above", "has no effect without recompute of checkpoint_layers alone");
  } else if (above == RecomputeKind::kSelective && out.kind == RecomputeKind::kSelective) {
    ignore("checkpointing_above", "does not go with checkpointing \"selective\" of those below");
  } else if (above == RecomputeKind::kSelective) {
    out.above = RecomputeKind::kSelective;
  }
  const std::optional<bool> own_offloads = own->Bool("offload_activations");
  const std::optional<int64_t> offloaded = own->Int("offload_activation_layers", 1, kMost);
  if (state->context.of_deepspeed) {
    for (const char* key : {"offload_activations", "offload_activation_layers"}) {
      if (own->Value(key) == nullptr) continue;
      state->Warn(*own, key,
                  "is not read for DeepSpeed; use activation_checkpointing.cpu_checkpointing or "
                  "⟦offload_activations⟧");
    }
    return;
  }
  if (offloads == false && own_offloads == true) {
    ignore("offload_activations",
           "does not go with activation_checkpointing.cpu_checkpointing false");
  }
  if (offloads.value_or(own_offloads.value_or(offloaded.has_value()))) {
    out.offload = {OffloadDevice::kCpu, static_cast<int>(offloaded.value_or(0))};
  } else if (offloaded) {
    ignore("offload_activation_layers", "has no effect on activations that stay on the GPU");
  }
}

std::optional<SettingValue> ReadValue(const SettingRow& row, JsonSection* own) {
  const auto value = [](const auto& read) {
    return read ? std::optional<SettingValue>(ValueOf(*read)) : std::nullopt;
  };
  switch (row.record) {
    case RecordType::kBool:
      return value(own->Bool(row.name));
    case RecordType::kWhole:
      return value(own->Int(row.name, static_cast<int64_t>(row.least),
                            static_cast<int64_t>(std::min(row.most, 9e18))));
    case RecordType::kNumber:
      return value(own->Number(row.name, row.least, row.most));
    case RecordType::kWord:
      return value(own->Word(row.name, row.words(), QuotedChoice(row.words())));
    case RecordType::kNone:
      break;
  }
  ZEROPLAN_CHECK(false, "{} is no part of a record", row.name);
  return std::nullopt;
}

// Reads the keys of rows with a `set`: the config's value, else the command line's. Two values that
// differ are a problem.
void ReadOwnRows(ReaderState* state, JsonSection* own) {
  for (const SettingRow* row : kSettingRows) {
    if (row->set == nullptr) continue;
    const std::optional<SettingValue> said = ReadValue(*row, own);
    const auto asked = state->context.settings.find(row->name);
    const bool both = said && asked != state->context.settings.end();
    if (both && asked->second != *said) {
      const std::string of_config = SettingText(*said);
      own->Report(row->name, "{} contradicts ⟦{}⟧ {}; use ⟦{}⟧ {} or change the config", of_config,
                  row->name, SettingText(asked->second), row->name, of_config);
    }
    if (said) {
      row->set(state->result.setup, *said);
    } else if (asked != state->context.settings.end()) {
      row->set(state->result.setup, asked->second);
    }
  }
}

// Reads "_zeroplan", and which activations are recomputed and offloaded. `offloads` as for
// ReadHomes.
void ReadOwn(ReaderState* state, JsonSection* section, std::optional<bool> offloads) {
  JsonSection& own = state->Open(&state->root(), "_zeroplan");
  ReadKind(state, section, &own);
  ReadHomes(state, &own, offloads);
  ReadOwnRows(state, &own);
  ReadRunSchedule(state, &own);
  ReadOwnGroups(state, &own);
  ReadOwnStates(state, &own);
  // "runtime" names the program that the config is for. A config of another runtime than DeepSpeed
  // or zeroplan has none of DeepSpeed's keys.
  const std::optional<std::string> runtime = own.String("runtime");
  const bool deepspeed = runtime && runtime->starts_with("deepspeed");
  if (runtime && !deepspeed && *runtime != "zeroplan") {
    own.Report("runtime", "{} is not read here: this is no DeepSpeed config", own.Quote("runtime"));
  }
  if (deepspeed) {
    state->Note(own, "runtime",
                "says that the config was chosen for " + PrintableText(*runtime, 60) +
                    "; for zeroplan's executor another may be faster ('zeroplan plan')");
  }
  std::vector<std::string> compiled = setting::compile.words();
  compiled.insert(compiled.begin(), "none");
  own.Word(setting::compile.name, compiled, QuotedChoice(compiled));
  ReadOwnFp8(state, &own, deepspeed);
  constexpr std::string_view kInBackward = "optimizer_in_backward";
  const bool in_backward = own.Bool(kInBackward).value_or(false);
  if (in_backward && deepspeed) {
    own.Report(kInBackward,
               "true is not allowed: DeepSpeed has no updates in the backward pass; remove it");
  }
  state->result.setup.zero.optimizer_in_backward = in_backward;
  for (const SettingRow* row : kSettingRows) {
    if (!IsRecipe(*row) || row == &setting::offload_activations) continue;
    if (row != &setting::optimizer_in_backward && row != &setting::compile) own.String(row->name);
  }
}

struct Misplaced {
  std::string_view key;
  std::string_view fix;
};

constexpr std::string_view kNoSeqLen =
    "the tokens of a sequence are no part of a DeepSpeed config; give them as ⟦seq_len⟧";

// Mistakes seen in published configs that no edit distance finds, and the names that transformers,
// TRL, LLaMA-Factory and axolotl use for the tokens of a sequence.
constexpr auto kMisplaced = std::to_array<Misplaced>({
    {"lr_scheduler", "use 'scheduler'"},
    {"max_grad_norm", "use 'gradient_clipping'"},
    {"clip_grad", "use 'gradient_clipping'"},
    {"micro_batch_size_per_gpu", "use 'train_micro_batch_size_per_gpu'"},
    {"micro_batch_size", "use 'train_micro_batch_size_per_gpu'"},
    {"batch_size", "use 'train_batch_size'"},
    {"train_batch", "use 'train_batch_size'"},
    {"per_device_train_batch_size", "use 'train_micro_batch_size_per_gpu'"},
    {"global_batch_size", "use 'train_batch_size'"},
    {"accumulation_steps", "use 'gradient_accumulation_steps'"},
    {"grad_accumulation_steps", "use 'gradient_accumulation_steps'"},
    {"mixed_precision", "use 'bf16' or 'fp16': {\"enabled\": true}"},
    {"distributed_type", "this is a key of accelerate's own config; remove it"},
    {"offload_optimizer_device", "use 'offload_optimizer': {\"device\": ...}"},
    {"offload_param_device", "use 'offload_param': {\"device\": ...}"},
    {"zero3_save_16bit_model", "use 'stage3_gather_16bit_weights_on_model_save'"},
    {"opt_level", "this is a key of Apex's amp; remove it"},
    {"grad_clip", "use 'gradient_clipping'"},
    {"zero3_init_flag", "this is a key of accelerate's own config; remove it"},
    {"zero_stage", "use 'zero_optimization': {\"stage\": ...}"},
    {"learning_rate", "use 'optimizer': {\"params\": {\"lr\": ...}}"},
    {"comm_overlap", "use 'overlap_comm'"},
    {"allreduce_bucket_size", "use 'reduce_bucket_size'"},
    {"gradient_checkpointing", "use 'activation_checkpointing': {}"},
    {"sequence_parallel_degree", "use 'sequence_parallel_size'"},
    {"cutoff_len", kNoSeqLen},
    {"max_seq_length", kNoSeqLen},
    {"max_seq_len", kNoSeqLen},
    {"max_length", kNoSeqLen},
    {"model_max_length", kNoSeqLen},
    {"sequence_len", kNoSeqLen},
    {"seq_length", kNoSeqLen},
    {"seq_len", kNoSeqLen},
    {"context_length", kNoSeqLen},
});

// Keys of several sections, or words that people use for purposes of their own. To name one section
// for such a key would mislead.
constexpr std::array<std::string_view, 20> kCommonKeys = {
    "enabled",     "type",     "params",  "device",  "nvme_path",    "pin_memory", "debug",
    "output_path", "job_name", "project", "verbose", "buffer_count", "writer",     "group",
    "team",        "mode",     "online",  "profile", "recipe",       "gradients"};

std::string_view MisplacedFix(std::string_view key) {
  const auto* found = std::find_if(kMisplaced.begin(), kMisplaced.end(),
                                   [&](const Misplaced& m) { return m.key == key; });
  return found == kMisplaced.end() ? std::string_view() : found->fix;
}

}  // namespace

void ReadRecompute(ReaderState* state) {
  JsonSection& section = state->Open(&state->root(), "activation_checkpointing");
  const std::optional<bool> offloads = section.Bool("cpu_checkpointing");
  if (state->context.of_deepspeed) state->result.offload_activations = offloads.value_or(false);
  for (const char* key : {"partition_activations", "contiguous_memory_optimization",
                          "synchronize_checkpoint_boundary", "profile"}) {
    section.Bool(key);
  }
  state->NoEffect(&section, "partition_activations",
                  "it splits what is kept over ranks of tensor parallelism, and there are none");
  state->NoEffect(&section, "contiguous_memory_optimization", "zeroplan's arenas do not fragment");
  state->NoEffect(&section, "synchronize_checkpoint_boundary", "zeroplan orders work with events");
  state->NoEffect(&section, "profile", "zeroplan has ⟦trace⟧");
  ReadOwn(state, &section, offloads);
}

void ReadOtherKeys(ReaderState* state) {
  JsonSection& root = state->root();
  for (const KeyNote& entry : kNoEffect) state->NoEffect(&root, entry.key, entry.why);
  const char* tuning = "zeroplan does not tune while it trains";
  if (!state->context.of_deepspeed) {
    state->NoEffect(&root, "autotuning", tuning);
  } else if (const JsonNode* node = root.Value("autotuning"); node && IsSwitchedOn(*node)) {
    state->Note(root, "autotuning",
                "DeepSpeed's autotuner tries stages and micro-batches of its own; this is of those "
                "named here");
  }
  for (const KeyNote& entry : kRejected) {
    state->Reject(&root, entry.key, entry.why, "switch it off or remove it");
  }
  ReadIdleSections(state);
  ReadCheckpoint(state);
  ReadAio(state);
  WarnOfVersions(state);
}

const std::vector<std::string_view>& CommentKeys() {
  static const std::vector<std::string_view> keys = {"$schema", "comment", "comments",
                                                     "description"};
  return keys;
}

bool IsCommentKey(std::string_view key) {
  const auto& keys = CommentKeys();
  return key.starts_with('_') || std::find(keys.begin(), keys.end(), key) != keys.end();
}

std::string ReaderState::HomeOf(std::string_view key, const JsonSection& asking) const {
  if (std::find(kCommonKeys.begin(), kCommonKeys.end(), key) != kCommonKeys.end()) return "";
  for (const JsonSection& section : sections_) {
    if (&section == &asking || section.path() == asking.path()) continue;
    const auto& known = section.known();
    if (std::find(known.begin(), known.end(), key) != known.end()) {
      return section.path().empty() ? "the top level" : "'" + section.path() + "'";
    }
  }
  return "";
}

void ReaderState::CheckSection(const JsonSection& section) {
  for (const std::string& key : section.Unknown()) {
    const std::string_view fix = MisplacedFix(key);
    const std::string home = HomeOf(key, section);
    const std::string nearest = NearestName(key, section.known());
    if (!fix.empty()) {
      section.Report(key, "is not a known key; {}", fix);
    } else if (!home.empty()) {
      section.Report(key, "is not a key of this section; move it to {}", home);
    } else if (!nearest.empty()) {
      section.Report(key, "is not a known key; did you mean '{}'?", nearest);
    } else {
      section.Report(key, "is not a known key; remove it (allowed here: {})",
                     fmt::join(section.known(), ", "));
    }
  }
}

std::string ReaderState::NearestAnywhere(std::string_view key) const {
  std::string nearest = NearestName(key, sections_.front().known());
  // A short word is near to too many keys.
  if (!nearest.empty() || key.size() < 8) return nearest;
  for (const JsonSection& section : sections_) {
    const std::string_view path = section.path();
    const bool steers = path.starts_with("zero_optimization") || path == "fp16" ||
                        path == "optimizer.params" || path == "scheduler.params";
    if (!steers) continue;
    const std::string inner = NearestName(key, section.known());
    if (!inner.empty()) return fmt::format("{}.{}", path, inner);
  }
  return "";
}

void ReaderState::CheckRootKey(const std::string& key) {
  if (IsCommentKey(key)) return;
  const std::string_view fix = MisplacedFix(key);
  const std::string home = HomeOf(key, root());
  const std::string nearest = NearestAnywhere(key);
  if (!fix.empty()) {
    root().Report(key, "is not a known key; {}", fix);
  } else if (!home.empty()) {
    root().Report(key, "is not a key of the top level; move it to {}", home);
  } else if (!nearest.empty()) {
    root().Report(key, "is not a known key; did you mean '{}'?", nearest);
  } else if (context.strict) {
    root().Report(key, "is not a known key; remove it (DeepSpeed ignores it)");
  } else {
    Warn(root(), key, "is not a known key and is ignored, by DeepSpeed as well");
  }
}

void ReaderState::CheckUnknownKeys() {
  for (size_t i = 1; i < sections_.size(); ++i) CheckSection(sections_[i]);
  for (const std::string& key : root().Unknown()) CheckRootKey(key);
}

}  // namespace zeroplan
