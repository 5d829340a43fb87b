// The one table of parameter tensors that initialisation, sharding, the optimizer, checkpoints and
// the planner iterate. Nothing else knows which tensors a model has.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/model/model_spec.h"

namespace zeroplan {

enum class TensorRole : uint8_t {
  kWte,
  kWpe,
  kLn1W,
  kLn1B,
  kQkvW,
  kQkvB,
  kProjW,
  kProjB,
  kLn2W,
  kLn2B,
  kFcW,
  kFcB,
  kFcProjW,
  kFcProjB,
  kLnfW,
  kLnfB,
};
inline constexpr int kTensorRoles = 16;

enum class InitKind : uint8_t { kNormal, kZeros, kOnes };

// The layer number of tensors outside the layers: embeddings come before layer 0, the final layer
// norm is "layer" number spec.layers.
inline constexpr int kEmbeddingLayer = -1;

struct ParamTensor {
  std::string name;  // Hugging Face's: "transformer.h.0.attn.c_attn.weight"
  TensorRole role;
  int layer;  // kEmbeddingLayer, 0 .. layers-1, or layers for the final layer norm
  std::array<int64_t, 2>
      shape;  // rows, cols; vectors are {n, 1}. Conv1D layout [in, out]; wte is [Vp, C]
  bool is_vector;
  bool decay;  // weight decay applies: matrices and embeddings yes, biases and layer norms no
  InitKind init;
  float init_std;         // for kNormal
  int64_t unpadded_rows;  // rows that exports hold (wte: V), else shape[0]

  uint64_t elements() const {
    return static_cast<uint64_t>(shape[0]) * static_cast<uint64_t>(shape[1]);
  }
};

// In forward order: wte, wpe, each layer's 12 tensors (ln_1, c_attn, c_proj, ln_2, c_fc,
// mlp.c_proj; weight before bias), ln_f.
std::vector<ParamTensor> BuildParamTable(const ModelSpec& spec);

}  // namespace zeroplan
