// One golden text a pass: what the sections look like that it changes, on a model of one or two
// layers. The files in golden/ are meant to be read; each starts with what it shows.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string_view>

#include "core/families/qwen2_moe/qwen2_moe.h"
#include "core/lowering/passes.h"
#include "tests/core/families/tiny_mixture.h"
#include "tests/core/lowering/golden_text.h"
#include "tests/core/lowering/matrix.h"
#include "tests/core/model/with_lora.h"
#include "tests/fp8_models.h"
#include "tests/paths.h"

namespace zeroplan {
namespace {

using testing::Offload;

struct Golden {
  const char* file;
  const char* shows;  // the file's first line
  std::string_view pass;
  int layers;
  TrainSetup setup;
  std::vector<Section> sections;
  LowerOptions options = {};
  ModelSpec (*changed)(ModelSpec) = nullptr;  // of the tiny model
};

// Sections whose instructions the pass changed. Buffers that it only renamed or resized do not
// count: both programs are printed with the buffers of the later one, which has all of the earlier.
std::string TouchedSections(Program before, const Program& after) {
  before.buffers = after.buffers;
  std::string names;
  for (int s = 0; s < kSections; ++s) {
    const auto section = static_cast<Section>(s);
    if (FormatSection(before, section) == FormatSection(after, section)) continue;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", SectionName(section));
  }
  return names.empty() ? "none" : names;
}

struct Passes {
  Program before, after;
};

Passes RunUpTo(const Golden& golden) {
  Passes passes;
  ModelSpec model = testing::TinyModel(golden.layers);
  if (golden.changed != nullptr) model = golden.changed(std::move(model));
  passes.after =
      EmptyProgram(model, std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(model)),
                   golden.setup, golden.options);
  for (const Pass& pass : kPasses) {
    passes.before = passes.after;
    passes.after = pass.run(std::move(passes.after), {golden.options});
    if (pass.name == golden.pass) return passes;
  }
  FAIL("no pass " << golden.pass);
  return passes;
}

std::filesystem::path GoldenFile(const char* name) {
  return std::filesystem::path(SourcePath("tests/core/lowering/golden")) /
         fmt::format("{}.txt", name);
}

std::string Header(const Golden& golden, const Passes& passes) {
  return fmt::format("# {}\n# This pass changes: {}.\n", golden.shows,
                     TouchedSections(passes.before, passes.after));
}

void CheckGolden(const Golden& golden) {
  const Passes passes = RunUpTo(golden);
  std::string text = Header(golden, passes);
  for (Section section : golden.sections) text += FormatSection(passes.after, section);
  testing::CheckGolden(GoldenFile(golden.file), text);
}

TrainSetup Setup(int stage, int ranks, Dtype dtype, int64_t grad_accum,
                 RecomputeConfig recompute = kNoRecompute, Offload offload = Offload::kNone) {
  TrainSetup setup = testing::BaseSetup(stage, ranks, dtype, grad_accum, recompute);
  testing::SetOffload(setup, offload);
  return setup;
}

TEST_CASE("golden: build_compute") {
  Golden golden{"build_compute",
                "1 layer, fp32, 2 micro-steps; 16 rows of logits in chunks of 6, 6 and 4.",
                "BuildCompute",
                1,
                Setup(0, 1, Dtype::kF32, 2),
                {Section::kMicroStep, Section::kEval}};
  golden.options.logits_chunk_bytes = 7 * 40 * 4;
  CheckGolden(golden);
}

// Models whose linears all fit products of eight bits, and a setup that takes them.
ModelSpec Wide8(ModelSpec model) {
  const int64_t positions = model.positions;
  model = testing::Fp8Gpt2(Fp8Recipe::kTensor, model.layers);
  model.positions = positions;
  return model;
}
ModelSpec WideBlocks(ModelSpec model) {
  const int64_t positions = model.positions;
  model = testing::Fp8Gpt2(Fp8Recipe::kBlocks, model.layers);
  model.positions = positions;
  return model;
}
TrainSetup Setup8(TrainSetup setup, Fp8Recipe recipe = Fp8Recipe::kTensor) {
  return testing::WithFp8(std::move(setup), recipe);
}

TEST_CASE("golden: insert_fp8") {
  CheckGolden(
      {"insert_fp8",
       "1 layer, 2 micro-steps, scales of tensors: an input is copied once, transposed too; "
       "a weight at each product. Kernels that make a tensor raise its magnitude with it, "
       "but for attention's output and the gradient of query, key and value.",
       "InsertFp8",
       1,
       Setup8(Setup(0, 1, Dtype::kBF16, 2)),
       {Section::kMicroStep, Section::kEval},
       {},
       Wide8});
}

TEST_CASE("golden: insert_fp8 with scales of blocks") {
  CheckGolden({"insert_fp8_blocks",
               "1 layer, scales of blocks: no magnitudes, each copy has scales of its own.",
               "InsertFp8",
               1,
               Setup8(Setup(0, 1, Dtype::kBF16, 1), Fp8Recipe::kBlocks),
               {Section::kMicroStep},
               {},
               WideBlocks});
}

TEST_CASE("golden: insert_recompute of products of eight bits") {
  CheckGolden({"insert_recompute_fp8",
               "1 layer: what products of weight gradients take is copied again; the forward pass "
               "makes no transposed copies.",
               "InsertRecompute",
               1,
               Setup8(Setup(0, 1, Dtype::kBF16, 1, kSelectiveRecompute)),
               {Section::kMicroStep},
               {},
               Wide8});
}

TEST_CASE("golden: gather_fp8") {
  TrainSetup setup = Setup8(Setup(3, 2, Dtype::kBF16, 2));
  setup.zero.param_persistence_threshold = 100;
  CheckGolden(
      {"gather_fp8",
       "Stage 3, 2 ranks, 2 micro-steps, 1 layer whose vectors are persistent: its matrices "
       "are rounded by the magnitudes of all shards and gathered in eight bits.",
       "GatherFp8",
       1,
       setup,
       {Section::kMicroStep},
       {},
       Wide8});
}

TEST_CASE("golden: insert_recompute") {
  CheckGolden({"insert_recompute",
               "2 layers in segments of one: each comes again right before its backward, but for "
               "the matmul that made the segment's output.",
               "InsertRecompute",
               2,
               Setup(0, 1, Dtype::kBF16, 1, FullRecompute()),
               {Section::kMicroStep}});
}

TEST_CASE("golden: insert_recompute of norms and GELU alone") {
  CheckGolden(
      {"insert_recompute_selective",
       "1 layer: GELU and both norms come again, each right before the weight gradient that "
       "reads it.",
       "InsertRecompute",
       1,
       Setup(0, 1, Dtype::kBF16, 1, kSelectiveRecompute),
       {Section::kMicroStep}});
}

TEST_CASE("golden: insert_recompute without fused attention") {
  Golden golden{"insert_recompute_unfused_attention",
                "1 layer, attention not fused: probabilities in place of the log-sum-exp, made "
                "again before the backward, whose scratch is d_probs.",
                "InsertRecompute",
                1,
                Setup(0, 1, Dtype::kF16, 1, FullRecompute()),
                {Section::kMicroStep}};
  golden.options.flash_attention = false;
  CheckGolden(golden);
}

TEST_CASE("golden: remove_dead") {
  CheckGolden(
      {"remove_dead",
       "2 layers, of which the second and the final norm are trained: the backward pass ends "
       "there, without the gradient of the second's input.",
       "RemoveDead",
       2,
       Setup(0, 1, Dtype::kBF16, 1),
       {Section::kMicroStep},
       {},
       [](ModelSpec model) {
         model.frozen = "transformer.wte.*,transformer.wpe.*,transformer.h.0.*";
         return model;
       }});
}

TEST_CASE("golden: insert_dequantize") {
  CheckGolden({"insert_dequantize",
               "Stage 3, 2 ranks, 1 layer with adapters over a base in NF4: what is gathered is "
               "NF4, each product takes a copy of its own.",
               "InsertDequantize",
               1,
               Setup(3, 2, Dtype::kBF16, 1),
               {Section::kMicroStep},
               {},
               [](ModelSpec model) { return testing::WithQlora(std::move(model), "c_attn"); }});
}

TEST_CASE("golden: insert_unshard") {
  CheckGolden({"insert_unshard",
               "Stage 3, 2 ranks, 2 layers; gathers issued one unit ahead, nothing kept.",
               "InsertUnshard",
               2,
               Setup(3, 2, Dtype::kBF16, 1),
               {Section::kMicroStep, Section::kEval}});
}

// A mixture with a shared expert and both auxiliary losses.
ModelSpec WithExperts(ModelSpec model) {
  const int64_t layers = model.layers;
  model = testing::TinyMixture(Qwen2Moe());
  model.layers = layers;
  model.router_aux_loss = 0.02f;
  model.router_z_loss = 0.001f;
  return model;
}

TEST_CASE("golden: build_compute of a mixture of experts") {
  Golden golden{"build_compute_experts",
                "1 layer of 5 experts, 2 a token, and a shared one; bf16, 2 micro-steps.",
                "BuildCompute",
                1,
                Setup(0, 1, Dtype::kBF16, 2),
                {Section::kMicroStep, Section::kEval}};
  golden.changed = WithExperts;
  CheckGolden(golden);
}

TEST_CASE("golden: insert_recompute of a mixture of experts") {
  Golden golden{"insert_recompute_experts",
                "1 layer of experts, full recompute; dead kernels go after this pass.",
                "InsertRecompute",
                1,
                Setup(0, 1, Dtype::kBF16, 1),
                {Section::kMicroStep}};
  golden.setup.recompute = FullRecompute();
  golden.changed = WithExperts;
  CheckGolden(golden);
}

TEST_CASE("golden: insert_unshard of a mixture of experts") {
  Golden golden{
      "insert_unshard_experts",
      "Stage 3, 2 ranks, 1 layer of experts: they are gathered apart from the dense part.",
      "InsertUnshard",
      1,
      Setup(3, 2, Dtype::kBF16, 1),
      {Section::kMicroStep}};
  golden.setup.recompute = FullRecompute();
  golden.changed = WithExperts;
  CheckGolden(golden);
}

TEST_CASE("golden: insert_optimizer of a mixture of experts") {
  Golden golden{"insert_optimizer_experts",
                "Stage 2, 2 ranks, 1 layer of experts: totals of routing go to the host.",
                "InsertOptimizer",
                1,
                Setup(2, 2, Dtype::kBF16, 1),
                {Section::kOptimizerStep}};
  golden.changed = WithExperts;
  CheckGolden(golden);
}

TEST_CASE("golden: insert_reduction in place") {
  TrainSetup setup = Setup(1, 2, Dtype::kBF16, 2);
  setup.zero.reduce_bucket_elements = 10'000;
  CheckGolden({"insert_reduction_in_place",
               "Stage 1, 2 ranks, 2 micro-steps, buckets of 10000 elements: the first micro-step "
               "writes gradients, the second adds to them and reduces.",
               "InsertReduction",
               1,
               setup,
               {Section::kMicroStep}});
}

TEST_CASE("golden: insert_reduction to shards") {
  CheckGolden({"insert_reduction_to_shards",
               "Stage 2, 2 ranks, 2 micro-steps, buckets of 900 elements: the layer is cut at "
               "tensors, every micro-step reduces, shards are written first and then added to.",
               "InsertReduction",
               1,
               Setup(2, 2, Dtype::kBF16, 2),
               {Section::kMicroStep}});
}

TEST_CASE("golden: insert_optimizer") {
  TrainSetup setup = Setup(1, 2, Dtype::kBF16, 1, kNoRecompute, Offload::kRatio);
  setup.zero.allgather_bucket_elements = 5000;
  CheckGolden({"insert_optimizer",
               "Stage 1, 2 ranks, 0.4 of the optimizer on the host, in sub-groups of 1500; "
               "parameters gathered in buckets of 5000.",
               "InsertOptimizer",
               1,
               setup,
               {Section::kInit, Section::kOptimizerStep}});
}

TEST_CASE("golden: insert_optimizer with states on disk") {
  CheckGolden({"insert_optimizer_nvme",
               "Stage 2, 2 ranks, states in the swap file: read one piece ahead of their update, "
               "4 slots in turn.",
               "InsertOptimizer",
               1,
               Setup(2, 2, Dtype::kBF16, 1, kNoRecompute, Offload::kNvme),
               {Section::kInit, Section::kOptimizerStep}});
}

TEST_CASE("golden: insert_checkpoint") {
  Golden golden{"insert_checkpoint",
                "Stage 1, 2 ranks, 0.4 of the optimizer on the host; what lies on the device goes "
                "through two slots of 700 elements.",
                "InsertCheckpoint",
                1,
                Setup(1, 2, Dtype::kBF16, 1, kNoRecompute, Offload::kRatio),
                {Section::kSave, Section::kLoad}};
  golden.options.checkpoint_chunk_elements = 700;
  CheckGolden(golden);
}

TEST_CASE("golden: insert_offload") {
  TrainSetup setup = Setup(3, 2, Dtype::kBF16, 2, kNoRecompute, Offload::kBoth);
  setup.zero.reduce_bucket_elements = 10'000;
  CheckGolden({"insert_offload",
               "Stage 3, 2 ranks, 2 micro-steps, optimizer and parameters on the host: reduced "
               "gradients are summed there, shards come to the device before their gather.",
               "InsertOffload",
               1,
               setup,
               {Section::kMicroStep}});
}

TEST_CASE("golden: insert_quantize") {
  TrainSetup setup = Setup(3, 4, Dtype::kBF16, 1);
  setup.zero.shard_group = 2;
  setup.zero.across_stage = 2;
  setup.zero.quantized_weights = setup.zero.quantized_gradients = true;
  CheckGolden({"insert_quantize",
               "Stage 3, 4 ranks in groups of 2, gradients partitioned among all: gathers send "
               "int8; gradients go as int4 to their owners, within a group and over the groups.",
               "InsertQuantize",
               1,
               setup,
               {Section::kMicroStep}});
}

TEST_CASE("golden: insert_lifetimes") {
  CheckGolden({"insert_lifetimes",
               "Stage 1, 2 ranks, 1 layer: transient buffers live from their first use to their "
               "last, persistent ones from the start of init.",
               "InsertLifetimes",
               1,
               Setup(1, 2, Dtype::kF32, 1),
               {Section::kInit, Section::kMicroStep}});
}

TEST_CASE("golden: assign_events") {
  TrainSetup setup = Setup(3, 2, Dtype::kBF16, 1);
  setup.zero.reduce_bucket_elements = 10'000;
  CheckGolden({"assign_events",
               "Stage 3, 2 ranks, 1 layer: streams meet at the ends of a section and wait for "
               "each other in between only where one needs what another makes or still uses.",
               "AssignEvents",
               1,
               setup,
               {Section::kMicroStep, Section::kOptimizerStep}});
}

TEST_CASE("golden: assign_events, gathers carried into the next step") {
  TrainSetup setup = Setup(1, 2, Dtype::kBF16, 1);
  setup.zero.allgather_bucket_elements = ZeroConfig{}.allgather_bucket_elements;
  CheckGolden({"assign_events_carried",
               "Stage 1, 2 ranks, 1 layer: the update's end waits for no gather; the events after "
               "them are the next forward pass's to wait for, and drain's.",
               "AssignEvents",
               1,
               setup,
               {Section::kOptimizerStep, Section::kDrain}});
}

TEST_CASE("golden: assign_events, reductions carried into the next micro-step") {
  TrainSetup setup = Setup(2, 2, Dtype::kBF16, 3);
  setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
  setup.zero.reduce_bucket_elements = 10'000;
  CheckGolden({"assign_events_micro_steps",
               "Stage 2, 2 ranks, 1 layer, 3 micro-steps, optimizer on the CPU: every micro-step "
               "but the last leaves its reductions to the next one, which waits for them where it "
               "frees what they use.",
               "AssignEvents",
               1,
               setup,
               {Section::kMicroStep}});
}

TEST_CASE("golden: assign_events, an update on the host carried into the next step") {
  TrainSetup setup = Setup(2, 1, Dtype::kBF16, 1);
  setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
  CheckGolden({"assign_events_host_update",
               "Stage 2, 1 rank, 1 layer, optimizer on the CPU: the update's end waits neither for "
               "the host nor for the copies of new parameters; what uses a parameter does.",
               "AssignEvents",
               1,
               setup,
               {Section::kMicroStep, Section::kOptimizerStep, Section::kDrain}});
}

// A line a buffer, arena by arena and from its bottom, and where in the program it lives.
std::string FormatArenas(const Program& p) {
  struct Life {
    int64_t begin = -1, end = -1;
    Section section = Section::kInit;
  };
  std::vector<Life> lives(p.buffers.size());
  for (int s = 0; s < kSections; ++s) {
    const auto section = static_cast<Section>(s);
    for (size_t i = 0; i < p.section(section).size(); ++i) {
      const Op& op = p.section(section)[i].op;
      if (const auto* alloc = std::get_if<Alloc>(&op)) {
        lives[alloc->buffer] = {static_cast<int64_t>(i), -1, section};
      } else if (const auto* free = std::get_if<Free>(&op)) {
        lives[free->buffer].end = static_cast<int64_t>(i);
      }
    }
  }
  constexpr const char* kNames[] = {"device", "pinned", "pageable", "file"};
  std::string text;
  for (size_t space = 0; space < kSpaces; ++space) {
    text += fmt::format("{}: {} bytes, of them {} persistent; at most {} live\n", kNames[space],
                        p.arena_bytes[space], p.persistent_bytes[space], p.live_peak_bytes[space]);
    std::vector<size_t> order;
    for (size_t id = 0; id < p.buffers.size(); ++id) {
      const bool used = lives[id].begin >= 0;
      if (used && static_cast<size_t>(p.buffers[id].space) == space) order.push_back(id);
    }
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      const Buffer &x = p.buffers[a], &y = p.buffers[b];
      if (x.persistent != y.persistent) return x.persistent;
      return x.offset != y.offset ? x.offset < y.offset : a < b;
    });
    for (size_t id : order) {
      const Buffer& b = p.buffers[id];
      const Life& life = lives[id];
      text += fmt::format(
          "    {:>6} + {:<5} {:<18} {}\n", b.offset, b.bytes, BufferName(b),
          b.persistent ? std::string("persistent")
                       : fmt::format("{} {}..{}", SectionName(life.section), life.begin, life.end));
    }
  }
  return text;
}

TEST_CASE("golden: place_arenas") {
  const Golden golden{"place_arenas",
                      "Stage 1, 2 ranks, 1 layer. Offset + bytes, name, instructions of Alloc and "
                      "Free.",
                      "PlaceArenas",
                      1,
                      Setup(1, 2, Dtype::kBF16, 1),
                      {}};
  const Passes passes = RunUpTo(golden);
  testing::CheckGolden(GoldenFile(golden.file),
                       Header(golden, passes) + FormatArenas(passes.after));
}

TEST_CASE("line diff") {
  CHECK(testing::LineDiff("a\nb\nc\n", "a\nx\nc\nd\n") == "- 2: b\n+ 2: x\n+ 4: d\n");
  CHECK(testing::LineDiff("a\nb\n", "a\nb\n").empty());
}

}  // namespace
}  // namespace zeroplan
