// Gathers in eight bits, and programs of products in eight bits that are only walked.
#include <doctest/doctest.h>

#include <memory>
#include <vector>

#include "core/lowering/lower.h"
#include "core/lowering/walk_cache.h"
#include "core/settings/setup_facts.h"
#include "tests/core/lowering/fp8_programs.h"

namespace zeroplan {
namespace {

using testing::BothModels;
using testing::CheckSound;
using testing::CountIf;
using testing::In8;
using testing::kBothRecipes;
using testing::kPlainCopy;
using testing::kQuantizedFrom;
using testing::Launches;
using testing::OfWeight;
using testing::Seen;
using testing::WithFp8;

TEST_CASE("fp8: every pass leaves a sound program that gathers in eight bits") {
  LowerOptions options;
  options.backend = Backend::kCuda;
  const ModelSpec model = testing::Fp8Llama(Fp8Recipe::kTensor);
  std::vector<testing::Cell> cells = testing::AllCells({3}, {Dtype::kBF16}, {1, 3});
  const std::vector<testing::Cell> hybrid = testing::HybridCells({{4, 2}}, Dtype::kBF16, {1, 3});
  cells.insert(cells.end(), hybrid.begin(), hybrid.end());
  std::erase_if(cells, [](const testing::Cell& cell) { return cell.setup.zero.stage < 3; });
  const std::vector<testing::Cell> quantized = testing::QuantizedCells(cells);
  cells.insert(cells.end(), quantized.begin(), quantized.end());
  for (testing::Cell& cell : cells) {
    cell.setup.zero.param_persistence_threshold = 100;
    if (cell.setup.zero.shard_group > 0) cell.setup.optimizer.gradient_clipping = 0;
    TrainSetup in_backward = cell.setup;
    in_backward.optimizer.gradient_clipping = 0;
    in_backward.zero.optimizer_in_backward = true;
    if (!FindSetupProblem(in_backward)) cell.setup = in_backward;
  }
  CheckSound(model, In8(cells, Fp8Recipe::kTensor, Dtype::kE4M3), options);
}

// Stage 3, vectors persistent.
TrainSetup Gathered(Fp8Recipe recipe, int64_t accumulation, RecomputeConfig recompute) {
  TrainSetup setup =
      WithFp8(testing::BaseSetup(3, 2, Dtype::kBF16, accumulation, recompute), recipe);
  setup.zero.param_persistence_threshold = 100;
  return setup;
}

TEST_CASE("fp8: what products of eight bits alone read is gathered in eight bits") {
  for (const int64_t accumulation : {1, 3}) {
    for (const ModelSpec& model : BothModels(Fp8Recipe::kTensor)) {
      const Program program =
          Lower(model, Gathered(Fp8Recipe::kTensor, accumulation, kNoRecompute));
      for (const Section section : {Section::kMicroStep, Section::kEval}) {
        const bool trains = section == Section::kMicroStep;
        int bytes = 0, wide = 0, magnitudes = 0;
        for (const Instruction& instruction : program.section(section)) {
          const auto* gather = std::get_if<Collective>(&instruction.op);
          if (gather == nullptr || gather->kind != CollectiveKind::kAllGather) continue;
          const Buffer& whole = program.buffers[program.segs(*gather)[0].dst.buffer];
          if (whole.role == Role::kScales) {
            ++magnitudes;
            CHECK(instruction.when == (trains ? kWritesGrads : kEvery));
            CHECK(gather->dtype == Dtype::kF32);
          } else {
            const bool eight = gather->dtype == Dtype::kU8;
            ++(eight ? bytes : wide);
            CHECK(whole.dtype == (eight ? Dtype::kE4M3 : Dtype::kBF16));
            if (eight) {
              CHECK(whole.bytes ==
                    program.layout.units[static_cast<size_t>(whole.unit)].padded_elements);
            }
          }
        }
        const auto layers = static_cast<int>(model.layers);
        CHECK(bytes == (trains ? 2 : 1) * layers);
        CHECK(magnitudes == layers);
        CHECK(wide > 0);  // embedding and head
        // Nobody looks for their magnitudes or rounds them again: a transposed copy is all.
        for (const Seen& one : Launches(program, section, KernelId::kLargestMagnitude)) {
          CHECK_FALSE(OfWeight(one));
        }
        int transposed = 0, straight = 0;
        for (const Seen& quantize : Launches(program, section, KernelId::kQuantize)) {
          if (!OfWeight(quantize)) continue;
          ++transposed;
          CHECK(quantize.Of(kQuantizedFrom).dtype == Dtype::kE4M3);
          CHECK(quantize.Arg(1).null());
          CHECK(quantize.Arg(kPlainCopy).null());
        }
        for (const Seen& product : Launches(program, section, KernelId::kFp8Matmul)) {
          straight += product.Of(2).role == Role::kParamFull ? 1 : 0;
        }
        // Of its two products with each weight one takes it as it lies. Llama's lie as forward
        // products take them.
        const bool llama = model.family == &Llama();
        CHECK(transposed == (trains || !llama ? 4 : 0) * layers);
        CHECK(straight == (trains || llama ? 4 : 0) * layers);
      }
    }
  }
}

TEST_CASE("fp8: gathers stay as they are where others read, blocks round or shards are away") {
  const auto eight_bits = [](const ModelSpec& model, const TrainSetup& setup) {
    const Program program = Lower(model, setup);
    VerifyOrThrow(program);
    return Launches(program, KernelId::kQuantizeShard).size();
  };
  const ModelSpec model = testing::Fp8Gpt2(Fp8Recipe::kTensor);
  const TrainSetup setup = Gathered(Fp8Recipe::kTensor, 1, kNoRecompute);
  CHECK(eight_bits(model, setup) == 4);
  TrainSetup other = setup;
  other.zero.param_persistence_threshold = 0;  // vectors are gathered with the matrices
  CHECK(eight_bits(model, other) == 0);
  other = setup;
  other.zero.quantized_weights = true;
  CHECK(eight_bits(model, other) == 0);
  other = setup;
  testing::SetOffload(other, testing::Offload::kBoth);
  CHECK(eight_bits(model, other) == 0);
  other = setup;
  other.batch.world_size = 1;
  CHECK(eight_bits(model, other) == 0);
  CHECK(eight_bits(testing::Fp8Gpt2(Fp8Recipe::kBlocks),
                   Gathered(Fp8Recipe::kBlocks, 1, kNoRecompute)) == 0);
  ModelSpec odd = model;
  odd.ffn = 52;  // the last product's weight stays in 16 bits, and its unit with it
  CHECK(eight_bits(odd, setup) == 0);
}

TEST_CASE("fp8: programs that are only walked take the memory of those that run") {
  LowerOptions options;
  options.backend = Backend::kCuda;
  for (const Fp8Recipe recipe : kBothRecipes) {
    const ModelSpec model = testing::Fp8Llama(recipe, 6);
    const auto tensors = std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(model));
    WalkCache cache;
    std::vector<testing::Cell> cells = testing::SomeCells({Dtype::kBF16});
    const std::vector<testing::Cell> eight = In8(cells, recipe, Dtype::kE4M3);
    cells.insert(cells.end(), eight.begin(), eight.end());
    for (testing::Cell& cell : cells) {
      CAPTURE(cell.name);
      if (cell.setup.zero.stage == 3) cell.setup.zero.param_persistence_threshold = 100;
      const Program run = Lower(model, tensors, cell.setup, options);
      const Program walked = LowerToWalk(model, tensors, cell.setup, options, cache);
      CHECK(walked.arena_bytes == run.arena_bytes);
      CHECK(walked.persistent_bytes == run.persistent_bytes);
      CHECK(walked.live_peak_bytes == run.live_peak_bytes);
      const Program micro_step = LowerMicroStep(model, tensors, cell.setup, options);
      const auto first = [](const Seen& s) { return (s.instruction.when & kWritesGrads) != 0; };
      CHECK(CountIf(Launches(micro_step, KernelId::kFp8Matmul), first) ==
            CountIf(Launches(run, KernelId::kFp8Matmul), first));
      CHECK(micro_step.arena_bytes[0] > 0);
    }
  }
}

}  // namespace
}  // namespace zeroplan
