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
        "Attention runs on plain kernels, many times slower than fused ones: fused kernels take "
        "bf16 and fp16, not fp32. Use ⟦dtype⟧ bf16.");
  CHECK(Note({.hidden = 480}) ==
        "Attention runs on plain kernels, many times slower than fused ones: fused kernels take "
        "heads in multiples of 8 channels, these have 60. Use a model whose heads have 56 or 64 "
        "channels.");
  const std::string turing = Note({.dtype = Dtype::kF16, .architecture = "turing"});
  CHECK(Has(turing, wording::kTheirPredictedTimeIsGuess));
  CHECK(turing.ends_with("Use a GPU from Ampere on."));
}

TEST_CASE("attention note: own fused kernels, where they were not timed") {
  CHECK(Note({.hidden = 2048, .architecture = "ampere"}) ==
        "Attention's backward pass runs on zeroplan's own fused kernels (cuDNN takes heads of at "
        "most 128 channels here, these have 256), whose predicted time is taken over from an H200, "
        "with a margin.");
  CHECK(Note({.hidden = 1024, .architecture = "ampere"}).empty());
  CHECK(Note({.seq_len = 1}).empty());
  CHECK(Has(Note({.seq_len = 1, .architecture = "ada"}), "cuDNN takes no sequence of one token"));
}

TEST_CASE("attention note: packed documents, where cuDNN takes them and where not") {
  CHECK(Note({.documents = true}).empty());
  const std::string ada = Note({.architecture = "ada", .documents = true});
  CHECK(ada.starts_with(
      "Attention runs on zeroplan's own fused kernels (cuDNN takes packed documents from compute "
      "capability 9.0 on, the GPU has 8.9), whose"));
  CHECK(Note({.deterministic = true, .documents = true}).empty());
  CHECK(Note({.hidden = 576, .documents = true}).empty());
  CHECK(Has(Note({.dtype = Dtype::kF32, .documents = true}), "runs on plain kernels"));
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
  // One head of keys needs more than 4 GiB: own kernels run, in the order of every run.
  CHECK(Note(ordered).empty());
  // In fp32 the plain kernels are deterministic anyhow.
  CHECK(Has(Note({.dtype = Dtype::kF32, .deterministic = true}), "not fp32"));
}

}  // namespace
}  // namespace zeroplan
