// Whether generation fits a GPU or a host, and what is proposed where it does not: the programs of
// GPUs are lowered here without one.
#include <doctest/doctest.h>

#include "cli/run/generate/placement.h"
#include "core/base/units.h"
#include "core/families/load_model.h"
#include "cost_models/memory_walk.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

ModelSpec SmallGeneratorModel() {
  ModelSpec model = LoadModel("llama3.2-1b");
  model.layers = 2;
  model.hidden = 64;
  model.ffn = 96;
  model.heads = 4;
  model.kv_heads = 2;
  model.head_size = 16;
  model.vocab = model.padded_vocab = 256;
  model.positions = 4096;
  return model;
}

constexpr uint64_t kRuntime = 1'000'000, kReserve = 500'000;

Placement Gpu(Dtype dtype, uint64_t bytes) {
  Placement place;
  place.backend = Backend::kCuda;
  place.dtype = dtype;
  place.device = "TestGPU";
  place.runtime_bytes = kRuntime;
  place.reserve_bytes = kReserve;
  place.gpu_bytes = bytes;
  place.host = {1'000'000'000'000};
  return place;
}

// What a context of so many tokens takes of a GPU, with what is outside the plan.
uint64_t GpuBytes(const Placement& place, int64_t context, Dtype dtype) {
  GeneratorOptions options = GeneratorAt(place, context, true);
  options.dtype = dtype;
  const Program program = LowerGenerator(SmallGeneratorModel(), options);
  return program.arena_bytes[static_cast<size_t>(Space::kDevice)] + kRuntime +
         OutsideArenasOf(program).graph_bytes;
}

std::string Says(const Placement& place, int64_t context) {
  const GeneratorOptions options = GeneratorAt(place, context, true);
  const Program program = LowerGenerator(SmallGeneratorModel(), options);
  return ErrorOf(ExitCode::kNothingFits, [&] { CheckGeneratorFits(program, options, place); });
}

TEST_CASE(
    "generator fit: exactly full fits; a byte less does not, and the message says what does") {
  const uint64_t needs = GpuBytes(Gpu(Dtype::kF32, 0), 1024, Dtype::kF32);
  const uint64_t half = GpuBytes(Gpu(Dtype::kF32, 0), 1024, Dtype::kBF16);
  REQUIRE(half < needs);
  const GeneratorOptions options = GeneratorAt(Gpu(Dtype::kF32, needs), 1024, true);
  const Program program = LowerGenerator(SmallGeneratorModel(), options);
  CHECK_NOTHROW(CheckGeneratorFits(program, options, Gpu(Dtype::kF32, needs)));
  const std::string message = Says(Gpu(Dtype::kF32, needs - 1), 1024);
  CHECK(Has(message,
            "GPU memory short by 1 B: the model in fp32 with a context of 1024 tokens "
            "needs " +
                FormatBytes(needs) + " (" + FormatBytes(kRuntime) +
                " of it outside the plan), TestGPU has " + FormatBytes(needs - 1) + " (less " +
                FormatBytes(kReserve) + " kept free)"));
  CHECK(Has(message, "; --dtype bf16 fits with " + FormatBytes(half)));
}

TEST_CASE("generator fit: a shorter context is proposed where 16 bit is not enough") {
  const Placement any = Gpu(Dtype::kBF16, 0);
  const uint64_t shorter = GpuBytes(any, 256, Dtype::kBF16);
  CHECK(Has(Says(Gpu(Dtype::kBF16, shorter), 1024),
            "; --context 256 fits with " + FormatBytes(shorter)));
  CHECK(Has(Says(Gpu(Dtype::kF32, shorter), 1024),
            "; --dtype bf16 --context 256 fits with " + FormatBytes(shorter)));
  CHECK(Has(Says(Gpu(Dtype::kBF16, 1000), 1024), wording::kNoShorterFitsUseLarger));
}

TEST_CASE("generator fit: on the CPU it is the host's memory") {
  Placement place;
  place.device = "the CPU";
  GeneratorOptions options = GeneratorAt(place, 512, true);
  const Program program = LowerGenerator(SmallGeneratorModel(), options);
  uint64_t needs = 0;
  for (const uint64_t bytes : program.arena_bytes) needs += bytes;
  place.host = {needs};
  CHECK_NOTHROW(CheckGeneratorFits(program, options, place));
  place.host = {needs - 1, "this machine has"};
  CHECK(Has(Says(place, 512),
            "host memory short by 1 B: the model in fp32 with a context of 512 "
            "tokens needs " +
                FormatBytes(needs) + ", this machine has " + FormatBytes(needs - 1) +
                " free; --dtype bf16 fits with "));
}

TEST_CASE("generator: a default context is whole tiles on a GPU, as far as there are positions") {
  const ModelSpec model = SmallGeneratorModel();
  const Placement gpu = Gpu(Dtype::kBF16, 0);
  CHECK(DefaultContext(gpu, model, 200) == 256);
  CHECK(DefaultContext(gpu, model, 256) == 256);
  CHECK(DefaultContext(gpu, model, 4090) == 4096);
  CHECK(DefaultContext(gpu, model, 5000) == 4096);
  CHECK(DefaultContext(Placement{}, model, 200) == 200);
  CHECK(DefaultContext(Placement{}, model, 5000) == 4096);
}

}  // namespace
}  // namespace zeroplan
