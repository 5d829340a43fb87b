// The choice of tokens, and the end of a text at a stop text.
#include "executor/train/sampling.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "executor/train/stop_text.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/temp_dir.h"
#include "text/tokenizer/stop_tokens.h"

namespace zeroplan {
namespace {

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
