// What config.json says of models that are planned: defaults as transformers' configuration classes
// have them (5.24.0), and the tensors that weights of the type hold, by their published names.
#include <algorithm>
#include <limits>

#include "core/base/error.h"
#include "core/base/json_section.h"
#include "planner/runtimes/planned/planned_models.h"
#include "planner/runtimes/planned/text_types.h"

namespace zeroplan {
namespace {

constexpr int64_t kMax = std::numeric_limits<int32_t>::max(), kMaxLayers = 2048;
// Products of such sizes stay in range; all parameters together are bounded beside.
constexpr int64_t kMaxWidth = 1 << 20, kMaxHeads = 1 << 16, kMaxExperts = 4096, kMaxImage = 1 << 14;
constexpr double kMostParams = 1e15;

enum class Tower : uint8_t { kSiglip, kClip, kQwen };

// What sees, before a language model.
struct VisionType {
  std::string_view type;
  Tower tower;
  std::string_view text;         // the language model's type where the config names none
  std::string_view text_prefix;  // of its tensors
  std::string_view tower_prefix;
  int64_t layers, hidden, heads, ffn, image, patch;
};
constexpr VisionType kVisionTypes[] = {
    {"gemma3", Tower::kSiglip, "gemma3_text", "language_model.", "vision_tower.vision_model.", 12,
     768, 12, 3072, 224, 16},
    {"llava", Tower::kClip, "llama", "language_model.", "vision_tower.vision_model.", 24, 1024, 16,
     4096, 336, 14},
    {"qwen2_5_vl", Tower::kQwen, "qwen2_5_vl_text", "", "visual.", 32, 3584, 16, 3420, 0, 14},
};

// Tokens of a picture where its size is free: about 900 by 900 of 28 by 28 pixels each.
constexpr int64_t kFreeImageTokens = 1024;

const VisionType* VisionTypeNamed(std::string_view type) {
  const auto* at = std::find_if(std::begin(kVisionTypes), std::end(kVisionTypes),
                                [&](const VisionType& row) { return row.type == type; });
  return at == std::end(kVisionTypes) ? nullptr : at;
}

int64_t Whole(JsonSection& config, std::string_view key, int64_t fallback, int64_t least = 1,
              int64_t most = kMax) {
  const std::optional<int64_t> value = config.Int(key, least, most);
  if (!value && fallback < least) {
    config.Fail(key, "is missing; set it as the model was trained with");
  }
  return value.value_or(fallback);
}

// ---- the language model ----

// Of an unknown type all has to be said.
constexpr TextType kUnknown = {"", 0, 0, 0, 0, 0, 0, 0, 0};

// Which layers look back at a window alone.
int64_t WindowLayers(JsonSection& config, const TextType& type, int64_t layers) {
  if (const JsonNode* types = config.Value("layer_types")) {
    int64_t count = 0;
    for (const JsonNode& one : types->elements) {
      count += one.is_string() && one.scalar == "sliding_attention" ? 1 : 0;
    }
    return count;
  }
  if (type.period == 0) return layers;
  const int64_t period = Whole(config, "sliding_window_pattern", type.period);
  return layers - layers / period;
}

// Layers with attention of a linear kind, a gated delta rule: all but every fourth.
void ReadLinearAttention(JsonSection& config, PlannedConfig* out) {
  LinearAttention& linear = out->linear;
  linear.key_heads = Whole(config, "linear_num_key_heads", 16, 1, kMaxHeads);
  linear.value_heads = Whole(config, "linear_num_value_heads", 32, 1, kMaxHeads);
  linear.key_size = Whole(config, "linear_key_head_dim", 128, 1, kMaxHeads);
  linear.value_size = Whole(config, "linear_value_head_dim", 128, 1, kMaxHeads);
  linear.kernel = Whole(config, "linear_conv_kernel_dim", 4, 1, 1024);
  const int64_t layers = out->spec.layers;
  if (const JsonNode* types = config.Value("layer_types")) {
    for (const JsonNode& one : types->elements) {
      linear.layers += one.is_string() && one.scalar == "linear_attention" ? 1 : 0;
    }
  } else {
    linear.layers = layers - layers / Whole(config, "full_attention_interval", 4, 1, kMaxLayers);
  }
  if (linear.layers > layers) {
    config.Fail("layer_types", "has {} layers, and num_hidden_layers is {}; use one for each",
                linear.layers, layers);
  }
  out->code.untimed.emplace_back("linear attention");
  out->code.approximated.push_back(fmt::format(
      "{} of {} layers have attention of a linear kind: its parameters are counted, its "
      "activations and time are taken to be those of softmax attention",
      linear.layers, layers));
}

void ReadText(JsonSection& config, const TextType& type, PlannedConfig* out) {
  ModelSpec& spec = out->spec;
  PlannedCode& code = out->code;
  spec.layers = Whole(config, "num_hidden_layers", type.layers, 1, kMaxLayers);
  spec.hidden = Whole(config, "hidden_size", type.hidden, 1, kMaxWidth);
  spec.heads = Whole(config, "num_attention_heads", type.heads, 1, kMaxHeads);
  spec.kv_heads = Whole(config, "num_key_value_heads",
                        type.kv_heads > 0 ? type.kv_heads : spec.heads, 1, kMaxHeads);
  spec.head_size = Whole(config, "head_dim", type.head_size, 0, kMaxHeads);
  if (spec.head_size == 0) {
    if (spec.hidden % spec.heads != 0) {
      config.Fail("num_attention_heads",
                  "{} does not divide hidden_size {}; use a number of heads that does, or head_dim",
                  spec.heads, spec.hidden);
    }
    spec.head_size = spec.hidden / spec.heads;
  }
  if (spec.heads % spec.kv_heads != 0) {
    config.Fail("num_key_value_heads",
                "{} does not divide num_attention_heads {}; use one that does", spec.kv_heads,
                spec.heads);
  }
  spec.ffn = Whole(config, "intermediate_size", type.ffn, 1, kMaxWidth);
  spec.vocab = Whole(config, "vocab_size", type.vocab);
  spec.positions = Whole(config, "max_position_embeddings", type.positions);
  spec.tied_head = config.Bool("tie_word_embeddings").value_or(type.tied);
  const bool glm = type.special == Special::kGlm;
  spec.qk_norm = glm ? config.Bool("use_qk_norm").value_or(false) : type.qk_norm;
  const bool biases = config.Bool("attention_bias").value_or(type.special == Special::kGptOss);
  spec.qkv_bias = type.qkv_bias || biases;
  spec.out_bias = biases && !glm;
  code.post_norms = code.scaled_embedding = type.gemma;
  code.gemma_norms = type.gemma || type.special == Special::kQwenMixed;
  code.config_alone = type.special != Special::kNone;
  code.one_qkv = code.one_gate_up = type.one_products;
  const auto bounded = [&](const char* key, double fallback) {
    // null is off, a missing key the default.
    return config.Raw(key) != nullptr ? config.Number(key, 0, 1e9).value_or(0) > 0 : fallback > 0;
  };
  code.bounded_scores = bounded("attn_logit_softcapping", type.score_cap);
  code.bounded_logits = bounded("final_logit_softcapping", type.logit_cap);
  const bool window_off = config.Bool("use_sliding_window") == false;
  code.window = config.Raw("sliding_window") != nullptr
                    ? config.Int("sliding_window", 0, kMax).value_or(0)
                    : type.window;
  if (window_off) code.window = 0;
  if (code.window > 0) code.window_layers = WindowLayers(config, type, spec.layers);
  if (type.special == Special::kQwenMixed) ReadLinearAttention(config, out);
  if (type.experts == 0) return;
  // One key in published files, the other in what transformers 5 writes.
  code.experts =
      Whole(config, "num_local_experts",
            Whole(config, glm ? "n_routed_experts" : "num_experts", type.experts, 1, kMaxExperts),
            1, kMaxExperts);
  code.experts_per_token = Whole(config, "num_experts_per_tok", type.experts_per_token);
  if (code.experts_per_token > code.experts) {
    config.FailValue("num_experts_per_tok", fmt::format("at most the {} experts", code.experts));
  }
  if (type.expert_ffn > 0)
    spec.ffn = Whole(config, "moe_intermediate_size", type.expert_ffn, 1, kMaxWidth);
  if (type.shared_ffn > 0) {
    code.shared_ffn =
        Whole(config, "shared_expert_intermediate_size", type.shared_ffn, 1, kMaxWidth);
    code.shared_gate = true;
  }
  if (glm) {
    code.shared_ffn = spec.ffn * Whole(config, "n_shared_experts", 1, 0, kMaxExperts);
    out->dense_layers = Whole(config, "first_k_dense_replace", 1, 0, spec.layers);
    out->dense_ffn = Whole(config, "intermediate_size", type.ffn, 1, kMaxWidth);
  }
  code.untimed.emplace_back("routing to experts");
  code.normalized_shares =
      (type.expert_ffn == 0 && !type.olmoe) || config.Bool("norm_topk_prob").value_or(glm);
  const bool special = type.special == Special::kGptOss || type.type == "qwen3_5_moe";
  code.had_modules = !special;
  code.leaf = !special && type.special == Special::kNone && !type.olmoe;
  code.peft_adapts_experts = type.special != Special::kGptOss && type.type != "qwen2_moe";
  if (Whole(config, "decoder_sparse_step", 1) != 1) {
    config.FailValue("decoder_sparse_step", "1 (layers with experts and without are not planned)");
  }
  if (const JsonNode* dense = config.Value("mlp_only_layers"); dense && IsSwitchedOn(*dense)) {
    config.FailValue("mlp_only_layers", "[] (layers with experts and without are not planned)");
  }
}

// Adds the tensors of a layer, and what is around the layers.
class Tensors {
 public:
  Tensors(const std::string& source, std::vector<NamedShape>* to) : source_(source), to_(to) {}
  void Add(const std::string& name, std::vector<int64_t> shape) const {
    to_->push_back({name, std::move(shape), source_});
  }
  void Linear(const std::string& name, int64_t out, int64_t in, bool bias = false) const {
    Add(name + ".weight", {out, in});
    if (bias) Add(name + ".bias", {out});
  }
  void LayerNorm(const std::string& name, int64_t size) const {
    Add(name + ".weight", {size});
    Add(name + ".bias", {size});
  }
  void Gated(const std::string& name, int64_t hidden, int64_t ffn, bool bias = false) const {
    Linear(name + ".gate_proj", ffn, hidden, bias);
    Linear(name + ".up_proj", ffn, hidden, bias);
    Linear(name + ".down_proj", hidden, ffn, bias);
  }

 private:
  const std::string& source_;
  std::vector<NamedShape>* to_;
};

// Layers that differ are planned as layers that are alike: what only some have is spread over all,
// to the element. `outside`: what does not divide.
struct Spread {
  int64_t each = 0, outside = 0;
};
Spread SpreadOver(int64_t elements, int64_t layers) {
  return {elements / layers, elements % layers};
}

// Router, experts and shared expert of a layer.
void AddExperts(const TextType& type, const std::string& mlp, const Tensors& to,
                const PlannedConfig& config, int64_t* outside) {
  const ModelSpec& spec = config.spec;
  const PlannedCode& code = config.code;
  const int64_t c = spec.hidden, ffn = spec.ffn;
  const bool oss = type.special == Special::kGptOss, glm = type.special == Special::kGlm;
  to.Linear(mlp + (oss ? "router" : "gate"), code.experts, c, oss);
  if (glm) to.Add(mlp + "gate.e_score_correction_bias", {code.experts});
  // Rows of experts, of those layers that have them, for each layer.
  const auto rows = [&](int64_t of_layer, int64_t columns) {
    const Spread spread = SpreadOver(of_layer * (spec.layers - config.dense_layers), spec.layers);
    *outside += spread.outside * columns;
    return spread.each;
  };
  to.Add(mlp + "experts.gate_up_proj", {rows(code.experts * 2 * ffn, c), c});
  to.Add(mlp + "experts.down_proj", {rows(code.experts * c, ffn), ffn});
  if (oss) {
    to.Add(mlp + "experts.gate_up_proj_bias", {code.experts * 2 * ffn});
    to.Add(mlp + "experts.down_proj_bias", {code.experts * c});
  }
  if (code.shared_ffn == 0) return;
  to.Gated(mlp + "shared_expert", c, code.shared_ffn);
  if (code.shared_gate) to.Linear(mlp + "shared_expert_gate", 1, c);
}

// Elements that the layers have beyond what AddText has of each.
Spread OtherElements(const TextType& type, const PlannedConfig& config) {
  const ModelSpec& spec = config.spec;
  const PlannedCode& code = config.code;
  const int64_t c = spec.hidden, d = spec.HeadSize(), q = spec.heads * d, kv = spec.KvHeads() * d;
  switch (type.special) {
    case Special::kNone:
      return {};
    case Special::kGptOss:
      return {spec.heads, 0};  // sinks
    case Special::kGlm: {
      const int64_t experts = code.experts * c + code.experts + 3 * c * code.shared_ffn;
      return SpreadOver(config.dense_layers * (3 * c * config.dense_ffn - experts), spec.layers);
    }
    case Special::kQwenMixed:
      break;
  }
  const LinearAttention& linear = config.linear;
  const int64_t keys = linear.key_heads * linear.key_size;
  const int64_t values = linear.value_heads * linear.value_size, mixed = 2 * keys + values;
  // Queries, keys, values; the gate; two scalars a head; the convolution; decay and bias of time;
  // the norm; the output.
  const int64_t of_linear = c * mixed + c * values + 2 * c * linear.value_heads +
                            linear.kernel * mixed + 2 * linear.value_heads + linear.value_size +
                            values * c;
  const int64_t softmax = c * q + 2 * c * kv + q * c + 2 * d, gate = c * q;
  return SpreadOver(linear.layers * (of_linear - softmax) + (spec.layers - linear.layers) * gate,
                    spec.layers);
}

void AddText(const TextType& type, const std::string& prefix, const Tensors& to,
             const PlannedConfig& config) {
  const ModelSpec& spec = config.spec;
  const PlannedCode& code = config.code;
  const int64_t c = spec.hidden, d = spec.HeadSize(), q = spec.heads * d, kv = spec.KvHeads() * d;
  int64_t outside = 0;  // elements of no layer
  to.Add(prefix + "model.embed_tokens.weight", {spec.vocab, c});
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    const std::string at = fmt::format("{}model.layers.{}.", prefix, layer);
    to.Add(at + "input_layernorm.weight", {c});
    if (code.one_qkv) {
      to.Linear(at + "self_attn.qkv_proj", q + 2 * kv, c);
    } else {
      to.Linear(at + "self_attn.q_proj", q, c, spec.qkv_bias);
      to.Linear(at + "self_attn.k_proj", kv, c, spec.qkv_bias);
      to.Linear(at + "self_attn.v_proj", kv, c, spec.qkv_bias);
    }
    if (spec.qk_norm) {
      to.Add(at + "self_attn.q_norm.weight", {type.olmoe ? q : d});
      to.Add(at + "self_attn.k_norm.weight", {type.olmoe ? kv : d});
    }
    to.Linear(at + "self_attn.o_proj", c, q, spec.out_bias);
    to.Add(at + "post_attention_layernorm.weight", {c});
    if (code.post_norms) {
      to.Add(at + "pre_feedforward_layernorm.weight", {c});
      to.Add(at + "post_feedforward_layernorm.weight", {c});
    }
    const std::string mlp = at + type.expert_prefix;
    if (code.experts > 0) {
      int64_t more = 0;
      AddExperts(type, mlp, to, config, &more);
      if (layer == 0) outside += more;
    } else if (code.one_gate_up) {
      to.Linear(at + "mlp.gate_up_proj", 2 * spec.ffn, c);
      to.Linear(at + "mlp.down_proj", c, spec.ffn);
    } else {
      to.Gated(at + "mlp", c, spec.ffn);
    }
  }
  const Spread other = OtherElements(type, config);
  for (int64_t layer = 0; layer < spec.layers && other.each > 0; ++layer) {
    to.Add(fmt::format("{}model.layers.{}.other_parts.weight", prefix, layer), {other.each});
  }
  outside += other.outside;
  if (outside > 0) to.Add(prefix + "model.other_parts.weight", {outside});
  to.Add(prefix + "model.norm.weight", {c});
  if (!spec.tied_head) to.Add(prefix + "lm_head.weight", {spec.vocab, c});
}

// ---- what sees ----

struct VisionConfig {
  int64_t channels = 3, image = 0, patch = 0, merge = 1, frames = 1, out = 0;
  bool pooling_head = false, projector_bias = true;
};

VisionConfig ReadVision(JsonSection& root, JsonSection& config, const VisionType& type,
                        std::optional<int64_t> image_tokens, PlannedConfig* out) {
  VisionTower& tower = out->code.vision;
  VisionConfig vision;
  const bool qwen = type.tower == Tower::kQwen;
  tower.layers = Whole(config, qwen ? "depth" : "num_hidden_layers", type.layers, 1, kMaxLayers);
  tower.hidden = Whole(config, "hidden_size", type.hidden, 1, kMaxWidth);
  tower.heads = Whole(config, qwen ? "num_heads" : "num_attention_heads", type.heads, 1, kMaxHeads);
  tower.ffn = Whole(config, "intermediate_size", type.ffn, 1, kMaxWidth);
  if (tower.hidden % tower.heads != 0) {
    config.Fail(qwen ? "num_heads" : "num_attention_heads",
                "{} does not divide hidden_size {}; use a number of heads that does", tower.heads,
                tower.hidden);
  }
  vision.patch = Whole(config, "patch_size", type.patch, 1, kMaxImage);
  vision.channels =
      Whole(config, "num_channels", Whole(config, "in_channels", 3, 1, 1024), 1, 1024);
  int64_t of_image = 0;  // tokens in the text
  if (qwen) {
    tower.gated = tower.rms_norms = true;
    vision.merge = Whole(config, "spatial_merge_size", 2, 1, 64);
    vision.frames = Whole(config, "temporal_patch_size", 2, 1, 1024);
    vision.out = Whole(config, "out_hidden_size", 3584, 1, kMaxWidth);
    tower.window = Whole(config, "window_size", 112, 1, kMaxImage) / vision.patch;
    tower.window *= tower.window;
    const JsonNode* full = config.Value("fullatt_block_indexes");
    tower.full_layers =
        full != nullptr && full->is_array() ? static_cast<int64_t>(full->elements.size()) : 4;
    of_image = image_tokens.value_or(kFreeImageTokens);
    tower.patches = of_image * vision.merge * vision.merge;
    if (!image_tokens) {
      out->code.approximated.push_back(fmt::format(
          "images have any size: {} tokens of them are counted in a sequence (⟦image_tokens⟧)",
          of_image));
    }
  } else {
    vision.image = Whole(config, "image_size", type.image, 1, kMaxImage);
    const int64_t side = vision.image / vision.patch;
    if (side == 0) {
      config.FailValue("patch_size", fmt::format("at most image_size {}", vision.image));
    }
    tower.patches = side * side + (type.tower == Tower::kClip ? 1 : 0);
    tower.quick_gelu =
        config.String("hidden_act").value_or(type.tower == Tower::kClip ? "quick_gelu" : "") ==
        "quick_gelu";
    of_image = type.tower == Tower::kSiglip ? Whole(root, "mm_tokens_per_image", 256, 1, kMaxWidth)
                                            : side * side;
    vision.pooling_head =
        type.tower == Tower::kSiglip && config.Bool("vision_use_head").value_or(true);
    vision.projector_bias = root.Bool("multimodal_projector_bias").value_or(true);
    if (image_tokens) tower.images = (*image_tokens + of_image - 1) / of_image;
  }
  tower.image_tokens = of_image;
  tower.patch_elements = vision.channels * vision.frames * vision.patch * vision.patch;
  return vision;
}

void AddQwenVision(const Tensors& to, const VisionTower& tower, const VisionConfig& vision,
                   const std::string& at) {
  const int64_t h = tower.hidden, merged = h * vision.merge * vision.merge;
  to.Add(at + "patch_embed.proj.weight",
         {h, vision.channels, vision.frames, vision.patch, vision.patch});
  for (int64_t layer = 0; layer < tower.layers; ++layer) {
    const std::string block = fmt::format("{}blocks.{}.", at, layer);
    to.Add(block + "norm1.weight", {h});
    to.Add(block + "norm2.weight", {h});
    to.Linear(block + "attn.qkv", 3 * h, h, true);
    to.Linear(block + "attn.proj", h, h, true);
    to.Gated(block + "mlp", h, tower.ffn, true);
  }
  to.Add(at + "merger.ln_q.weight", {h});
  to.Linear(at + "merger.mlp.0", merged, merged, true);
  to.Linear(at + "merger.mlp.2", vision.out, merged, true);
}

void AddVision(const Tensors& to, const VisionType& type, const PlannedConfig& config,
               const VisionConfig& vision) {
  const VisionTower& tower = config.code.vision;
  if (type.tower == Tower::kQwen) {
    AddQwenVision(to, tower, vision, std::string(type.tower_prefix));
    return;
  }
  const bool clip = type.tower == Tower::kClip;
  const int64_t h = tower.hidden, text = config.spec.hidden;
  const std::string at(type.tower_prefix);
  if (clip) to.Add(at + "embeddings.class_embedding", {h});
  to.Add(at + "embeddings.patch_embedding.weight",
         {h, vision.channels, vision.patch, vision.patch});
  if (!clip) to.Add(at + "embeddings.patch_embedding.bias", {h});
  to.Add(at + "embeddings.position_embedding.weight", {tower.patches, h});
  if (clip) to.LayerNorm(at + "pre_layrnorm", h);
  for (int64_t layer = 0; layer < tower.layers; ++layer) {
    const std::string block = fmt::format("{}encoder.layers.{}.", at, layer);
    to.LayerNorm(block + "layer_norm1", h);
    for (const char* part : {"q_proj", "k_proj", "v_proj", "out_proj"}) {
      to.Linear(block + "self_attn." + part, h, h, true);
    }
    to.LayerNorm(block + "layer_norm2", h);
    to.Linear(block + "mlp.fc1", tower.ffn, h, true);
    to.Linear(block + "mlp.fc2", h, tower.ffn, true);
  }
  to.LayerNorm(at + "post_layernorm", h);
  if (vision.pooling_head) {
    to.Add(at + "head.probe", {1, 1, h});
    to.Add(at + "head.attention.in_proj_weight", {3 * h, h});
    to.Add(at + "head.attention.in_proj_bias", {3 * h});
    to.Linear(at + "head.attention.out_proj", h, h, true);
    to.LayerNorm(at + "head.layernorm", h);
    to.Linear(at + "head.mlp.fc1", tower.ffn, h, true);
    to.Linear(at + "head.mlp.fc2", h, tower.ffn, true);
  }
  if (clip) {
    to.Linear("multi_modal_projector.linear_1", text, h, vision.projector_bias);
    to.Linear("multi_modal_projector.linear_2", text, text, vision.projector_bias);
  } else {
    to.Add("multi_modal_projector.mm_input_projection_weight", {h, text});
    to.Add("multi_modal_projector.mm_soft_emb_norm.weight", {h});
  }
}

// Throws where the sizes are each allowed and together no model's.
void CheckPlannedSize(JsonSection& config, const PlannedConfig& of) {
  double params = 0;
  for (const NamedShape& tensor : of.tensors) {
    double elements = 1;
    for (const int64_t side : tensor.shape) elements *= static_cast<double>(side);
    params += elements;
  }
  if (params <= kMostParams) return;
  config.Fail("hidden_size",
              "{} comes with the other sizes to {:.2g} parameters, and at most {:.0g} are planned; "
              "set all as the model was trained with",
              of.spec.hidden, params, kMostParams);
}

}  // namespace

bool IsPlannedType(std::string_view model_type) {
  const bool own = model_type == "llama" || model_type == "mistral" || model_type == "qwen2";
  return VisionTypeNamed(model_type) != nullptr || (TextTypeNamed(model_type) != nullptr && !own);
}

std::string PlannedTypes() {
  std::string names;
  const auto add = [&](std::string_view type) {
    if (IsPlannedType(type)) names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", type);
  };
  for (const TextType& row : TextTypes()) add(row.type);
  for (const VisionType& row : kVisionTypes) add(row.type);
  return names;
}

PlannedConfig ReadPlannedConfig(const JsonNode& node, std::string_view model_type,
                                std::optional<int64_t> image_tokens, const std::string& source) {
  PlannedConfig out;
  JsonSection root(&node, "", source);
  const VisionType* sees = VisionTypeNamed(model_type);
  const JsonNode* inner = root.Value("text_config");
  JsonSection text(inner != nullptr ? inner : &node, inner != nullptr ? "text_config" : "", source);
  std::string text_type(sees != nullptr ? sees->text : model_type);
  if (inner != nullptr) text_type = text.String("model_type").value_or(text_type);
  const TextType* type = TextTypeNamed(text_type);
  if (type == nullptr && sees != nullptr) {
    text.FailValue("model_type", fmt::format("a language model that {} is planned with, such as "
                                             "\"{}\"",
                                             model_type, sees->text));
  }
  ReadText(text, type != nullptr ? *type : kUnknown, &out);
  // Said at the top of a model that sees, in its language model's part, or in both.
  if (const std::optional<bool> tied = root.Bool("tie_word_embeddings")) out.spec.tied_head = *tied;
  if (!IsPlannedType(model_type)) return out;
  const Tensors tensors(source, &out.tensors);
  if (sees == nullptr) {
    AddText(*type, "", tensors, out);
    CheckPlannedSize(text, out);
    return out;
  }
  const JsonNode* vision_node = root.Value("vision_config");
  if (vision_node == nullptr) {
    root.Fail("vision_config", "is missing; use a {} with it", model_type);
  }
  JsonSection vision_config(vision_node, "vision_config", source);
  const VisionConfig vision = ReadVision(root, vision_config, *sees, image_tokens, &out);
  AddText(*type, std::string(sees->text_prefix), tensors, out);
  AddVision(tensors, *sees, out, vision);
  CheckPlannedSize(text, out);
  // Tokens of images see each other, by a mask.
  out.code.masked = sees->tower == Tower::kSiglip;
  return out;
}

}  // namespace zeroplan
