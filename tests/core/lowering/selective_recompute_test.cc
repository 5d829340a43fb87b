// What selective recompute keeps and runs again: bytes and launches by hand.
#include <doctest/doctest.h>

#include <algorithm>
#include <string_view>

#include "core/families/load_model.h"
#include "core/lowering/lower.h"
#include "tests/core/lowering/matrix.h"

namespace zeroplan {
namespace {

// gpt2's layers: hidden 768, 12 heads; 4 sequences of 1024 tokens.
constexpr uint64_t kRows = 4 * 1024, kHidden = 768, kHeads = 12;

Program LowerLayers(int64_t layers, Dtype dtype, RecomputeConfig recompute,
                    bool flash_attention = true) {
  ModelSpec model = LoadModel("gpt2");
  model.layers = layers;
  TrainSetup setup;
  setup.precision.dtype = setup.precision.grad_accum_dtype = dtype;
  setup.batch = {4, 1, 1, 1024};
  setup.recompute = recompute;
  LowerOptions options;
  options.backend = Backend::kCuda;
  options.flash_attention = flash_attention;
  return Lower(model, setup, options);
}

// Activations that live when the backward pass begins.
uint64_t LiveBeforeBackward(const Program& program) {
  uint64_t live = 0;
  for (const Instruction& instruction : program.section(Section::kMicroStep)) {
    if (instruction.phase == Phase::kBackward) break;
    const auto bytes = [&](BufferId id) {
      const Buffer& buffer = program.buffers[id];
      return buffer.memory_class == MemoryClass::kActivations ? buffer.bytes : 0;
    };
    if (const auto* alloc = std::get_if<Alloc>(&instruction.op)) live += bytes(alloc->buffer);
    if (const auto* free = std::get_if<Free>(&instruction.op)) live -= bytes(free->buffer);
  }
  return live;
}

uint64_t SavedByALayer(Dtype dtype, RecomputeConfig recompute, bool flash_attention = true) {
  return LiveBeforeBackward(LowerLayers(3, dtype, recompute, flash_attention)) -
         LiveBeforeBackward(LowerLayers(2, dtype, recompute, flash_attention));
}

TEST_CASE("selective recompute: a layer saves 10 of 16 times M*h elements, and no statistics") {
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16, Dtype::kF32}) {
    CAPTURE(DtypeName(dtype));
    const uint64_t c = DtypeBytes(dtype), lse = 4 * kRows * kHeads, stats = 4 * 4 * kRows;
    CHECK(SavedByALayer(dtype, kNoRecompute) == 16 * c * kRows * kHidden + lse + stats);
    CHECK(SavedByALayer(dtype, kSelectiveRecompute) == 10 * c * kRows * kHidden + lse);
    CHECK(SavedByALayer(dtype, FullRecompute()) == c * kRows * kHidden);
    const uint64_t probs = c * 4 * kHeads * 1024 * 1024;
    CHECK(SavedByALayer(dtype, kSelectiveRecompute, false) == 10 * c * kRows * kHidden + probs);
  }
  // In 16 bit 20*s*b*h + 4*H*s*b, where all activations are 32*s*b*h + (4*H + 16)*s*b.
  CHECK(SavedByALayer(Dtype::kBF16, kSelectiveRecompute) == 63'111'168);
  CHECK(SavedByALayer(Dtype::kBF16, kNoRecompute) == 100'925'440);
}

int Count(const Program& program, KernelId kernel, Phase phase) {
  int count = 0;
  for (const Instruction& instruction : program.section(Section::kMicroStep)) {
    const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
    if (launch != nullptr && launch->kernel == kernel && instruction.phase == phase) ++count;
  }
  return count;
}

TEST_CASE("selective recompute: norms and GELU run twice, products and attention once") {
  for (const Backend backend : {Backend::kCpu, Backend::kCuda}) {
    for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32}) {
      for (const int stage : {0, 3}) {
        CAPTURE(DtypeName(dtype));
        CAPTURE(stage);
        LowerOptions options;
        options.backend = backend;
        const Program program =
            Lower(testing::TinyModel(3),
                  testing::BaseSetup(stage, 2, dtype, 1, kSelectiveRecompute), options);
        const bool fused = backend == Backend::kCuda && dtype != Dtype::kF32;
        CHECK(Count(program, KernelId::kLayerNormForward, Phase::kForward) == 7);
        CHECK(Count(program, KernelId::kLayerNormForward, Phase::kBackward) == 6);
        CHECK(Count(program, KernelId::kGeluForward, Phase::kForward) == (fused ? 0 : 3));
        CHECK(Count(program, KernelId::kGeluForward, Phase::kBackward) == 3);
        CHECK(Count(program, KernelId::kMatmulGeluForward, Phase::kForward) == (fused ? 3 : 0));
        for (const KernelId once : {KernelId::kMatmulForward, KernelId::kAttentionForward,
                                    KernelId::kMatmulGeluForward}) {
          CHECK(Count(program, once, Phase::kBackward) == 0);
        }
      }
    }
  }
}

TEST_CASE("selective recompute: what is made again lives for one layer's need of it") {
  const Program program = LowerLayers(4, Dtype::kBF16, kSelectiveRecompute);
  const std::string_view cheap[] = {"ln1", "ln2", "gelu"};
  int live = 0, most = 0;
  for (const Instruction& instruction : program.section(Section::kMicroStep)) {
    const auto is_cheap = [&](BufferId id) {
      return std::find(std::begin(cheap), std::end(cheap), program.buffers[id].label) !=
             std::end(cheap);
    };
    if (const auto* alloc = std::get_if<Alloc>(&instruction.op)) live += is_cheap(alloc->buffer);
    if (const auto* free = std::get_if<Free>(&instruction.op)) live -= is_cheap(free->buffer);
    most = std::max(most, live);
  }
  CHECK(live == 0);
  CHECK(most == 2);  // a forward product reads ln2 and writes gelu
}

}  // namespace
}  // namespace zeroplan
