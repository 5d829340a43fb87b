// optimizer, scheduler and gradient_clipping.
#include <algorithm>
#include <cctype>

#include "core/config/reader_state.h"

namespace zeroplan {
namespace {

// Kernels work with floats.
constexpr double kMaxNumber = std::numeric_limits<float>::max();
constexpr const char* kRate = "a finite number of at least 0, such as 1e-4";

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

void ReadBetas(JsonSection* params, OptimizerConfig* out) {
  const JsonNode* node = params->Value("betas");
  if (node == nullptr) return;
  constexpr const char* kAllowed = "two numbers from 0 to below 1, such as [0.9, 0.999]";
  if (!node->is_array() || node->elements.size() != 2) params->FailValue("betas", kAllowed);
  for (size_t i = 0; i < 2; ++i) {
    const JsonNode& element = node->elements[i];
    if (element.is_string() && element.scalar == "auto") continue;
    if (element.kind != JsonNode::Kind::kScalar || !element.scalar.is_number()) {
      params->FailValue("betas", kAllowed);
    }
    const double beta = element.scalar.get<double>();
    if (!(beta >= 0 && beta < 1))
      params->Fail("betas", "{} is not allowed; use {}", beta, kAllowed);
    out->betas[i] = beta;
  }
}

void ReadOptimizerSection(ReaderState* state) {
  OptimizerConfig& out = state->result.setup.optimizer;
  JsonSection& section = state->Open(&state->root(), "optimizer");
  constexpr const char* kTypes = "\"AdamW\" or \"Adam\"";
  const std::string type = section.String("type", kTypes).value_or("AdamW");
  const std::string lower = Lower(type);
  if (section.present() && section.Raw("type") == nullptr) {
    section.Fail("type", "is missing; add \"type\": \"AdamW\"");
  }
  if (lower != "adam" && lower != "adamw") section.FailValue("type", kTypes);
  section.Bool("legacy_fusion");
  state->NoEffect(&section, "legacy_fusion", "zeroplan has one fused AdamW");

  JsonSection& params = state->Open(&section, "params");
  out.lr = params.Number("lr", 0, kMaxNumber, kRate).value_or(1e-3);
  ReadBetas(&params, &out);
  out.eps = params.Number("eps", 0, kMaxNumber).value_or(1e-8);
  out.weight_decay = params.Number("weight_decay", 0, kMaxNumber).value_or(0);
  out.bias_correction = params.Bool("bias_correction").value_or(true);
  const bool decoupled = params.Bool("adam_w_mode").value_or(true);
  out.adam_w_mode = decoupled || lower == "adamw";
  if (!decoupled && lower == "adamw") {
    state->Note(params, "adam_w_mode",
                "false has no effect: type AdamW always decays decoupled; use type Adam");
  }
  for (const char* key : {"torch_adam", "fused", "set_grad_none"}) {
    params.Bool(key);
    state->NoEffect(&params, key, "zeroplan has one fused AdamW");
  }
  state->Reject(&params, "amsgrad", "zeroplan has no AMSGrad", "use false or remove the key");
  state->Reject(&params, "max_grad_norm", "DeepSpeed refuses it too", "use gradient_clipping");
}

// Reads what all schedules share. `rate` is the default of warmup_max_lr.
void ReadWarmup(JsonSection* params, double rate, ScheduleConfig* out) {
  out->warmup_min_lr = params->Number("warmup_min_lr", 0, kMaxNumber, kRate).value_or(0);
  out->warmup_max_lr = params->Number("warmup_max_lr", 0, kMaxNumber, kRate).value_or(rate);
}

void ReadSteps(ReaderState* state, JsonSection* section, JsonSection* params, ScheduleConfig* out) {
  if (out->kind == ScheduleKind::kWarmup) return;
  const std::optional<int64_t> total = params->Int("total_num_steps", 1);
  if (total) {
    out->total_steps = *total;
  } else if (params->IsAuto("total_num_steps")) {
    out->total_steps = state->context.total_steps.value_or(0);
  } else {
    const std::vector<std::string> unknown = params->Unknown();
    const std::string nearest = NearestName("total_num_steps", unknown);
    JsonSection& at = params->present() ? *params : *section;
    if (!nearest.empty())
      params->Fail(nearest, "is not a known key; did you mean 'total_num_steps'?");
    at.Fail(
        params->present() ? "total_num_steps" : "params",
        "total_num_steps is required by this schedule; add it, or \"auto\" for the run's length");
  }
}

void ReadScheduler(ReaderState* state) {
  const double lr = state->result.setup.optimizer.lr;
  ScheduleConfig& out = state->result.setup.optimizer.schedule;
  JsonSection& section = state->Open(&state->root(), "scheduler");
  constexpr const char* kTypes = "\"WarmupLR\", \"WarmupDecayLR\" or \"WarmupCosineLR\"";
  const std::optional<std::string> type = section.String("type", kTypes);
  JsonSection& params = state->Open(&section, "params");
  if (!type) {
    if (section.present() && section.Raw("type") == nullptr) {
      section.Fail("type", "is missing; use {}", kTypes);
    }
    out.kind = ScheduleKind::kConstant;
    if (section.present()) {
      state->Note(section, "type", "is open: the learning rate stays constant");
      for (const std::string& key : params.Unknown()) params.Raw(key);
    }
    return;
  }
  double max_lr = lr;
  if (*type == "WarmupLR") {
    out.kind = ScheduleKind::kWarmup;
  } else if (*type == "WarmupDecayLR") {
    out.kind = ScheduleKind::kWarmupDecay;
    // DeepSpeed's own default, whatever the optimizer's rate; "auto" is the optimizer's.
    if (!params.IsAuto("warmup_max_lr")) max_lr = 0.001;
  } else if (*type == "WarmupCosineLR") {
    out.kind = ScheduleKind::kWarmupCosine;
  } else if (*type == "OneCycle" || *type == "LRRangeTest") {
    section.Fail("type", "\"{}\" is not supported yet; use {}", *type, kTypes);
  } else {
    section.FailValue("type", kTypes);
  }
  if (out.kind == ScheduleKind::kWarmupCosine) {
    out.warmup_min_ratio = params.Number("warmup_min_ratio", 0, 1).value_or(0);
    out.cos_min_ratio = params.Number("cos_min_ratio", 0, 1).value_or(1e-4);
    out.warmup_max_lr = lr;
  } else {
    ReadWarmup(&params, max_lr, &out);
  }
  out.warmup_steps = params.Int("warmup_num_steps", 0, int64_t{1} << 53).value_or(1000);
  const std::string warmup = params.String("warmup_type").value_or("log");
  if (warmup != "log" && warmup != "linear") {
    params.FailValue("warmup_type", "\"log\" or \"linear\"");
  }
  out.log_warmup = warmup == "log";
  if (params.Int("last_batch_iteration", -1).value_or(-1) > 0) {
    params.Fail("last_batch_iteration", "is set by the checkpoint on --resume; remove the key");
  }
  ReadSteps(state, &section, &params, &out);
}

void ReadClipping(ReaderState* state) {
  JsonSection& root = state->root();
  OptimizerConfig& out = state->result.setup.optimizer;
  const JsonNode* node = root.Value("gradient_clipping");
  if (node != nullptr && node->kind == JsonNode::Kind::kScalar && node->scalar.is_boolean()) {
    out.gradient_clipping = node->scalar.get<bool>() ? 1.0 : 0.0;
    state->Note(root, "gradient_clipping",
                fmt::format("{} is taken as {:.1f}", node->Quote(), out.gradient_clipping));
    return;
  }
  out.gradient_clipping =
      root.Number("gradient_clipping", 0, kMaxNumber, "0 (off) or a positive norm such as 1.0")
          .value_or(1.0);
}

}  // namespace

void ReadOptimizer(ReaderState* state) {
  ReadOptimizerSection(state);
  ReadScheduler(state);
  ReadClipping(state);
}

}  // namespace zeroplan
