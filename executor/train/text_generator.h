// Text from a trained model, one token at a time. Its plan is a program as any other: one pass over
// the prompt leaves the keys and values of its tokens in memory (section generate), and each token
// after it is one row through the layers (section decode).
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

// The choice of the next token from the scores of all.
struct SamplingOptions {
  double temperature = 0.8;  // 0: always the likeliest token
  int top_k = 40;            // only this many of the likeliest; 0: all
  // Draws from the fewest of the likeliest whose probabilities together reach this much, as in
  // nucleus sampling (Holtzman et al. 2020). 1: all.
  double top_p = 1;
  uint64_t seed = 1;
};

// `logits`: of each token, finite. Of equal ones the first is the likelier. REQUIRES: not empty.
int32_t DrawToken(std::span<const float> logits, const SamplingOptions& sampling,
                  std::mt19937_64& random);

struct GeneratorOptions {
  // Tokens that are looked at, at most: the rows of the key-value cache. Of a longer text each
  // token is a pass over the last `context` ones. 0: all the model has positions for.
  int64_t context = 0;
  int threads = 0;  // 0: one a core
  // False: each token is a pass over all before it. For comparison.
  bool keep_keys_values = true;
  Backend backend = Backend::kCpu;  // kCuda: this process's first GPU
  // The type of weights, activations, keys and values; sums and logits are fp32.
  Dtype dtype = Dtype::kF32;
  bool flash_attention = true;  // see LowerOptions
  // A LoRA adapter, merged into the weights as they are loaded; empty: none.
  std::filesystem::path adapter;
};

// The model that a generator runs: that in `folder`, with the vocabulary and the head that the
// adapter, where one is named, gives it.
ModelSpec GeneratedModel(const std::filesystem::path& folder, const std::filesystem::path& adapter);

// What generation of `model` with such options runs, and the memory that it takes.
Program LowerGenerator(const ModelSpec& model, const GeneratorOptions& options);

class TextGenerator {
 public:
  // Takes the planned memory, then loads `folder` (config.json and safetensors) into it. Throws as
  // Engine and HfWeightsSource.
  TextGenerator(const std::filesystem::path& folder, const GeneratorOptions& options);
  // The same with LowerGenerator's program at hand, which may be one for another backend.
  TextGenerator(const std::filesystem::path& folder, Program program,
                const GeneratorOptions& options);
  ~TextGenerator();
  TextGenerator(const TextGenerator&) = delete;
  TextGenerator& operator=(const TextGenerator&) = delete;

  const ModelSpec& model() const;
  int64_t context() const;
  const Program& program() const;
  // Bytes that were planned: of all, and of the keys and values among it.
  uint64_t planned_bytes() const;
  uint64_t key_value_bytes() const;
  // The last byte that was used, + 1, by Space. What was planned, once a prompt and a token ran.
  std::array<uint64_t, kSpaces> used_bytes() const;

  // Logits of the token after `tokens` (the last `context` of them); real vocabulary. What was
  // kept of the tokens that the last call had at the front too is not computed again. Throws
  // Error(kUsage) naming the folder if one is no finite number: its weights hold such.
  std::vector<float> NextLogits(const std::vector<int32_t>& tokens);

  enum class Ended { kCount, kStopToken, kByCaller };
  // Appends up to `count` tokens to `tokens`, calling `on_token` for each, until that returns
  // false or one of `stop_tokens` comes, which is appended without a call. An empty prompt starts
  // from token 10 (a line feed in byte-level text).
  Ended Generate(std::vector<int32_t>& tokens, int64_t count, const SamplingOptions& sampling,
                 const std::vector<int32_t>& stop_tokens,
                 const std::function<bool(int32_t)>& on_token);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Where generated text ends: before any of some texts. Takes text as it is made and hands on the
// part that certainly comes before every stop text. A part that may begin one is held back until
// the next piece decides.
class StopText {
 public:
  // Empty ones are left out.
  explicit StopText(std::vector<std::string> stops);

  // What may be shown of the text so far and was not yet. REQUIRES: not found().
  std::string Push(std::string_view text);
  // The text is over: what was held back.
  std::string Finish();
  // Whether a stop text has come; nothing of it, or behind it, was or will be handed on.
  bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool found_ = false;
};

}  // namespace zeroplan
