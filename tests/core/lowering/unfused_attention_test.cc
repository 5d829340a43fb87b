// What plans hold where attention is not fused: bytes by hand.
#include <doctest/doctest.h>

#include <algorithm>
#include <string_view>

#include "core/families/load_model.h"
#include "core/lowering/lower.h"
#include "core/program/verify.h"
#include "tests/core/lowering/matrix.h"

namespace zeroplan {
namespace {

// gpt2: 12 layers, 12 heads; 4 sequences of 1024 tokens.
constexpr int64_t kLayers = 12;
constexpr uint64_t kProbs16Bytes = 100'663'296;  // 2*B*H*T*T = 2 * 4 * 12 * 1024 * 1024
constexpr uint64_t kLseBytes = 196'608;          // 4*B*H*T = 4 * 4 * 12 * 1024

Program LowerGpt2(bool flash_attention, Dtype dtype, RecomputeConfig recompute,
                  Purpose purpose = Purpose::kTrain) {
  TrainSetup setup;
  setup.precision.dtype = setup.precision.grad_accum_dtype = dtype;
  setup.batch = {4, 1, 1, 1024};
  setup.recompute = recompute;
  LowerOptions options;
  options.flash_attention = flash_attention;
  options.purpose = purpose;
  options.backend = Backend::kCuda;
  return Lower(LoadModel("gpt2"), setup, options);
}

// Walks a section and returns the largest sum of bytes that are live and that `counts` accepts, up
// to the first instruction that `stop` accepts.
template <typename Counts, typename Stop>
uint64_t LargestLive(const Program& program, Section section, Counts&& counts, Stop&& stop) {
  uint64_t live = 0, largest = 0;
  for (const Instruction& instruction : program.section(section)) {
    if (stop(instruction)) break;
    if (const auto* alloc = std::get_if<Alloc>(&instruction.op)) {
      const Buffer& buffer = program.buffers[alloc->buffer];
      if (counts(buffer)) live += buffer.bytes;
    } else if (const auto* free = std::get_if<Free>(&instruction.op)) {
      const Buffer& buffer = program.buffers[free->buffer];
      if (counts(buffer)) live -= buffer.bytes;
    }
    largest = std::max(largest, live);
  }
  return largest;
}

bool InMemoryClass(const Buffer& buffer) {
  return !buffer.persistent && buffer.memory_class == MemoryClass::kActivations;
}
bool IsProbs(const Buffer& buffer) {
  return std::string_view(buffer.label) == "probs" || std::string_view(buffer.label) == "d_probs";
}
bool IsLse(const Buffer& buffer) { return std::string_view(buffer.label) == "lse"; }
bool Never(const Instruction&) { return false; }
bool Backward(const Instruction& instruction) { return instruction.phase == Phase::kBackward; }

TEST_CASE("unfused attention: a layer saves the probabilities in place of the log-sum-exp") {
  const auto saved = [](bool flash, Dtype dtype, RecomputeConfig recompute) {
    return LargestLive(LowerGpt2(flash, dtype, recompute), Section::kMicroStep, InMemoryClass,
                       Backward);
  };
  CHECK(saved(false, Dtype::kF16, kNoRecompute) - saved(true, Dtype::kF16, kNoRecompute) ==
        kLayers * (kProbs16Bytes - kLseBytes));
  CHECK(saved(false, Dtype::kF32, kNoRecompute) - saved(true, Dtype::kF32, kNoRecompute) ==
        kLayers * (2 * kProbs16Bytes - kLseBytes));
}

TEST_CASE("unfused attention: its gradient doubles one layer's probabilities in the backward") {
  for (const RecomputeConfig& recompute : {kNoRecompute, FullRecompute(), FullRecompute(3)}) {
    CAPTURE(RecomputeName(recompute));
    const Program program = LowerGpt2(false, Dtype::kF16, recompute);
    // Kept or made again: all layers, or those of one segment; and dprobs of one.
    const auto layers =
        static_cast<uint64_t>(recompute == kNoRecompute ? kLayers : recompute.every);
    CHECK(LargestLive(program, Section::kMicroStep, IsProbs, Never) ==
          (layers + 1) * kProbs16Bytes);
    CHECK(LargestLive(program, Section::kMicroStep, IsLse, Never) == 0);
    // With recompute the first forward holds one layer's at a time.
    if (recompute != kNoRecompute) {
      CHECK(LargestLive(program, Section::kMicroStep, IsProbs, Backward) == kProbs16Bytes);
    }
  }
  CHECK(LargestLive(LowerGpt2(true, Dtype::kF16, kNoRecompute), Section::kMicroStep, IsProbs,
                    Never) == 0);
}

TEST_CASE("unfused attention: evaluation and generation hold one layer's probabilities") {
  CHECK(LargestLive(LowerGpt2(false, Dtype::kF16, kNoRecompute), Section::kEval, IsProbs, Never) ==
        kProbs16Bytes);
  const Program generate = LowerGpt2(false, Dtype::kF32, kNoRecompute, Purpose::kGenerate);
  CHECK(LargestLive(generate, Section::kGenerate, IsProbs, Never) == 2 * kProbs16Bytes);
}

TEST_CASE("unfused attention: its products share the matmuls' workspace") {
  const Program program = LowerGpt2(false, Dtype::kF16, kNoRecompute);
  int launches = 0;
  for (const Instruction& instruction : program.section(Section::kMicroStep)) {
    const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
    if (launch == nullptr || (launch->kernel != KernelId::kUnfusedAttentionForward &&
                              launch->kernel != KernelId::kUnfusedAttentionBackward)) {
      continue;
    }
    ++launches;
    const Ref& last = program.refs[launch->first_arg + launch->arg_count - 1u];
    CHECK(last.buffer == program.matmul_workspace);
  }
  CHECK(launches == 2 * kLayers);
}

}  // namespace
}  // namespace zeroplan
