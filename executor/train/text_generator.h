// Generates text with a trained model, one token at a time. Its plan is a program like any other:
// one pass over the prompt stores the keys and values of its tokens (section generate), and each
// later token is one row through the layers (section decode).
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "core/model/model_spec.h"
#include "core/program/program.h"

namespace zeroplan {

// Options of the choice of the next token from the scores of all.
struct SamplingOptions {
  double temperature = 0.8;  // 0: always the likeliest token
  int top_k = 40;            // only this many of the likeliest; 0: all
  // Draws from the fewest of the likeliest tokens whose probabilities add up to at least this, as
  // in nucleus sampling (Holtzman et al. 2020). 1: all.
  double top_p = 1;
  uint64_t seed = 1;
};

// `logits`: one for each token, finite. Among equal ones the first counts as likelier. REQUIRES:
// not empty.
int32_t DrawToken(std::span<const float> logits, const SamplingOptions& sampling,
                  std::mt19937_64& random);

struct GeneratorOptions {
  // Limit of the tokens that attention sees: the rows of the key-value cache. Beyond it each token
  // is a pass over the last `context` tokens. 0: all positions of the model.
  int64_t context = 0;
  int threads = 0;  // 0: one a core
  // False: each token is a pass over all before it. For comparison.
  bool keep_keys_values = true;
  Backend backend = Backend::kCpu;  // kCuda: this process's first GPU
  // The dtype of weights, activations, keys and values; sums and logits are fp32.
  Dtype dtype = Dtype::kF32;
  bool flash_attention = true;  // see LowerOptions
  // A LoRA adapter, merged into the weights on loading; empty: none.
  std::filesystem::path adapter;
};

// The model of a generator: that in `folder`, with the adapter's vocabulary and head if an adapter
// is named.
ModelSpec GeneratedModel(const std::filesystem::path& folder, const std::filesystem::path& adapter);

// The program of generation with `model` and those options, which fixes its memory.
Program LowerGenerator(const ModelSpec& model, const GeneratorOptions& options);

class TextGenerator {
 public:
  // Allocates the planned memory, then loads `folder` (config.json and safetensors) into it. Throws
  // as Engine and HfWeightsSource.
  TextGenerator(const std::filesystem::path& folder, const GeneratorOptions& options);
  // The same with a given program of LowerGenerator, which may be for another backend.
  TextGenerator(const std::filesystem::path& folder, Program program,
                const GeneratorOptions& options);
  ~TextGenerator();
  TextGenerator(const TextGenerator&) = delete;
  TextGenerator& operator=(const TextGenerator&) = delete;

  const ModelSpec& model() const;
  int64_t context() const;
  const Program& program() const;
  // Planned bytes: all, and the keys' and values' among them.
  uint64_t planned_bytes() const;
  uint64_t key_value_bytes() const;
  // The last used byte + 1, by Space. Equals the plan once a prompt and a token ran.
  std::array<uint64_t, kSpaces> used_bytes() const;

  // Logits of the token after `tokens` (the last `context` of them); real vocabulary. Reuses the
  // keys and values of leading tokens that the last call had too. Throws Error(kUsage) naming the
  // folder if a logit is not finite, which means that its weights contain such numbers.
  std::vector<float> NextLogits(const std::vector<int32_t>& tokens);

  enum class Ended { kCount, kStopToken, kByCaller };
  // Appends up to `count` tokens to `tokens`, calling `on_token` for each, until that returns false
  // or one of `stop_tokens` comes, which is appended without a call. An empty prompt starts from
  // token 10 (a line feed in byte-level text).
  Ended Generate(std::vector<int32_t>& tokens, int64_t count, const SamplingOptions& sampling,
                 const std::vector<int32_t>& stop_tokens,
                 const std::function<bool(int32_t)>& on_token);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Cuts generated text before the first of several stop texts. Receives text as it is generated and
// returns the part that certainly precedes every stop text. Holds back a part that may begin one
// until the next piece decides.
class StopText {
 public:
  // Ignores empty ones.
  explicit StopText(std::vector<std::string> stops);

  // The text that may be shown now and was not yet. REQUIRES: not found().
  std::string Push(std::string_view text);
  // Ends the text; returns the part held back.
  std::string Finish();
  // Whether a stop text has come; neither it nor the text behind it is ever returned.
  bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool found_ = false;
};

}  // namespace zeroplan
