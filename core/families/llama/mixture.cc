// Experts in place of the MLP of llama's layer: their tensors, and their keys in config.json.
#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "core/base/json_section.h"
#include "core/families/llama/llama.h"
#include "core/model/lora.h"

namespace zeroplan {
namespace {

constexpr int64_t kMostWidth = 1 << 30, kMostExperts = 4096, kMostOfToken = 64;

// Names within a layer of the matrices of one expert. They live as long as the process.
struct ExpertNames {
  const char *gate, *up, *down;
};
const std::vector<ExpertNames>& NamesOfExperts(bool mixtral, int64_t experts) {
  static std::mutex mutex;
  static std::deque<std::string> texts;
  static std::map<std::pair<bool, int64_t>, std::vector<ExpertNames>> all;
  const std::lock_guard lock(mutex);
  std::vector<ExpertNames>& names = all[{mixtral, experts}];
  const std::array<const char*, 3> parts =
      mixtral ? std::array{"w1", "w3", "w2"} : std::array{"gate_proj", "up_proj", "down_proj"};
  const char* const block = mixtral ? "block_sparse_moe" : "mlp";
  for (auto e = static_cast<int64_t>(names.size()); e < experts; ++e) {
    const auto name = [&](size_t part) {
      texts.push_back(fmt::format("{}.experts.{}.{}.weight", block, e, parts[part]));
      return texts.back().c_str();
    };
    names.push_back({name(0), name(1), name(2)});
  }
  return names;
}

ParamRow Matrix(int id, const char* name, int64_t out, int64_t in, float init_std) {
  ParamRow row = MatrixRow(id, name, out, in, init_std);
  row.out_in = true;
  return row;
}

}  // namespace

std::vector<ParamRow> ExpertRows(const MixtureKind& kind, const ModelSpec& spec,
                                 const ExpertParams& ids) {
  const int64_t c = spec.hidden, f = spec.ExpertFfn(), experts = spec.experts;
  const float std = spec.init_std;
  const bool mixtral = kind.mixtral_names;
  std::vector<ParamRow> rows;
  if (spec.shared_ffn > 0) {
    const int64_t s = spec.shared_ffn;
    rows.push_back(Matrix(ids.router, "mlp.router.weight", experts + 1, c, std));
    rows.back().parts = {{"mlp.gate.weight", experts}, {"mlp.shared_expert_gate.weight", 1}};
    rows.push_back(
        Matrix(ids.shared_gate_up, "mlp.shared_expert.gate_up_proj.weight", 2 * s, c, std));
    rows.back().parts = {{"mlp.shared_expert.gate_proj.weight", s},
                         {"mlp.shared_expert.up_proj.weight", s}};
    rows.push_back(Matrix(ids.shared_down, "mlp.shared_expert.down_proj.weight", c, s, std));
  } else {
    const char* name = mixtral ? "block_sparse_moe.gate.weight" : "mlp.gate.weight";
    rows.push_back(Matrix(ids.router, name, experts, c, std));
    if (mixtral) rows.back().twin = "mlp.gate.weight";
  }
  ParamRow gate_up =
      Matrix(ids.gate_up, "mlp.experts.gate_up_proj.weight", experts * 2 * f, c, std);
  ParamRow down = Matrix(ids.down, "mlp.experts.down_proj.weight", experts * c, f, std);
  gate_up.fused = "mlp.experts.gate_up_proj";
  down.fused = "mlp.experts.down_proj";
  for (const ExpertNames& names : NamesOfExperts(mixtral, experts)) {
    gate_up.parts.push_back({names.gate, f});
    gate_up.parts.push_back({names.up, f});
    down.parts.push_back({names.down, c});
  }
  for (ParamRow* row : {&gate_up, &down}) {
    row->expert = true;
    row->token_share = static_cast<double>(spec.experts_per_token) / static_cast<double>(experts);
    rows.push_back(std::move(*row));
  }
  return rows;
}

void ReadMixture(const LlamaKind& kind, JsonSection* config, ModelSpec* spec,
                 std::vector<std::string>* notes) {
  const MixtureKind& mixture = *kind.mixture;
  // Published files have the one key, files of transformers 5 the other.
  const std::optional<int64_t> experts = config->Int("num_experts", 1, kMostExperts),
                               local = config->Int("num_local_experts", 1, kMostExperts);
  if (experts && local && *experts != *local) {
    config->Fail("num_local_experts", "{} is not num_experts {}; keep one of the two keys", *local,
                 *experts);
  }
  const auto or_usual = [&](const std::optional<int64_t>& given, const char* key, int64_t usual) {
    if (!given && notes != nullptr) {
      notes->push_back(config->Where(key) +
                       fmt::format("is not there; taken as {}, as transformers takes it", usual));
    }
    return given.value_or(usual);
  };
  spec->experts =
      or_usual(experts ? experts : local,
               mixture.mixtral_names ? "num_local_experts" : "num_experts", mixture.experts);
  spec->experts_per_token = or_usual(config->Int("num_experts_per_tok", 1, kMostOfToken),
                                     "num_experts_per_tok", mixture.experts_per_token);
  if (spec->experts_per_token > spec->experts) {
    config->FailValue("num_experts_per_tok", fmt::format("at most the {} experts", spec->experts));
  }
  if (mixture.expert_ffn > 0) {
    spec->expert_ffn = or_usual(config->Int("moe_intermediate_size", 1, kMostWidth),
                                "moe_intermediate_size", mixture.expert_ffn);
  }
  if (mixture.shared_ffn > 0) {
    // Qwen2MoeConfig alone has this switch.
    RequireSwitch(config, "qkv_bias", kind.qkv_bias);
    spec->shared_ffn = or_usual(config->Int("shared_expert_intermediate_size", 1, kMostWidth),
                                "shared_expert_intermediate_size", mixture.shared_ffn);
  }
  spec->normalized_gates = mixture.normalized || config->Bool("norm_topk_prob").value_or(false);
  spec->router_aux_loss =
      static_cast<float>(config->Number("router_aux_loss_coef", 0, 1e6).value_or(mixture.aux_loss));
  if (config->Value("clip_qkv") != nullptr) config->FailValue("clip_qkv", "null (not supported)");
  const double jitter = config->Number("router_jitter_noise", 0, 1).value_or(0);
  if (jitter > 0 && notes != nullptr) {
    notes->push_back(config->Where("router_jitter_noise") +
                     fmt::format("noise is not trained with (router_jitter_noise {})", jitter));
  }
  if (!mixture.dense_layers) return;
  const int64_t step = config->Int("decoder_sparse_step", 1, spec->layers).value_or(1);
  std::vector<int64_t> dense;
  for (int64_t layer = 0; layer < spec->layers; ++layer) {
    if ((layer + 1) % step != 0) dense.push_back(layer);
  }
  if (const JsonNode* list = config->Value("mlp_only_layers")) {
    if (!list->is_array()) config->FailValue("mlp_only_layers", "a list of layers");
    for (const JsonNode& one : list->elements) {
      const double layer =
          one.kind == JsonNode::Kind::kScalar && one.scalar.is_number() ? one.scalar.number() : -1;
      if (!(layer >= 0) || layer >= static_cast<double>(spec->layers) ||
          layer != static_cast<double>(static_cast<int64_t>(layer))) {
        config->Fail("mlp_only_layers", "{} is no layer; use 0 to {}", one.Quote(),
                     spec->layers - 1);
      }
      dense.push_back(static_cast<int64_t>(layer));
    }
  }
  std::sort(dense.begin(), dense.end());
  dense.erase(std::unique(dense.begin(), dense.end()), dense.end());
  spec->dense_layers = WriteTokens(dense);
}

void WriteMixture(const MixtureKind& kind, const ModelSpec& spec, nlohmann::ordered_json* out) {
  nlohmann::ordered_json& config = *out;
  config[kind.mixtral_names ? "num_local_experts" : "num_experts"] = spec.experts;
  config["num_experts_per_tok"] = spec.experts_per_token;
  if (kind.expert_ffn > 0) config["moe_intermediate_size"] = spec.ExpertFfn();
  if (kind.shared_ffn > 0) config["shared_expert_intermediate_size"] = spec.shared_ffn;
  if (!kind.normalized) config["norm_topk_prob"] = spec.normalized_gates;
  if (kind.dense_layers) {
    config["decoder_sparse_step"] = 1;
    config["mlp_only_layers"] = DenseLayers(spec);
  }
  config["router_aux_loss_coef"] = Decimal(spec.router_aux_loss);
}

}  // namespace zeroplan
