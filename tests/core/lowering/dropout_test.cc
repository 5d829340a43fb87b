// Programs of adapters with dropout.
#include <doctest/doctest.h>

#include "core/base/error.h"
#include "core/lowering/lower.h"
#include "core/model/lora.h"
#include "core/program/verify.h"
#include "tests/core/families/llama/tiny_llama.h"
#include "tests/core/lowering/matrix.h"
#include "tests/core/model/with_lora.h"

namespace zeroplan {
namespace {

int CountDropout(const Program& program, Section section) {
  int count = 0;
  for (const Instruction& instruction : program.section(section)) {
    const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
    count += launch != nullptr && launch->kernel == KernelId::kDropout ? 1 : 0;
  }
  return count;
}

TEST_CASE(
    "dropout: in training alone, anew for the backward pass, with numbers behind the tokens") {
  const ModelSpec plain = testing::WithLora(testing::TinyLlama(Llama()), "all-linear");
  const ModelSpec model = testing::WithDropout(plain);
  for (const bool borders : {false, true}) {
    for (const Backend backend : {Backend::kCpu, Backend::kCuda}) {
      for (const testing::Cell& cell : testing::SomeCells({Dtype::kBF16})) {
        CAPTURE(cell.name);
        LowerOptions options;
        options.backend = backend;
        options.document_borders = borders;
        const Program program = Lower(model, cell.setup, options);
        CHECK_NOTHROW(VerifyOrThrow(program));
        // Four products a layer: of x forward, and of x and the gradient backward, which ends at
        // the first layer's query, key and value; of x again where all is computed again, but for
        // the product that only makes the layer's output: its kernels are left out, not its
        // input's.
        const int products = 4 * static_cast<int>(model.layers);
        const bool full = cell.setup.recompute.kind == RecomputeKind::kFull;
        CHECK(CountDropout(program, Section::kMicroStep) == (full ? 4 : 3) * products - 1);
        CHECK(CountDropout(program, Section::kEval) == 0);
        CHECK(CountDropout(Lower(plain, cell.setup, options), Section::kMicroStep) == 0);
        const BatchSpec& batch = cell.setup.batch;
        const auto table = static_cast<uint64_t>(batch.micro_batch * batch.seq_len * 4);
        for (const BufferId tokens : {program.tokens_buffer, program.tokens_host_buffer}) {
          CHECK(program.buffers[tokens].bytes == (borders ? 3 : 2) * table + 8);
          CHECK(program.token_table_bytes(tokens) == table);
        }
      }
    }
  }
  LowerOptions generate;
  generate.purpose = Purpose::kGenerate;
  generate.keep_keys_values = true;
  TrainSetup one = testing::BaseSetup(0, 1, Dtype::kF32, 1, kNoRecompute);
  one.batch.micro_batch = 1;
  const Program program = Lower(model, one, generate);
  CHECK_NOTHROW(VerifyOrThrow(program));
  for (const Section section : {Section::kGenerate, Section::kDecode}) {
    CHECK(CountDropout(program, section) == 0);
  }
}

TEST_CASE("dropout: a share below 0 or of all is refused") {
  const ModelSpec model = testing::WithLora(testing::TinyModel(), "all-linear");
  CHECK_NOTHROW(CheckAdapters(testing::WithDropout(model, 0.99f), "here"));
  for (const float share : {-0.1f, 1.0f, std::numeric_limits<float>::quiet_NaN()}) {
    CHECK_THROWS_AS(CheckAdapters(testing::WithDropout(model, share), "here"), Error);
  }
}

}  // namespace
}  // namespace zeroplan
