// Models that zeroplan plans for other programs by the code of transformers: Gemma 2 and 3, Phi-3
// and 4, models with vision, which it does not train itself, and mixtures of experts. Their
// parameter table comes from the headers of their weights or, without weights, from their
// config.json; tensor names determine a layer's parts. Each such model is a ModelFamily of its own,
// without a graph.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json_source.h"
#include "core/families/load_model.h"
#include "core/families/weight_headers.h"
#include "core/model/model_family.h"
#include "core/model/model_spec.h"

namespace zeroplan {

// Encoder layers over patches of an image. Its parameters are rows before the layers, after the
// token embedding.
struct VisionTower {
  int64_t layers = 0;  // 0: none
  int64_t hidden = 0, heads = 0, ffn = 0;
  bool gated = false;          // an MLP of two matmuls and an activation; else of one
  bool rms_norms = false;      // in fp32 copies; else LayerNorm
  bool quick_gelu = false;     // x * sigmoid(1.702 x)
  int64_t patches = 0;         // patches of an image
  int64_t image_tokens = 0;    // text tokens of an image
  int64_t patch_elements = 0;  // values of a patch
  int64_t window = 0;          // patches in the attention window of most layers; 0: all
  int64_t full_layers = 0;     // layers that attend to all patches, if there is a window
  int64_t images = 1;          // images of a sequence
  // True if a tensor belongs to the tower; else it belongs to the projection of its images into the
  // text.
  static bool Owns(std::string_view tensor) {
    return (tensor.find("vision_tower.") != std::string_view::npos ||
            tensor.find("visual.") != std::string_view::npos) &&
           tensor.find("visual.merger.") == std::string_view::npos;
  }

  bool present() const { return layers > 0; }
  int64_t Patches() const { return images * patches; }
};

// Properties of its code that determine memory and time, in addition to ModelSpec.
struct PlannedCode {
  // Gemma's RMSNorm, which scales in fp32; norms after attention and MLP too; embeddings that are
  // scaled.
  bool gemma_norms = false, post_norms = false, scaled_embedding = false;
  bool one_qkv = false, one_gate_up = false;  // one matmul each, not three and two
  bool bounded_scores = false;                // tanh of attention's scores
  bool bounded_logits = false;                // tanh of the logits
  // Experts of a layer, of width ModelSpec::ffn; experts that a token uses; and the width of an MLP
  // that every token uses in addition.
  int64_t experts = 0, experts_per_token = 0, shared_ffn = 0;
  bool shared_gate = false;  // a sigmoid scales what that MLP makes
  bool leaf = false;         // one module to DeepSpeed's stage 3 (DEFAULT_LEAF_MODULE_CLASSES)
  // transformers 4 has its experts as linear modules.
  bool had_modules = false;
  // PEFT makes adapters of the experts where all-linear or their matrices' old names are targets.
  bool peft_adapts_experts = false;
  bool normalized_shares = false;  // a token's expert shares are normalised to a sum of 1
  int64_t window = 0;              // attention window of some layers, tokens; 0: none
  int64_t window_layers = 0;       // the number of those layers
  bool masked = false;             // attention gets a mask whatever the length
  VisionTower vision;
  // Parameters of a layer, and outside of layers, whose work is unknown.
  uint64_t unknown_elements = 0;
  // Work that has no time: "routing to experts", "linear attention". Empty: all is timed.
  std::vector<std::string> untimed;
  // Its layers differ, or its published weights are quantized: the table is that of the config, and
  // no weights are read.
  bool config_alone = false;
  // Approximations, as sentences.
  std::vector<std::string> approximated;
};

// Sentences about the approximations of `code`: those that the reader found, and those of its
// parts.
std::vector<std::string> ApproximatedOf(const PlannedCode& code);

// True if zeroplan can plan for a config.json of this model_type, or a folder with weights.
bool IsPlannedType(std::string_view model_type);
// "\"gemma2\", \"phi3\"", for messages.
std::string PlannedTypes();

// The model of a config.json, whose root is `config`, and of the weights in its folder. Its family
// lives as long as the process; equal models share one. `image_tokens`: of images in a sequence;
// unset: one image. Throws Error(kUsage) naming file, key and value, or tensor, if something is
// damaged, contradictory or unknown.
ModelSpec ReadPlannedModel(const ModelSource& from, const JsonNode& config,
                           std::string_view model_type, std::optional<int64_t> image_tokens,
                           std::vector<std::string>* notes);

// A gated delta rule in place of softmax attention.
struct LinearAttention {
  int64_t layers = 0;  // that have it
  int64_t key_heads = 0, value_heads = 0, key_size = 0, value_size = 0;
  int64_t kernel = 0;  // tokens of the convolution before it
};

// The properties of a model type, and its tensors under the names of its weights.
struct PlannedConfig {
  ModelSpec spec;  // without name and family
  PlannedCode code;
  int64_t dense_layers = 0, dense_ffn = 0;  // layers with an MLP in place of experts, its width
  LinearAttention linear;
  std::vector<NamedShape> tensors;  // set for a known type
};
PlannedConfig ReadPlannedConfig(const JsonNode& config, std::string_view model_type,
                                std::optional<int64_t> image_tokens, const std::string& source);

// Models that are known by name; each config has a planned type.
std::span<const PublishedConfig> PublishedModels();

}  // namespace zeroplan
