// The same greedy tokens with keys and values that are kept and without, on random models.
#include "executor/train/text_generator.h"

#include <doctest/doctest.h>

#include "core/program/verify.h"
#include "tests/executor/train/generator_models.h"

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

}  // namespace
}  // namespace zeroplan
