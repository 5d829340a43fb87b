// Reads optimizer, gradient_clipping and scheduler.

#include "core/base/strings.h"
#include "core/config/reader_state.h"

namespace zeroplan {

namespace {

constexpr const char* kOptimizerTypes = "\"AdamW\" or \"Adam\"";

void ReadBetas(JsonSection* params, OptimizerConfig* out) {
  params->Key("betas").form =
      R"({"type":["array","string","null"],"items":{"type":["number","string","null"],"minimum":0,"exclusiveMaximum":1},"minItems":2,"maxItems":2})";
  const JsonNode* node = params->Value("betas");
  if (node == nullptr) return;
  constexpr const char* kAllowed = "two numbers from 0 to below 1, such as [0.9, 0.999]";
  if (!node->is_array() || node->elements.size() != 2) {
    params->ReportValue("betas", kAllowed);
    return;
  }
  for (size_t i = 0; i < 2; ++i) {
    const JsonNode& element = node->elements[i];
    if (element.is_null() || (element.is_string() && element.scalar == "auto")) continue;
    const std::optional<double> beta = ScalarNumber(element);
    if (beta && *beta >= 0 && *beta < 1) {
      out->betas[i] = *beta;
    } else {
      params->Report("betas", "{} is not allowed; use {}", element.Quote(), kAllowed);
    }
  }
}

bool CompressesGradients(const std::string& lower) {
  return lower == "onebitadam" || lower == "onebitlamb" || lower == "zerooneadam";
}

// Reports optimizers that DeepSpeed's engine refuses with ZeRO (runtime/engine.py).
void ReportZeroOptimizer(ReaderState* state, const JsonSection& section, const std::string& lower) {
  if (state->context.reads_for != ConfigFor::kDeepSpeed || state->result.setup.zero.stage == 0) {
    return;
  }
  const std::string type = section.Quote("type");
  if (CompressesGradients(lower)) {
    section.Report("type", "{} does not go with ZeRO in DeepSpeed; use stage 0, or {}", type,
                   kOptimizerTypes);
    return;
  }
  for (const char* tested : {"adagrad", "lion", "muon", "muadam", "muadamw"}) {
    if (lower == tested) return;
  }
  const JsonNode* allows = state->root().Value("zero_allow_untested_optimizer");
  if (allows != nullptr && IsSwitchedOn(*allows)) return;
  section.Report("type",
                 "{} with ZeRO is refused by DeepSpeed as untested; set "
                 "\"zero_allow_untested_optimizer\": true, or use {}",
                 type, kOptimizerTypes);
}

// Reports a type other than Adam: another optimizer of DeepSpeed, or one of torch.optim, which
// DeepSpeed falls back to.
void ReportType(ReaderState* state, const JsonSection& section, const std::string& lower) {
  if (CompressesGradients(lower)) {
    state->Unsupported(
        section, "type",
        fmt::format("{} is not supported: zeroplan does not compress gradients; use {}",
                    section.Quote("type"), kOptimizerTypes));
    ReportZeroOptimizer(state, section, lower);
    return;
  }
  for (const char* other : {"adagrad", "lamb", "lion", "muon", "muadam", "muadamw", "musgd", "sgd",
                            "adadelta", "adamax", "asgd", "nadam", "radam", "rmsprop", "rprop"}) {
    if (lower == other) {
      state->Unsupported(section, "type",
                         fmt::format("{} is not supported: zeroplan trains with Adam only; use {}",
                                     section.Quote("type"), kOptimizerTypes));
      ReportZeroOptimizer(state, section, lower);
      return;
    }
  }
  section.ReportValue("type", kOptimizerTypes);
}

void ReadOptimizerSection(ReaderState* state) {
  OptimizerConfig& out = state->result.setup.optimizer;
  JsonSection& section = state->Open(&state->root(), "optimizer");
  const std::string type = section.String("type", kOptimizerTypes).value_or("AdamW");
  const std::string lower = LowerAscii(type);
  JsonKey& type_key = section.Key("type");
  type_key.required = type_key.any_case = true;
  type_key.words = {"AdamW", "Adam"};
  if (section.present() && section.Raw("type") == nullptr) {
    section.Report("type", "is missing; add \"type\": \"AdamW\"");
  }
  const bool known = lower == "adam" || lower == "adamw";
  if (!known) ReportType(state, section, lower);
  section.Bool("legacy_fusion");
  state->NoEffect(&section, "legacy_fusion", "zeroplan has one fused AdamW");

  JsonSection& params = state->Open(&section, "params");
  out.lr = params.Number("lr", 0, kMaxNumber, kRate).value_or(1e-3);
  ReadBetas(&params, &out);
  ReadKeyRows(state, &params, "optimizer.params");
  const bool decoupled = params.Bool("adam_w_mode").value_or(true);
  out.adam_w_mode = decoupled || lower == "adamw";
  if (!decoupled && lower == "adamw") {
    state->Note(params, "adam_w_mode",
                "false has no effect: type AdamW always decays decoupled; use type Adam");
  }
  for (const char* key :
       {"torch_adam", "fused", "foreach", "set_grad_none", "fp32_optimizer_states"}) {
    params.Bool(key);
    state->NoEffect(&params, key, "zeroplan has one fused AdamW");
  }
  state->Reject(&params, "amsgrad", "zeroplan has no AMSGrad", "use false or remove the key");
  state->Reject(&params, "max_grad_norm", "DeepSpeed refuses it too", "use gradient_clipping",
                RejectedBy::kBoth);
  if (known) return;
  for (const std::string& key : params.Unknown()) params.Raw(key);  // another optimizer's own
}

void ReadClipping(ReaderState* state) {
  JsonSection& root = state->root();
  OptimizerConfig& out = state->result.setup.optimizer;
  root.Key("gradient_clipping").or_bool = true;
  const JsonNode* node = root.Value("gradient_clipping");
  if (node != nullptr && node->kind == JsonNode::Kind::kScalar && node->scalar.is_boolean()) {
    out.gradient_clipping = node->scalar.boolean() ? 1.0 : 0.0;
    state->Note(root, "gradient_clipping",
                fmt::format("{} is taken as {:.1f}", node->Quote(), out.gradient_clipping));
    return;
  }
  out.gradient_clipping =
      root.Number("gradient_clipping", 0, kMaxNumber, "0 (off) or a positive norm such as 1.0")
          .value_or(1.0);
}

constexpr int64_t kMaxSteps = std::numeric_limits<int32_t>::max();
constexpr const char* kScheduleTypes =
    "\"WarmupLR\", \"WarmupDecayLR\", \"WarmupCosineLR\", \"OneCycle\" or \"LRRangeTest\"";

// Reports a problem if `key`, which the schedule needs, is absent or null; "auto" counts as
// present. A misspelled key is named.
bool Require(JsonSection* section, JsonSection* params, const char* key, const char* fix) {
  const JsonNode* node = params->Raw(key);
  if (node != nullptr && !node->is_null()) return true;
  const std::string nearest = NearestName(key, params->Unknown());
  if (!nearest.empty()) {
    params->Report(nearest, "is not a known key; did you mean '{}'?", key);
    params->Raw(nearest);  // reported here
  } else if (params->present()) {
    params->Report(key, "is required by this schedule; {}", fix);
  } else {
    section->Report("params", "{} is required by this schedule; {}", key, fix);
  }
  return false;
}

void ReadTotalSteps(ReaderState* state, JsonSection* section, JsonSection* params,
                    ScheduleConfig* out) {
  if (out->kind == ScheduleKind::kWarmup) {
    // DeepSpeed's WarmupLR refuses the key.
    if (params->Raw("total_num_steps") != nullptr) {
      params->Report("total_num_steps",
                     "is not a key of WarmupLR; remove it, or use WarmupDecayLR");
    }
    return;
  }
  if (!Require(section, params, "total_num_steps", "add it, or \"auto\" for the run's length"))
    return;
  const std::optional<int64_t> total = params->Int("total_num_steps", 1, int64_t{1} << 53);
  out->total_steps = total ? *total : state->context.total_steps.value_or(0);
}

void ReadWarmup(ReaderState* state, JsonSection* section, JsonSection* params) {
  const double lr = state->result.setup.optimizer.lr;
  ScheduleConfig& out = state->result.setup.optimizer.schedule;
  if (out.kind == ScheduleKind::kWarmupCosine) {
    out.warmup_min_ratio = params->Number("warmup_min_ratio", 0, 1).value_or(0);
    out.cos_min_ratio = params->Number("cos_min_ratio", 0, 1).value_or(1e-4);
    out.warmup_max_lr = lr;
  } else {
    // Without the key, WarmupDecayLR uses DeepSpeed's own default, whatever the optimizer's rate;
    // "auto" means the optimizer's rate.
    const bool own = out.kind == ScheduleKind::kWarmupDecay && !params->IsAuto("warmup_max_lr");
    out.warmup_min_lr = params->Number("warmup_min_lr", 0, kMaxNumber, kRate).value_or(0);
    constexpr double kDecayRate = 0.001;
    const auto given = params->Number("warmup_max_lr", 0, kMaxNumber, kRate);
    out.warmup_max_lr = given.value_or(own ? kDecayRate : lr);
    if (own && !given && lr != kDecayRate) {
      state->Warn(*params, "warmup_max_lr",
                  fmt::format("is not set: the rate is DeepSpeed's default {}, not "
                              "optimizer.params.lr {}; set it, or write \"auto\"",
                              kDecayRate, lr));
    }
  }
  out.warmup_steps = params->Int("warmup_num_steps", 0, int64_t{1} << 53).value_or(1000);
  const std::string warmup =
      params->Word("warmup_type", {"log", "linear"}, "\"log\" or \"linear\"").value_or("log");
  out.log_warmup = warmup == "log";
  ReadTotalSteps(state, section, params, &out);
}

void ReadOneCycle(ReaderState* state, JsonSection* section, JsonSection* params) {
  OneCycleConfig& out = state->result.setup.optimizer.schedule.one_cycle;
  const double lr = state->result.setup.optimizer.lr;
  Require(section, params, "cycle_min_lr", "add it");
  Require(section, params, "cycle_max_lr", "add it");
  out.min_lr = params->Number("cycle_min_lr", 0, kMaxNumber, kRate).value_or(0);
  out.max_lr = params->Number("cycle_max_lr", 0, kMaxNumber, kRate).value_or(lr);
  out.first_steps = params->Int("cycle_first_step_size", 1, kMaxSteps).value_or(2000);
  out.second_steps = params->Int("cycle_second_step_size", 0, kMaxSteps).value_or(out.first_steps);
  out.first_stairs = params->Int("cycle_first_stair_count", 0, kMaxSteps).value_or(0);
  out.second_stairs =
      params->Int("cycle_second_stair_count", 0, kMaxSteps).value_or(out.first_stairs);
  out.decay_steps = params->Int("decay_step_size", 0, kMaxSteps).value_or(0);
  out.decay_rate = params->Number("decay_lr_rate", 0, kMaxNumber).value_or(0);
  for (const char* key : {"cycle_min_mom", "cycle_max_mom", "decay_mom_rate"}) {
    params->Number(key, 0, kMaxNumber);
  }
  // By default DeepSpeed also cycles Adam's first beta; zeroplan's betas are fixed.
  if (params->Bool("cycle_momentum").value_or(true)) {
    const bool given = params->Value("cycle_momentum") != nullptr;
    state->Unsupported(
        given ? *params : *section, given ? "cycle_momentum" : "params",
        fmt::format("{} is not supported yet: zeroplan's betas do not change while it trains; use "
                    "\"cycle_momentum\": false",
                    given ? "true" : "cycle_momentum true, the default,"));
  }
}

void ReadRangeTest(ReaderState* state, JsonSection* params) {
  RangeTestConfig& out = state->result.setup.optimizer.schedule.range_test;
  out.min_lr = params->Number("lr_range_test_min_lr", 0, kMaxNumber, kRate).value_or(1e-3);
  out.step_size = params->Int("lr_range_test_step_size", 1, kMaxSteps).value_or(2000);
  out.step_rate = params->Number("lr_range_test_step_rate", 0, kMaxNumber).value_or(1.0);
  out.staircase = params->Bool("lr_range_test_staircase").value_or(false);
}

// Marks the keys of a section that is not read as known, so that none is reported as misspelled.
void SkipKeys(JsonSection* section) {
  for (const std::string& key : section->Unknown()) section->Raw(key);
}

// Schedules of torch.optim that DeepSpeed falls back to and that need only the optimizer and
// numbers.
bool IsTorchSchedule(std::string_view type) {
  for (const std::string_view name :
       {"StepLR", "MultiStepLR", "ConstantLR", "LinearLR", "ExponentialLR", "PolynomialLR",
        "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR", "OneCycleLR"}) {
    if (type == name) return true;
  }
  return false;
}

std::optional<ScheduleKind> ReadKind(JsonSection* section) {
  struct Name {
    const char* name;
    ScheduleKind kind;
  };
  constexpr Name kNames[] = {{"WarmupLR", ScheduleKind::kWarmup},
                             {"WarmupDecayLR", ScheduleKind::kWarmupDecay},
                             {"WarmupCosineLR", ScheduleKind::kWarmupCosine},
                             {"OneCycle", ScheduleKind::kOneCycle},
                             {"LRRangeTest", ScheduleKind::kRangeTest}};
  std::vector<std::string> names;
  for (const Name& known : kNames) names.emplace_back(known.name);
  const std::optional<std::string> type = section->Word("type", names, kScheduleTypes);
  section->Key("type").required = true;
  for (const Name& known : kNames) {
    if (type == known.name) return known.kind;
  }
  return std::nullopt;
}

}  // namespace

void ReadOptimizer(ReaderState* state) {
  ReadOptimizerSection(state);
  ReadClipping(state);
}

void ReadScheduler(ReaderState* state) {
  ScheduleConfig& out = state->result.setup.optimizer.schedule;
  JsonSection& section = state->Open(&state->root(), "scheduler");
  JsonSection& params = state->Open(&section, "params");
  const JsonNode* type = section.Value("type");
  if (state->context.reads_for == ConfigFor::kDeepSpeed && type != nullptr && type->is_string() &&
      IsTorchSchedule(type->scalar.text())) {
    state->Unsupported(section, "type",
                       fmt::format("{} is one of torch.optim.lr_scheduler's", type->Quote()));
    return SkipKeys(&params);
  }
  const std::optional<ScheduleKind> kind = ReadKind(&section);
  if (!kind) {
    SkipKeys(&params);
    if (!section.present() || section.Value("type") != nullptr) return;
    if (section.Raw("type") == nullptr) {
      section.Report("type", "is missing; use {}", kScheduleTypes);
    } else {
      state->Warn(section, "type", "is open: the learning rate stays constant");
    }
    return;
  }
  out.kind = *kind;
  if (*kind == ScheduleKind::kOneCycle) {
    ReadOneCycle(state, &section, &params);
  } else if (*kind == ScheduleKind::kRangeTest) {
    ReadRangeTest(state, &params);
  } else {
    ReadWarmup(state, &section, &params);
  }
  if (params.Int("last_batch_iteration", -1).value_or(-1) > 0) {
    params.Report("last_batch_iteration", "is set by the checkpoint on ⟦resume⟧; remove the key");
  }
  params.Key("last_batch_iteration").max = 0;
}

void ReadRunSchedule(ReaderState* state, JsonSection* own) {
  const std::optional<DecayShape> shape = own->Word("lr_schedule", kWords<DecayShape>);
  RunScheduleConfig run;
  run.warmup_share = own->Number("warmup_ratio", 0, 1).value_or(0);
  run.warmup_steps = own->Int("warmup_num_steps", 0, kMaxSteps).value_or(0);
  run.min_ratio = own->Number("min_lr_ratio", 0, 1).value_or(0);
  if (!shape) return;
  run.shape = *shape;
  if (state->root().Value("scheduler") != nullptr) {
    own->Report("lr_schedule", "does not go with a scheduler; remove one of them");
    return;
  }
  ScheduleConfig& out = state->result.setup.optimizer.schedule;
  out.kind = ScheduleKind::kOfRun;
  out.of_run = run;
}

}  // namespace zeroplan
