// Hugging Face's GPT2Config, read and written. Defaults are GPT2Config's own.
#include <limits>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_section.h"
#include "core/model/model_spec.h"

namespace zeroplan {
namespace {

// A dimension under its GPT-2 name or the generic alias that transformers accepts for it.
int64_t Dimension(JsonSection* config, const char* key, const char* alias, int64_t fallback) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  const std::optional<int64_t> own = config->Int(key, 1, kMax);
  const std::optional<int64_t> other =
      alias == nullptr ? std::nullopt : config->Int(alias, 1, kMax);
  if (own && other && *own != *other) {
    config->Fail(key, "{} differs from {} {}; keep one of them", *own, alias, *other);
  }
  return own ? *own : other.value_or(fallback);
}

// A switch that zeroplan's model has in one position only.
void RequireSwitch(JsonSection* config, const char* key, bool supported) {
  if (config->Bool(key).value_or(supported) != supported) {
    config->Fail(key, "{} is not supported; use {}", !supported, supported);
  }
}

void CheckArchitecture(JsonSection* config) {
  const std::optional<std::string> type = config->String("model_type");
  if (!type) {
    config->Fail("model_type", "is missing; use \"gpt2\" (the only architecture zeroplan trains)");
  }
  if (*type != "gpt2") {
    config->FailValue("model_type", "\"gpt2\", the only architecture that zeroplan trains");
  }
  const std::string activation = config->String("activation_function").value_or("gelu_new");
  // Both names stand for the tanh form of GELU.
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh") {
    config->FailValue("activation_function", "\"gelu_new\" (GELU in its tanh form)");
  }
  RequireSwitch(config, "tie_word_embeddings", true);
  RequireSwitch(config, "scale_attn_weights", true);
  RequireSwitch(config, "scale_attn_by_inverse_layer_idx", false);
  RequireSwitch(config, "reorder_and_upcast_attn", false);
  RequireSwitch(config, "add_cross_attention", false);
  if (const JsonNode* node = config->Value("quantization_config")) {
    if (IsSwitchedOn(*node)) {
      config->Fail("quantization_config",
                   "quantized weights are not supported; remove the key and "
                   "use the model's unquantized weights");
    }
  }
}

void NoteDropout(JsonSection* config, std::vector<std::string>* notes) {
  std::string found;
  for (const char* key : {"embd_pdrop", "resid_pdrop", "attn_pdrop"}) {
    const double p = config->Number(key, 0, 1).value_or(0.1);
    if (p > 0) found += fmt::format("{}{} {}", found.empty() ? "" : ", ", key, p);
  }
  if (!found.empty() && notes != nullptr) {
    notes->push_back(config->Where("embd_pdrop") + "dropout is not trained with (" + found + ")");
  }
}

}  // namespace

ModelSpec ReadHuggingFaceConfig(const std::filesystem::path& file,
                                std::vector<std::string>* notes) {
  const std::string source = file.string();
  const JsonNode root = ParseJsonText(ReadTextFile(file), source);
  JsonSection config(&root, "", source);
  CheckArchitecture(&config);

  ModelSpec spec;
  spec.layers = Dimension(&config, "n_layer", "num_hidden_layers", 12);
  spec.hidden = Dimension(&config, "n_embd", "hidden_size", 768);
  spec.heads = Dimension(&config, "n_head", "num_attention_heads", 12);
  spec.ffn = Dimension(&config, "n_inner", nullptr, 4 * spec.hidden);
  spec.vocab = Dimension(&config, "vocab_size", nullptr, 50257);
  // Old configs say n_ctx too; GPT2Config reads n_positions only.
  spec.positions = Dimension(&config, "n_positions", "max_position_embeddings", 1024);
  spec.padded_vocab = PadVocab(spec.vocab);
  constexpr const char* kEps = "a number above 0 and below 1, such as 1e-5";
  spec.layer_norm_eps =
      static_cast<float>(config.Number("layer_norm_epsilon", 1e-30, 0.999, kEps).value_or(1e-5));
  spec.init_std = static_cast<float>(config.Number("initializer_range", 0, 99).value_or(0.02));
  const std::filesystem::path folder =
      std::filesystem::absolute(file).lexically_normal().parent_path();
  spec.name = file.filename() == "config.json" ? folder.filename().string() : file.stem().string();
  NoteDropout(&config, notes);
  ValidateModelSpec(spec, source);
  return spec;
}

std::string WriteHuggingFaceConfig(const ModelSpec& spec) {
  // A float's shortest decimal form (1e-05, not 9.999999747378752e-06) reads back as the same
  // float.
  auto shortest = [](float value) { return std::stod(fmt::format("{}", value)); };
  nlohmann::ordered_json out;
  out["architectures"] = {"GPT2LMHeadModel"};
  out["model_type"] = "gpt2";
  out["activation_function"] = "gelu_new";
  out["n_layer"] = spec.layers;
  out["n_embd"] = spec.hidden;
  out["n_head"] = spec.heads;
  if (spec.ffn == 4 * spec.hidden) {
    out["n_inner"] = nullptr;
  } else {
    out["n_inner"] = spec.ffn;
  }
  out["vocab_size"] = spec.vocab;
  out["n_positions"] = spec.positions;
  out["n_ctx"] = spec.positions;
  out["layer_norm_epsilon"] = shortest(spec.layer_norm_eps);
  out["initializer_range"] = shortest(spec.init_std);
  for (const char* key : {"embd_pdrop", "resid_pdrop", "attn_pdrop"}) out[key] = 0.0;
  out["scale_attn_weights"] = true;
  out["tie_word_embeddings"] = true;
  if (spec.vocab == 50257) {
    // GPT-2's end-of-text token; other vocabularies have none that zeroplan knows of.
    out["bos_token_id"] = out["eos_token_id"] = 50256;
  } else {
    out["bos_token_id"] = out["eos_token_id"] = nullptr;
  }
  return out.dump(2) + "\n";
}

}  // namespace zeroplan
