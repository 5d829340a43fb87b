// config.json of a GPT-2 small enough to train in no time, as Hugging Face writes it. A test names
// the dimensions that it is about.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace zeroplan::testing {

struct TinyConfig {
  int64_t layers = 2, hidden = 32, heads = 2, positions = 32, vocab = 256;
};

inline std::string Gpt2Config(const TinyConfig& config = {}) {
  return "{\"model_type\":\"gpt2\",\"n_layer\":" + std::to_string(config.layers) +
         ",\"n_embd\":" + std::to_string(config.hidden) +
         ",\"n_head\":" + std::to_string(config.heads) +
         ",\"n_positions\":" + std::to_string(config.positions) +
         ",\"vocab_size\":" + std::to_string(config.vocab) + "}";
}

inline void WriteGpt2Config(const std::string& file, const TinyConfig& config = {}) {
  std::ofstream(file) << Gpt2Config(config);
}

}  // namespace zeroplan::testing
