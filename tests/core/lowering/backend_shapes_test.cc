// What a program looks like for its backend and sizes: fused GELU, chunks of logits.
#include <doctest/doctest.h>

#include "core/lowering/lower.h"
#include "tests/core/lowering/matrix.h"

namespace zeroplan {
namespace {

int Count(const Program& program, KernelId kernel, Section section = Section::kMicroStep) {
  int count = 0;
  for (const Instruction& instruction : program.section(section)) {
    const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
    count += launch != nullptr && launch->kernel == kernel;
  }
  return count;
}

Program LowerFor(Backend backend, Dtype dtype, RecomputeConfig recompute = kNoRecompute) {
  LowerOptions options;
  options.backend = backend;
  return Lower(testing::TinyModel(3), testing::BaseSetup(1, 2, dtype, 1, recompute), options);
}

TEST_CASE("GELU rides on the products of a GPU in 16 bit, and nowhere else") {
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16, Dtype::kF32}) {
    for (const Backend backend : {Backend::kCpu, Backend::kCuda}) {
      for (const RecomputeConfig& recompute : {kNoRecompute, FullRecompute()}) {
        CAPTURE(DtypeName(dtype));
        CAPTURE(RecomputeName(recompute));
        const Program program = LowerFor(backend, dtype, recompute);
        const bool fused = backend == Backend::kCuda && dtype != Dtype::kF32;
        const int forward =
            recompute == FullRecompute() ? 6 : 3;  // of 3 layers, again before their backward
        CHECK(Count(program, KernelId::kMatmulGeluForward) == (fused ? forward : 0));
        CHECK(Count(program, KernelId::kGeluForward) == (fused ? 0 : forward));
        CHECK(Count(program, KernelId::kMatmulGeluBackward) == (fused ? 3 : 0));
        CHECK(Count(program, KernelId::kGeluBackward) == (fused ? 0 : 3));
        CHECK(Count(program, KernelId::kMatmulGeluForward, Section::kEval) == (fused ? 3 : 0));
      }
    }
  }
}

// Rows of each logits product of the micro-step's forward.
std::vector<int64_t> ChunkRows(int64_t micro_batch, int64_t seq_len, uint64_t rows_at_most) {
  ModelSpec model = testing::TinyModel(1);
  model.positions = seq_len;
  TrainSetup setup = testing::BaseSetup(0, 1, Dtype::kBF16, 1, kNoRecompute);
  setup.batch.micro_batch = micro_batch;
  setup.batch.seq_len = seq_len;
  LowerOptions options;
  options.logits_chunk_bytes = rows_at_most * 40 * 2;
  const Program program = Lower(model, setup, options);
  std::vector<int64_t> rows;
  for (const Instruction& instruction : program.section(Section::kMicroStep)) {
    const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
    if (launch != nullptr && launch->kernel == KernelId::kCrossEntropy) {
      rows.push_back(launch->dims[0]);
    }
  }
  return rows;
}

TEST_CASE("chunks of logits: as few as fit, about equal, whole tiles where these fit") {
  using Rows = std::vector<int64_t>;
  CHECK(ChunkRows(2, 8, 100) == Rows{16});
  CHECK(ChunkRows(2, 8, 7) == Rows{6, 6, 4});
  CHECK(ChunkRows(2, 8, 0) == Rows(16, 1));
  // 4096 rows, at most 2665: two chunks of 2048 rather than 2665 and 1431.
  CHECK(ChunkRows(4, 1024, 2665) == Rows{2048, 2048});
  // 1000 rows, at most 400: a third is 334, in whole tiles 384.
  CHECK(ChunkRows(1, 1000, 400) == Rows{384, 384, 232});
  // At most 350: whole tiles do not fit.
  CHECK(ChunkRows(1, 1000, 350) == Rows{334, 334, 332});
}

}  // namespace
}  // namespace zeroplan
