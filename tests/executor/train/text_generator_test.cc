// The same greedy tokens with keys and values that are kept and without, on random models.
#include "executor/train/text_generator.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "core/program/verify.h"
#include "tests/error_of.h"
#include "tests/executor/train/generator_models.h"
#include "tests/has.h"
#include "tests/temp_dir.h"
#include "text/tokenizer/tokenizer.h"

namespace zeroplan {
namespace {

TEST_CASE("generator: the same tokens with the key-value cache and without, past the context too") {
  const TrainFixture fixture;
  for (const std::string& folder : GeneratorModels(fixture)) {
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

// Logits were up to 0.017 (bf16) and 0.0024 (fp16) of the largest one off; rounding of fewer bits
// is 8 times as large. Twice that is allowed.
TEST_CASE("generator: 16 bit is fp32 but for its rounding, in half the memory, to the byte") {
  const TrainFixture fixture;
  for (const std::string& folder : GeneratorModels(fixture)) {
    CAPTURE(folder);
    TextGenerator exact(folder, {.context = 40, .threads = 1});
    for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
      CAPTURE(DtypeName(dtype));
      TextGenerator rounded(folder, {.context = 40, .threads = 1, .dtype = dtype});
      CHECK(2 * rounded.key_value_bytes() == exact.key_value_bytes());
      const std::vector<int32_t> text = Greedy(exact, {'t', 'h', 'e'}, 30);
      const double apart = FarthestLogits(rounded, exact, text);
      CHECK(apart > 0);
      CHECK(apart < (dtype == Dtype::kBF16 ? 0.034 : 0.0048));
      CHECK(rounded.used_bytes() == rounded.program().arena_bytes);
    }
    CHECK(exact.used_bytes() == exact.program().arena_bytes);
  }
}

// On the CPU, whose kernels take the same arguments: what is planned for a GPU is what is touched.
TEST_CASE("generator: a program for a GPU makes the same of its weights, within its plan") {
  const TrainFixture fixture;
  for (const std::string& folder : GeneratorModels(fixture)) {
    CAPTURE(folder);
    GeneratorOptions options{.context = 40, .threads = 1, .dtype = Dtype::kBF16};
    TextGenerator here(folder, options);
    options.backend = Backend::kCuda;
    for (const bool flash : {true, false}) {
      CAPTURE(flash);
      options.flash_attention = flash;
      Program program = LowerGenerator(LoadModel(folder), options);
      VerifyOrThrow(program);
      TextGenerator of_gpu(folder, std::move(program), {.threads = 1});
      const std::vector<int32_t> text = {'w', 'o', 'r', 'd', 's', ' ', 'o', 'f'};
      // But for GELU, which a GPU's programs apply to sums that are not rounded.
      CHECK(FarthestLogits(of_gpu, here, text) < 0.034);
      CHECK(of_gpu.used_bytes() == of_gpu.program().arena_bytes);
    }
  }
}

TEST_CASE("generator: ends at a stop token, and where its caller says so") {
  const TrainFixture fixture;
  TextGenerator generator(GeneratorModels(fixture).front(), {.context = 64, .threads = 1});
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

// How often each token comes in so many draws.
std::map<int32_t, double> Shares(const std::vector<float>& logits,
                                 const SamplingOptions& sampling) {
  std::mt19937_64 random(sampling.seed);
  std::map<int32_t, double> shares;
  constexpr int kDraws = 40'000;
  for (int i = 0; i < kDraws; ++i) shares[DrawToken(logits, sampling, random)] += 1.0 / kDraws;
  return shares;
}

// Probabilities 0.5, 0.25, 0.15 and 0.1, in another order.
const std::vector<float> kLogits = {std::log(0.15f), std::log(0.5f), std::log(0.1f),
                                    std::log(0.25f)};

TEST_CASE("sampling: temperature 0 takes the likeliest, of equals the first") {
  std::mt19937_64 random(1);
  CHECK(DrawToken(kLogits, {.temperature = 0}, random) == 1);
  CHECK(DrawToken(std::vector<float>{1, 2, 2}, {.temperature = 0}, random) == 1);
}

TEST_CASE("sampling: probabilities, top-k and top-p") {
  // 40,000 draws: four standard deviations are 0.01.
  const auto all = Shares(kLogits, {.temperature = 1, .top_k = 0});
  CHECK(all.at(1) == doctest::Approx(0.5).epsilon(0.02));
  CHECK(all.at(2) == doctest::Approx(0.1).epsilon(0.1));
  const auto two = Shares(kLogits, {.temperature = 1, .top_k = 2});
  CHECK(two.size() == 2);
  CHECK(two.at(1) == doctest::Approx(2.0 / 3).epsilon(0.02));
  // 0.5 is not 0.6 yet; with 0.25 more it is.
  const auto nucleus = Shares(kLogits, {.temperature = 1, .top_k = 0, .top_p = 0.6});
  CHECK(nucleus.size() == 2);
  CHECK(nucleus.at(3) == doctest::Approx(1.0 / 3).epsilon(0.03));
  CHECK(Shares(kLogits, {.temperature = 1, .top_k = 0, .top_p = 0.4}).size() == 1);
  CHECK(Shares(kLogits, {.temperature = 1, .top_k = 0, .top_p = 0.76}).size() == 3);
  // Of those that top-k leaves, as if they were all.
  CHECK(Shares(kLogits, {.temperature = 1, .top_k = 2, .top_p = 0.6}).size() == 1);
}

TEST_CASE("sampling: the likeliest of a large vocabulary, of equals the first, wherever they are") {
  std::mt19937_64 random(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<float> logits(5'000);
    for (float& logit : logits) logit = static_cast<float>(random() % 100);
    logits[random() % 5'000] = 100;
    logits[random() % 5'000] = 100;
    const auto first = std::max_element(logits.begin(), logits.end()) - logits.begin();
    CHECK(DrawToken(logits, {.temperature = 0}, random) == first);
    // Three of 100 and 99: those that a sort puts first.
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    order.resize(3);
    for (int draw = 0; draw < 20; ++draw) {
      const int32_t token = DrawToken(logits, {.temperature = 100, .top_k = 3}, random);
      CHECK(std::find(order.begin(), order.end(), token) != order.end());
    }
  }
}

// Half of 40,000 tokens that are all as likely, behind which others are hardly ever drawn.
TEST_CASE("sampling: a nucleus of thousands in a large vocabulary") {
  std::vector<float> logits(100'000, -20.0f);
  std::fill(logits.begin() + 30'000, logits.begin() + 70'000, 3.0f);
  std::mt19937_64 random(5);
  int32_t first = 100'000, last = 0;
  for (int i = 0; i < 200; ++i) {
    const int32_t token = DrawToken(logits, {.temperature = 1, .top_k = 0, .top_p = 0.5}, random);
    first = std::min(first, token);
    last = std::max(last, token);
  }
  CHECK(first >= 30'000);
  CHECK(first < 31'000);  // 200 draws of 20,000: none of the first 1,000 by a chance of 4e-5
  CHECK(last >= 49'000);
  CHECK(last <= 50'000);  // the others' e^-23 each are worth a hundred-thousandth of one
  const int32_t any = DrawToken(logits, {.temperature = 1, .top_k = 0}, random);
  CHECK(any >= 30'000);
  CHECK(any < 70'000);
}

TEST_CASE("stop text: nothing of it is shown, however the text is cut") {
  const std::string text = "one two three two-and-a-half";
  for (size_t cut = 1; cut <= text.size(); ++cut) {
    CAPTURE(cut);
    StopText until({"three", "two-", ""});
    std::string shown;
    for (size_t at = 0; at < text.size() && !until.found(); at += cut) {
      shown += until.Push(std::string_view(text).substr(at, cut));
    }
    shown += until.Finish();
    CHECK(until.found());
    CHECK(shown == "one two ");
  }
  StopText until({"threefold"});
  std::string shown = until.Push("one two thr");
  CHECK(shown == "one two ");  // what may be its beginning waits
  shown += until.Push("ee");
  CHECK(shown == "one two ");
  CHECK(shown + until.Finish() == "one two three");
  CHECK_FALSE(until.found());
}

TEST_CASE("stop tokens: generation_config.json before config.json, one or several") {
  const TempDir dir;
  const std::filesystem::path folder = dir.path();
  const auto write = [&](const char* name, const char* text) {
    std::ofstream(folder / name) << text;
  };
  CHECK(StopTokensOf(folder, 100).empty());
  write("config.json", R"({"model_type": "gpt2", "eos_token_id": 7})");
  CHECK(StopTokensOf(folder, 100) == std::vector<int32_t>{7});
  CHECK(StopTokensOf(folder, 7).empty());  // of a larger vocabulary
  write("generation_config.json", R"({"eos_token_id": null})");
  CHECK(StopTokensOf(folder, 100) == std::vector<int32_t>{7});
  write("generation_config.json", R"({"eos_token_id": [9, 3, 3, 200]})");
  CHECK(StopTokensOf(folder, 100) == std::vector<int32_t>{3, 9});
  write("generation_config.json", "{\n \"eos_token_id\": [3, \"<|end|>\"]}");
  const std::string message = ErrorOf(ExitCode::kUsage, [&] { StopTokensOf(folder, 100); });
  CHECK(Has(message, "generation_config.json:2: eos_token_id: \"<|end|>\" is no token"));
}

}  // namespace

}  // namespace zeroplan
