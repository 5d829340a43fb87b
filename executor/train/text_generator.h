// Text from a trained byte-level (or any) model, one token at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "core/model/model_spec.h"

namespace zeroplan {

struct SamplingOptions {
  double temperature = 0.8;  // 0: always the likeliest token
  int top_k = 40;            // only the likeliest so many; 0: all
  uint64_t seed = 1;
};

class TextGenerator {
 public:
  // Loads `folder` (config.json and safetensors). `context` tokens at most are looked at (0:
  // all the model has positions for). Throws as HfWeightsSource.
  TextGenerator(const std::filesystem::path& folder, int64_t context, int threads);
  ~TextGenerator();
  TextGenerator(const TextGenerator&) = delete;
  TextGenerator& operator=(const TextGenerator&) = delete;

  const ModelSpec& model() const;
  // Logits of the token after `tokens` (the last `context` of them); real vocabulary. Throws
  // Error(kUsage) naming the folder if one is no finite number: its weights hold such.
  std::vector<float> NextLogits(const std::vector<int32_t>& tokens);
  // Appends `count` tokens to `tokens`, calling `on_token` for each. An empty prompt starts from
  // token 10 (a line feed in byte-level text).
  void Generate(std::vector<int32_t>& tokens, int64_t count, const SamplingOptions& sampling,
                const std::function<void(int32_t)>& on_token);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zeroplan
