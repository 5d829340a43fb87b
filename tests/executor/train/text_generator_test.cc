// The same greedy tokens with keys and values that are kept and without, on random models.
#include "executor/train/text_generator.h"

#include <doctest/doctest.h>

#include "tests/executor/train/train_fixture.h"

namespace zeroplan {
namespace {

// Folders with random weights, of the kinds that differ in how a token is taken: learned positions,
// rotary ones with grouped heads, and with norms of the heads.
std::vector<std::string> Models(const TrainFixture& fixture) {
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

std::vector<int32_t> Greedy(TextGenerator& generator, std::vector<int32_t> tokens, int64_t count) {
  generator.Generate(tokens, count, {.temperature = 0}, {}, [](int32_t) { return true; });
  return tokens;
}

TEST_CASE("generator: the same tokens with the key-value cache and without, past the context too") {
  const TrainFixture fixture;
  for (const std::string& folder : Models(fixture)) {
    CAPTURE(folder);
    TextGenerator plain(folder, {.context = 40, .threads = 1, .keep_keys_values = false});
    TextGenerator kept(folder, {.context = 40, .threads = 2});
    CHECK(plain.key_value_bytes() == 0);
    CHECK(kept.key_value_bytes() > 0);
    CHECK(kept.planned_bytes() == plain.planned_bytes() + kept.key_value_bytes());
    std::vector<int32_t> prompt = {'t', 'h', 'e'};
    for (int i = 0; i < 3; ++i) {
      const std::vector<int32_t> want = Greedy(plain, prompt, 45);
      CHECK(Greedy(kept, prompt, 45) == want);
      // From a part of it, and something else behind: what is the same is not computed again.
      prompt.assign(want.begin(), want.begin() + 10);
      prompt.push_back('a' + i);
    }
    CHECK(Greedy(kept, {'q'}, 30) == Greedy(plain, {'q'}, 30));  // nothing the same
    // A prompt that is a beginning of what is kept.
    const std::vector<int32_t> text = Greedy(kept, {'q'}, 30);
    CHECK(kept.NextLogits({text.begin(), text.begin() + 20}).size() == 256);
    const auto logits = kept.NextLogits({text.begin(), text.begin() + 20});
    CHECK(std::max_element(logits.begin(), logits.end()) - logits.begin() == text[20]);
  }
}

TEST_CASE("generator: ends at a stop token, and where its caller says so") {
  const TrainFixture fixture;
  TextGenerator generator(Models(fixture).front(), {.context = 64, .threads = 1});
  const std::vector<int32_t> text = Greedy(generator, {'a'}, 20);
  std::vector<int32_t> tokens = {'a'};
  int told = 0;
  const int32_t stop = text[8];
  const auto first = std::find(text.begin() + 1, text.end(), stop) - text.begin();
  CHECK(generator.Generate(tokens, 20, {.temperature = 0}, {stop}, [&](int32_t) {
    ++told;
    return true;
  }) == TextGenerator::Ended::kStopToken);
  CHECK(told == first - 1);
  CHECK(tokens.back() == stop);
  tokens = {'a'};
  CHECK(generator.Generate(tokens, 20, {.temperature = 0}, {}, [&](int32_t) {
    return tokens.size() < 5;
  }) == TextGenerator::Ended::kByCaller);
  CHECK(tokens.size() == 5);
}

}  // namespace
}  // namespace zeroplan
