// Models that zeroplan plans for other programs, and does not train itself: Gemma 2 and 3, Phi-3
// and 4, mixtures of experts, models that see. Their parameter table comes from the headers of
// their weights or, without these, from what their config.json says; which tensors a layer's parts
// are is told by their names. Each such model is a ModelFamily of its own, without a graph.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json_source.h"
#include "core/model/model_family.h"
#include "core/model/model_spec.h"

namespace zeroplan {

// Encoder layers over patches of an image. Its parameters are rows before the layers, behind the
// token embedding.
struct VisionTower {
  int64_t layers = 0;  // 0: none
  int64_t hidden = 0, heads = 0, ffn = 0;
  bool gated = false;          // an MLP of two products and an activation; else of one
  bool rms_norms = false;      // in fp32 copies; else LayerNorm
  bool quick_gelu = false;     // x * sigmoid(1.702 x)
  int64_t patches = 0;         // of an image
  int64_t image_tokens = 0;    // of an image, in the text
  int64_t patch_elements = 0;  // values of a patch
  int64_t window = 0;          // patches that most layers look at together; 0: all
  int64_t full_layers = 0;     // with a window: layers that look at all
  int64_t images = 1;          // of a sequence
  // Whether a tensor is the tower's; else it belongs to what projects its images into the text.
  static bool Owns(std::string_view tensor) {
    return (tensor.find("vision_tower.") != std::string_view::npos ||
            tensor.find("visual.") != std::string_view::npos) &&
           tensor.find("visual.merger.") == std::string_view::npos;
  }

  bool present() const { return layers > 0; }
  int64_t Patches() const { return images * patches; }
};

// What of its code decides memory and time, beside what ModelSpec says.
struct PlannedCode {
  // Gemma's RMSNorm, which scales in fp32; norms behind attention and MLP too; embeddings that are
  // scaled.
  bool gemma_norms = false, post_norms = false, scaled_embedding = false;
  bool one_qkv = false, one_gate_up = false;  // a product each, not three and two
  bool bounded_scores = false;                // tanh of attention's scores
  bool bounded_logits = false;                // and of logits
  // Experts of a layer, of width ModelSpec::ffn, of which a token takes some; and a width of MLP
  // that every token takes beside them.
  int64_t experts = 0, experts_per_token = 0, shared_ffn = 0;
  bool normalized_shares = false;  // of the experts that a token takes, to a sum of 1
  int64_t window = 0;              // tokens that some layers look back at; 0: none do
  int64_t window_layers = 0;       // how many of them
  bool masked = false;             // attention is given a mask whatever the length
  VisionTower vision;
  // Parameters of a layer, and outside of layers, whose work is not known.
  uint64_t unknown_elements = 0;
  // What is not exact, sentences.
  std::vector<std::string> approximated;
};

// Sentences about what is approximated of it: those that its reading left, and what its parts are.
std::vector<std::string> ApproximatedOf(const PlannedCode& code);

// Whether a config.json of this model_type, or a folder with weights, can be planned.
bool IsPlannedType(std::string_view model_type);
// "\"gemma2\", \"phi3\"", for messages.
std::string PlannedTypes();

// The model of a config.json, whose root is `config`, and of the weights beside it. Its family
// stays as long as the process; the same model has the same one. `image_tokens`: of images in a
// sequence; none: one image. Throws Error(kUsage) naming file, key and value, or tensor, for what
// is damaged, contradicts itself or is not known.
ModelSpec ReadPlannedModel(const ModelSource& from, const JsonNode& config,
                           std::string_view model_type, std::optional<int64_t> image_tokens,
                           std::vector<std::string>* notes);

// ---- what it is read from ----

struct NamedShape {
  std::string name;
  std::vector<int64_t> shape;
  std::string file;  // that says so

  int64_t elements() const;
};

// Tensors of all headers beside a config.json; nullopt where files of weights are missing. Throws
// Error(kUsage) naming the file for one that is cut off or damaged.
std::optional<std::vector<NamedShape>> ReadWeightHeaders(const std::filesystem::path& folder);
// Those of one safetensors file, and what is said of the whole ("__metadata__"). Throws as well.
std::vector<NamedShape> ReadWeightHeader(const std::filesystem::path& file,
                                         std::map<std::string, std::string>* metadata = nullptr);

// What a model type says, and its tensors as its weights name them.
struct PlannedConfig {
  ModelSpec spec;  // without name and family
  PlannedCode code;
  std::vector<NamedShape> tensors;  // of a known type; else none
};
PlannedConfig ReadPlannedConfig(const JsonNode& config, std::string_view model_type,
                                std::optional<int64_t> image_tokens, const std::string& source);

}  // namespace zeroplan
