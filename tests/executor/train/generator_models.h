// Small models to generate with, and what of their text is compared.
#pragma once

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "executor/train/text_generator.h"
#include "tests/executor/train/train_fixture.h"

namespace zeroplan {

// Folders with random weights, of the kinds that differ in how a token is taken: learned positions,
// rotary ones with grouped heads, and with norms of the heads.
inline std::vector<std::string> GeneratorModels(const TrainFixture& fixture) {
  const std::pair<const char*, const char*> configs[] = {
      {"gpt2", R"({"model_type":"gpt2","n_layer":2,"n_embd":32,"n_head":4,"n_positions":96,
                   "vocab_size":256,"initializer_range":0.2})"},
      {"llama", R"({"model_type":"llama","num_hidden_layers":3,"hidden_size":48,
                    "num_attention_heads":6,"num_key_value_heads":2,"intermediate_size":64,
                    "max_position_embeddings":96,"vocab_size":256,"rms_norm_eps":1e-5,
                    "hidden_act":"silu","tie_word_embeddings":false,"initializer_range":0.2})"},
      {"qwen3", R"({"model_type":"qwen3","num_hidden_layers":2,"hidden_size":32,
                    "num_attention_heads":4,"num_key_value_heads":2,"head_dim":8,
                    "intermediate_size":64,"max_position_embeddings":96,"vocab_size":256,
                    "rms_norm_eps":1e-6,"hidden_act":"silu","tie_word_embeddings":true,
                    "initializer_range":0.2})"}};
  std::vector<std::string> folders;
  for (const auto& [name, config] : configs) {
    const std::string file = fixture.path(std::string(name) + ".json");
    std::ofstream(file) << config;
    TrainSetup setup;
    setup.precision.dtype = setup.precision.grad_accum_dtype = Dtype::kF32;
    setup.batch = {.micro_batch = 2, .grad_accum = 1, .world_size = 1, .seq_len = 16};
    setup.optimizer.lr = 1e-2;
    Recorder nobody;
    Train(Lower(LoadModel(file), setup, {}),
          fixture.Options(fixture.WriteText(std::string(name) + ".txt", 8, {}), 4, name), nobody);
    folders.push_back(fixture.path(name));
  }
  return folders;
}

inline std::vector<int32_t> Greedy(TextGenerator& generator, std::vector<int32_t> tokens,
                                   int64_t count) {
  generator.Generate(tokens, count, {.temperature = 0}, {}, [](int32_t) { return true; });
  return tokens;
}

// By how much logits of the tokens of `text` differ at most, over the largest one, where each token
// is told to both.
inline double FarthestLogits(TextGenerator& a, TextGenerator& b, const std::vector<int32_t>& text) {
  double apart = 0, largest = 0;
  for (size_t length = 1; length <= text.size(); ++length) {
    const std::vector<int32_t> tokens(text.begin(), text.begin() + static_cast<int64_t>(length));
    const std::vector<float> of_a = a.NextLogits(tokens), of_b = b.NextLogits(tokens);
    for (size_t i = 0; i < of_a.size(); ++i) {
      apart = std::max(apart, static_cast<double>(std::abs(of_a[i] - of_b[i])));
      largest = std::max(largest, static_cast<double>(std::abs(of_b[i])));
    }
  }
  return apart / largest;
}

}  // namespace zeroplan
