// optimizer and gradient_clipping.
#include <algorithm>
#include <cctype>

#include "core/config/reader_state.h"

namespace zeroplan {
namespace {

constexpr const char* kOptimizerTypes = "\"AdamW\" or \"Adam\"";

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

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

// Says which of DeepSpeed's other optimizers it is, if it is one.
void ReportType(const JsonSection& section, const std::string& lower) {
  if (lower == "onebitadam" || lower == "onebitlamb" || lower == "zerooneadam") {
    section.Report("type", "{} is not supported: zeroplan does not compress gradients; use {}",
                   section.Quote("type"), kOptimizerTypes);
    return;
  }
  for (const char* other :
       {"adagrad", "lamb", "lion", "muon", "muadam", "muadamw", "musgd", "sgd"}) {
    if (lower == other) {
      section.Report("type", "{} is not supported: zeroplan trains with Adam only; use {}",
                     section.Quote("type"), kOptimizerTypes);
      return;
    }
  }
  section.ReportValue("type", kOptimizerTypes);
}

void ReadOptimizerSection(ReaderState* state) {
  OptimizerConfig& out = state->result.setup.optimizer;
  JsonSection& section = state->Open(&state->root(), "optimizer");
  const std::string type = section.String("type", kOptimizerTypes).value_or("AdamW");
  const std::string lower = Lower(type);
  JsonKey& type_key = section.Key("type");
  type_key.required = type_key.any_case = true;
  type_key.words = {"AdamW", "Adam"};
  if (section.present() && section.Raw("type") == nullptr) {
    section.Report("type", "is missing; add \"type\": \"AdamW\"");
  }
  const bool known = lower == "adam" || lower == "adamw";
  if (!known) ReportType(section, lower);
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
  for (const char* key :
       {"torch_adam", "fused", "foreach", "set_grad_none", "fp32_optimizer_states"}) {
    params.Bool(key);
    state->NoEffect(&params, key, "zeroplan has one fused AdamW");
  }
  state->Reject(&params, "amsgrad", "zeroplan has no AMSGrad", "use false or remove the key");
  state->Reject(&params, "max_grad_norm", "DeepSpeed refuses it too", "use gradient_clipping");
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

}  // namespace

void ReadOptimizer(ReaderState* state) {
  ReadOptimizerSection(state);
  ReadClipping(state);
}

}  // namespace zeroplan
