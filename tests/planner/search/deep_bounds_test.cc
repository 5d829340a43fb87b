// Bounds of deep models with random choices, mixes of homes of activations among them: none exceeds
// its program.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <random>

#include "core/families/load_model.h"
#include "tests/core/model/with_lora.h"
#include "tests/planner/search/bounds_hold.h"
#include "tests/planner/search_fixture.h"

namespace zeroplan {
namespace {

// Of some, less is computed again above so many layers; of some, so many layers' activations, or
// all but the last one's, go to the host.
void DrawHomes(std::mt19937& random, int layers, RecomputeConfig& recompute) {
  const auto below = [&](int most) { return 1 + static_cast<int>(random() % most); };
  if (recompute.kind != RecomputeKind::kNone && random() % 2 == 0) {
    recompute.layers = below(layers - 1);
    if (recompute.kind > RecomputeKind::kSelective && random() % 2 == 0) {
      recompute.above = RecomputeKind::kSelective;
    }
  }
  if (random() % 2 == 0) {
    recompute.offload = {OffloadDevice::kCpu,
                         random() % 3 == 0 ? 0 : below(std::max(1, layers - 2))};
  }
}

// Random choices of dense models, or of mixtures of experts.
void CheckDraws(int draws, bool mixtures) {
  std::mt19937 random(1);
  const auto any = [&](auto... of) {
    const std::array list{of...};
    return list[random() % list.size()];
  };
  for (int draw = 0; draw < draws; ++draw) {
    CAPTURE(draw);
    const int gpus = any(1, 8, 8, 16);  // 16: of two nodes
    const char* name = mixtures ? any("olmoe-1b-7b", "qwen3-30b-a3b", "qwen1.5-moe-a2.7b")
                                : any("gpt2", "llama3.2-1b");
    SearchFixture fixture(LoadModel(name), gpus);
    SearchInputs& in = fixture.inputs;
    Shrink(in.model);
    CAPTURE(in.model.name);
    if (any(false, true)) {  // layers that are larger than the smallest open bucket
      in.model.hidden = 1024;
      in.model.ffn = 4096;
    }
    in.model.layers = any(5, 8, 12, 17);
    if (mixtures) {
      in.model.experts = any(4, 16);
      in.model.experts_per_token = any(1, 2, 4);
      in.model.expert_ffn = in.model.hidden / any(1, 2, 8);
      if (in.model.shared_ffn > 0) in.model.shared_ffn = in.model.hidden;
      if (in.model.family->name() == "qwen3_moe") in.model.dense_layers = any("", "", "0", "1,4");
      in.model.frozen = any("", "", "*.mlp.gate.weight");
      CAPTURE(in.model.dense_layers);
    } else if (any(0, 1, 2) == 0) {
      in.model = testing::WithLora(
          in.model,
          in.model.kv_heads == 0
              ? any("all-linear", "attn.c_proj", "c_fc", "c_fc@1-3:8,c_attn@2")
              : any("all-linear", "up_proj,o_proj", "k_proj", "q_proj:8,v_proj@2-4:16,down_proj@0"),
          any(4, 64, 256));
      in.model.lora_quantized = any(false, true);
      in.model.lora_dropout = any(0.0f, 0.1f);
    }
    CAPTURE(in.model.lora_rank);
    CAPTURE(in.model.lora_quantized);
    CAPTURE(in.model.layers);
    const int64_t widths = mixtures
                               ? 4 * in.model.hidden + 3 * in.model.experts * in.model.expert_ffn
                               : 12 * in.model.hidden;
    const auto layer = static_cast<double>(in.model.hidden * widths);
    const auto layers_of = [&](double count) { return static_cast<uint64_t>(count * layer); };
    const auto all = static_cast<double>(in.model.layers);
    ZeroConfig& zero = in.base.zero;
    zero.overlap_comm = any(true, true, false);
    zero.contiguous_gradients = any(true, true, true, false);
    zero.reduce_scatter = any(true, true, true, false);
    Candidate candidate;
    candidate.gpus = gpus;
    candidate.stage = any(2, 3, 3, 3);
    if (gpus > 1 && any(false, true)) candidate.grouping = {any(2, 4, gpus / 2), any(0, 1, 2)};
    if (gpus > 1 && !in.model.family->learned_positions() && !in.model.qk_norm_whole) {
      candidate.sequence_ranks = any(1, 1, 2, 4);
    }
    CAPTURE(candidate.sequence_ranks);
    candidate.micro_batch = any(1, 4);
    candidate.grad_accum = any(1, 2, 3);
    candidate.recompute = any(kNoRecompute, kSelectiveRecompute, kProductsRecompute,
                              FullRecompute(), FullRecompute(any(2, 3, 4, 5, 6, 9)));
    DrawHomes(random, static_cast<int>(in.model.layers), candidate.recompute);
    candidate.optimizer =
        any(OptimizerOffload{OffloadDevice::kNone, 1}, OptimizerOffload{OffloadDevice::kCpu, 0.4},
            OptimizerOffload{OffloadDevice::kCpu, 1});
    if (candidate.stage == 3 && candidate.grouping.across_stage == 0) {
      candidate.param = any(OffloadDevice::kNone, OffloadDevice::kCpu);
    }
    candidate.states = {any(MasterWeights::kFp32, MasterWeights::kSplit, MasterWeights::kParam),
                        any(Dtype::kF32, Dtype::kF32, Dtype::kBF16, Dtype::kDynamic8)};
    candidate.buckets.reduce = any(kAuto, layers_of(any(0.2, 1.1, 2.1, 3.0, 4.0, 8.0)));
    candidate.buckets.prefetch = any(kAuto, layers_of(any(0.0, 0.3, 1.0, 2.0, 4.0)));
    candidate.gathering = {any(uint64_t{0}, uint64_t{100'000}),
                           any(kAuto, layers_of(any(0.5, 1.1, 2.1, 3.1, 2 * all, 3 * all))),
                           any(uint64_t{0}, layers_of(any(0.5, 2.5, all, 2 * all, 3 * all)))};
    if (!mixtures && any(false, true)) {
      candidate.products = {true, any(Fp8Recipe::kTensor, Fp8Recipe::kTensor, Fp8Recipe::kBlocks),
                            any(int64_t{0}, int64_t{0}, in.model.hidden)};
    }
    Bounds bounds = BoundsOf(in);
    CheckHolds(bounds, in, candidate);
  }
}

TEST_CASE("bounds: of deep models none exceeds its program, whatever is gathered and kept") {
  CheckDraws(1200, false);
}

TEST_CASE("bounds: of deep mixtures none exceeds its program, whatever is gathered and kept") {
  CheckDraws(600, true);
}

}  // namespace
}  // namespace zeroplan
