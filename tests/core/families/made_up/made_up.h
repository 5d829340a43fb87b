// A family of models that nobody trains: what a family has to bring, and no more. Attention and MLP
// read one norm side by side, products have no biases, weights lie as torch.nn.Linear has them, the
// head is a matrix of its own.
//
//   x = x + attention(norm(x)) + down(gelu(up(norm(x))))
#pragma once

#include <memory>

#include "core/model/model_family.h"

namespace zeroplan::testing {

const ModelFamily& MadeUp();

enum MadeUpParam : int {
  kTokens,     // [Vp, C]
  kPositions,  // [positions, C]
  kNormW,
  kNormB,
  kQkv,   // [3C, C], published as three
  kProj,  // [C, C]
  kUp,    // [F, C]
  kDown,  // [C, F]
  kFinalNormW,
  kFinalNormB,
  kHeadW,  // [Vp, C]
};
ParamRows MadeUpParams(const ModelSpec& spec);

std::unique_ptr<ModelGraph> MakeMadeUpGraph(GraphBuilder& builder);

// A config.json of it, as somebody might have saved it.
inline constexpr const char* kMadeUpConfig = R"({
  "model_type": "made_up", "num_hidden_layers": 2, "hidden_size": 20, "num_attention_heads": 2,
  "intermediate_size": 52, "vocab_size": 37, "max_position_embeddings": 8, "norm_eps": 1e-5,
  "initializer_range": 0.05
})";

}  // namespace zeroplan::testing
