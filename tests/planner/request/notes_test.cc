#include <doctest/doctest.h>

#include "core/program/attention_path.h"
#include "hwprofiles/sanity.h"
#include "planner/request/resolve.h"
#include "tests/cost_models/plain_profile.h"
#include "tests/has.h"
#include "tests/tiny_model.h"
#include "tests/wordings/planner.h"

namespace zeroplan {
namespace {

struct Case {
  int64_t hidden = 512, heads = 8, kv_heads = 0, seq_len = 1024, micro_batch = 4;
  Dtype dtype = Dtype::kBF16;
  bool deterministic = false, flash = true;
  const char* architecture = "hopper";
  bool documents = false;
};

std::string Note(const Case& c) {
  testing::TinyShape shape;
  shape.hidden = c.hidden;
  shape.heads = c.heads;
  ModelSpec model = testing::TinyModel(shape);
  model.kv_heads = c.kv_heads;
  TrainSetup setup;
  setup.batch = {c.micro_batch, 1, 1, c.seq_len};
  setup.precision.dtype = setup.precision.grad_accum_dtype = c.dtype;
  setup.deterministic = c.deterministic;
  GpuProfile gpu = PlainProfile().gpu;
  gpu.architecture = c.architecture;
  gpu.flash_attention = c.flash;
  LowerOptions lower;
  lower.backend = Backend::kCuda;
  lower.document_borders = c.documents;
  lower.flash_attention =
      c.flash && HasAttentionKernels(model.HeadSize(), c.dtype, ComputeCapability(c.architecture));
  return AttentionNote(model, setup, lower, gpu);
}

TEST_CASE("attention note: nothing where cuDNN takes all of it, at any length") {
  CHECK(Note({}).empty());
  CHECK(Note({.kv_heads = 2}).empty());
  CHECK(Note({.seq_len = 1000}).empty());
  CHECK(Note({.dtype = Dtype::kF16}).empty());
  CHECK(Note({.hidden = 2048}).empty());  // 256 channels
}

TEST_CASE("attention note: plain kernels, why, and what to change") {
  CHECK(Note({.dtype = Dtype::kF32}) ==
        "Attention runs on plain kernels, many times slower than cuDNN's: cuDNN has none for fp32. "
        "Use ⟦dtype⟧ bf16.");
  CHECK(Note({.hidden = 480}) ==
        "Attention runs on plain kernels, many times slower than cuDNN's: cuDNN takes heads in "
        "multiples of 8 channels, these have 60. Use a model whose heads have 56 or 64 channels.");
  const std::string ampere = Note({.hidden = 2048, .architecture = "ampere"});
  CHECK(ampere.starts_with("Attention's backward pass runs on plain kernels"));
  CHECK(Has(ampere, wording::kAtMostChannelsHereThese));
  CHECK(Has(ampere, wording::kTheirPredictedTimeIsGuess));
  CHECK(ampere.ends_with("Use a model whose heads have at most 128 channels, or a Hopper GPU."));
}

TEST_CASE("attention note: packed documents, where cuDNN takes them and where not") {
  CHECK(Note({.documents = true}).empty());
  const std::string ada = Note({.architecture = "ada", .documents = true});
  CHECK(ada.starts_with(
      "Attention runs on plain kernels, many times slower than cuDNN's: cuDNN takes "
      "packed documents from compute capability 9.0 on, the GPU has 8.9."));
  CHECK(ada.ends_with("Use ⟦packing⟧ off or stream."));
  CHECK(Has(Note({.deterministic = true, .documents = true}), wording::kLeaveOutOrUseOff));
  CHECK(Has(Note({.hidden = 576, .documents = true}), wording::kHeadsInMultiplesOfChannels));
}

TEST_CASE("attention note: scores in memory, for the GPU or for the heads") {
  CHECK(Note({.flash = false}) ==
        "Attention keeps the scores in memory (cuDNN has no fused kernel for plain GPU), which the "
        "predicted bytes and times have.");
  CHECK(Note({.hidden = 8 * 320}) ==
        "Attention keeps the scores in memory (no kernel that does without takes heads of 320 "
        "channels in bf16 on plain GPU), which the predicted bytes and times have.");
  CHECK(Has(Note({.hidden = 8 * 128, .dtype = Dtype::kF32, .architecture = "ada"}),
            "keeps the scores in memory (no kernel that does without takes heads of 128 "
            "channels in fp32"));
  CHECK(Has(Note({.dtype = Dtype::kF32, .architecture = "ada"}), "runs on plain kernels"));
}

TEST_CASE("attention note: deterministic runs say their calls, or that nothing fits") {
  // As Llama 3.2 1B.
  const Case llama = {
      .hidden = 2048, .heads = 32, .kv_heads = 8, .seq_len = 2048, .micro_batch = 8};
  Case ordered = llama;
  ordered.deterministic = true;
  CHECK(Note(llama).empty());
  CHECK(Note(ordered) ==
        "⟦deterministic⟧: attention's backward pass takes 16 calls of cuDNN's kernel, each of 4 of "
        "8 heads of keys, which keeps the gradients of its scores; the predicted time has that.");
  CHECK(Has(Note({.seq_len = 256, .micro_batch = 8, .deterministic = true}),
            wording::kCallsOfCudnnKernelEach));
  CHECK(Note({.seq_len = 64, .micro_batch = 8, .deterministic = true}).empty());
  ordered.seq_len = 131072;
  ordered.micro_batch = 1;
  const std::string plain = Note(ordered);
  CHECK(plain.starts_with("Attention's backward pass runs on plain kernels"));
  // 4 query heads of 2 T^2 bytes each and their dK and dV in 4 GiB.
  CHECK(plain.ends_with("Leave ⟦deterministic⟧ out, or use ⟦seq_len⟧ 23040 or less."));
  // In fp32 the plain kernels are deterministic anyhow.
  CHECK(Has(Note({.dtype = Dtype::kF32, .deterministic = true}), "none for fp32"));
}

}  // namespace
}  // namespace zeroplan
