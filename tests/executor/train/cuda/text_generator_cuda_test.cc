// Text from a GPU beside the CPU's, on random models of three kinds: in fp32 the same, in bf16 but
// for its noise. More than three tokens in a row are replayed as a graph.
#include <doctest/doctest.h>

#include "executor/checkpoint/hf_weights.h"
#include "executor/engine/engine.h"
#include "tests/executor/train/generator_models.h"

namespace zeroplan {
namespace {

GeneratorOptions On(Backend backend, Dtype dtype, bool keeps = true) {
  return {.context = 64, .keep_keys_values = keeps, .backend = backend, .dtype = dtype};
}

// Sums in another order: as between transformers' logits and ours (transformers_checks.h), over
// logits that grow with each of some 30 kernels.
constexpr double kExact = 1e-4;

TEST_CASE("cuda generator: fp32 gives the CPU's text, with the cache, without, past the context") {
  const TrainFixture fixture;
  for (const std::string& folder : GeneratorModels(fixture)) {
    CAPTURE(folder);
    TextGenerator cpu(folder, On(Backend::kCpu, Dtype::kF32));
    TextGenerator gpu(folder, On(Backend::kCuda, Dtype::kF32));
    TextGenerator plain(folder, On(Backend::kCuda, Dtype::kF32, false));
    const std::vector<int32_t> text = Greedy(cpu, {'t', 'h', 'e'}, 75);
    CHECK(FarthestLogits(gpu, cpu, text) < kExact);
    CHECK(FarthestLogits(plain, cpu, text) < kExact);
    CHECK(Greedy(gpu, {'t', 'h', 'e'}, 75) == text);
    CHECK(Greedy(plain, {'t', 'h', 'e'}, 75) == text);
    // Another prompt, then what is kept of the first.
    CHECK(Greedy(gpu, {'q'}, 30) == Greedy(cpu, {'q'}, 30));
    CHECK(Greedy(gpu, {text.begin(), text.begin() + 20}, 10) ==
          std::vector<int32_t>(text.begin(), text.begin() + 30));
    CHECK(gpu.used_bytes() == gpu.program().arena_bytes);
    CHECK(plain.used_bytes() == plain.program().arena_bytes);
  }
}

// The size of bf16's noise is what the CPU's bf16 kernels make of it, against its fp32. A GPU's
// roundings lie elsewhere: another draw of it, for which twice the largest seen is allowed.
TEST_CASE("cuda generator: bf16 is fp32 but for bf16's noise, in the planned memory") {
  const TrainFixture fixture;
  for (const std::string& folder : GeneratorModels(fixture)) {
    CAPTURE(folder);
    TextGenerator exact(folder, On(Backend::kCpu, Dtype::kF32));
    const std::vector<int32_t> text = Greedy(exact, {'t', 'h', 'e'}, 60);
    TextGenerator cpu(folder, On(Backend::kCpu, Dtype::kBF16));
    const double noise = FarthestLogits(cpu, exact, text);
    CAPTURE(noise);
    for (const bool keeps : {true, false}) {
      TextGenerator gpu(folder, On(Backend::kCuda, Dtype::kBF16, keeps));
      CHECK(FarthestLogits(gpu, exact, text) < 2 * noise);
      CHECK(gpu.used_bytes() == gpu.program().arena_bytes);
    }
  }
}

// Graphs take over after three tokens, but not where a trace is recorded.
TEST_CASE("cuda generator: replayed tokens have the bits of those that are launched one by one") {
  const TrainFixture fixture;
  for (const std::string& folder : GeneratorModels(fixture)) {
    CAPTURE(folder);
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      CAPTURE(DtypeName(dtype));
      const Program program = LowerGenerator(LoadModel(folder), On(Backend::kCuda, dtype));
      std::vector<std::vector<float>> logits[2];
      for (const bool traced : {false, true}) {
        EngineOptions options;
        options.backend = Backend::kCuda;
        options.fresh_weights = false;
        options.record_trace = traced;
        Engine engine(program, options);
        engine.Init();
        engine.Load(HfWeightsSource(folder, program.model, *program.layout.tensors), false,
                    nullptr);
        for (int32_t t = 0; t < 12; ++t) logits[traced].push_back(engine.Decode(7 * t % 256, t));
        // A prompt in between changes nothing of the graph.
        engine.Logits(std::vector<int32_t>{1, 2, 3, 4, 5}, 4);
        logits[traced].push_back(engine.Decode(9, 5));
      }
      CHECK(logits[0] == logits[1]);
    }
  }
}

}  // namespace
}  // namespace zeroplan
