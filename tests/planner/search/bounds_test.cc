// What bounds know and assume of a model, with parameter tables made by hand that break each
// assumption: the bound gets looser, and holds.
#include "planner/search/bounds.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <random>

#include "core/families/load_model.h"
#include "core/program/bucket_sizes.h"
#include "core/settings/setup_facts.h"
#include "cost_models/memory_walk.h"
#include "cost_models/step_time.h"
#include "hwprofiles/loader.h"
#include "planner/estimate/choices.h"
#include "tests/core/families/made_up/made_up.h"
#include "tests/core/model/with_lora.h"
#include "tests/cost_models/plain_profile.h"
#include "tests/planner/search/bounds_hold.h"
#include "tests/planner/search_fixture.h"

namespace zeroplan {
namespace {

constexpr int64_t kLayers = 3, kHidden = 64, kVocab = 1024;

ParamTensor Matrix(const char* name, int layer, int64_t rows, int64_t columns,
                   ParamUse use = ParamUse::kProduct) {
  ParamTensor tensor;
  tensor.name = name;
  tensor.layer = layer;
  tensor.shape = {rows, columns};
  tensor.unpadded_rows = rows;
  tensor.decay = true;
  tensor.use = use;
  return tensor;
}

// Embeddings, one matrix a layer of so many rows, and what comes behind.
std::vector<ParamTensor> Table(const std::vector<int64_t>& layer_rows, bool own_head) {
  std::vector<ParamTensor> tensors = {
      Matrix("words", kEmbeddingLayer, kVocab, kHidden,
             own_head ? ParamUse::kOther : ParamUse::kHead),
      Matrix("positions", kEmbeddingLayer, 32, kHidden, ParamUse::kOther)};
  for (size_t layer = 0; layer < layer_rows.size(); ++layer) {
    tensors.push_back(Matrix("layer", static_cast<int>(layer), layer_rows[layer], kHidden));
  }
  if (own_head) {
    const auto behind = static_cast<int>(layer_rows.size());
    tensors.push_back(Matrix("head", behind, kHidden, kVocab, ParamUse::kHead));
  }
  return tensors;
}

ParamLayout Layout(const std::vector<ParamTensor>& tensors, int ranks) {
  ZeroConfig zero;
  zero.stage = 3;
  zero.param_persistence_threshold = 0;
  return BuildParamLayout(std::make_shared<const std::vector<ParamTensor>>(tensors), zero, ranks);
}

LayoutFacts Facts(const std::vector<ParamTensor>& tensors, int ranks) {
  return FactsOf(Layout(tensors, ranks), kLayers, AssumptionsOf(tensors, kLayers), Dtype::kBF16);
}

TEST_CASE("BoundAssumptions: GPT-2 has a tied head and layers that are alike") {
  const ModelSpec model = LoadModel("gpt2");
  const BoundAssumptions assumed = AssumptionsOf(BuildParamTable(model), model.layers);
  CHECK(assumed.uniform_layers);
  CHECK(assumed.tied_head_elements == static_cast<double>(model.padded_vocab * model.hidden));
}

TEST_CASE("BoundAssumptions: each is found broken in the parameter table") {
  const std::vector<ParamTensor> plain = Table({80, 80, 80}, false);
  CHECK(AssumptionsOf(plain, kLayers).uniform_layers);
  CHECK(AssumptionsOf(plain, kLayers).tied_head_elements == kVocab * kHidden);
  CHECK(AssumptionsOf(Table({80, 80, 80}, true), kLayers).tied_head_elements == 0);
  CHECK(AssumptionsOf(Table({80, 80, 80}, true), kLayers).uniform_layers);
  CHECK(!AssumptionsOf(Table({80, 81, 80}, false), kLayers).uniform_layers);
  std::vector<ParamTensor> missing = plain;
  missing.pop_back();
  CHECK(!AssumptionsOf(missing, kLayers).uniform_layers);
  // Transposed: as many elements, other products.
  std::vector<ParamTensor> transposed = plain;
  std::swap(transposed.back().shape[0], transposed.back().shape[1]);
  CHECK(!AssumptionsOf(transposed, kLayers).uniform_layers);
}

TEST_CASE("LayoutFacts: sums of unlike layers, by hand") {
  const LayoutFacts facts = Facts(Table({100, 10, 100}, true), 2);
  CHECK(facts.all == kHidden * (kVocab + 32 + 210 + kVocab));
  CHECK(facts.persistent == 0);
  CHECK(facts.layers == kHidden * 210);
  CHECK(facts.largest_layer == kHidden * 100);
  CHECK(facts.embedding == kHidden * (kVocab + 32));
  CHECK(facts.own_head == kHidden * kVocab);
  CHECK(facts.gathered_once == kHidden * (kVocab + 32 + kVocab));
  REQUIRE(facts.layer_gathers.size() == 2);
  CHECK(facts.layer_gathers[0].elements == kHidden * 10);
  CHECK(facts.layer_gathers[0].layers == 1);
  CHECK(facts.layer_gathers[1].layers == 2);
  CHECK(facts.auto_reduce_bucket == kLeastAutoBucket);
  CHECK(Facts(Table({100, 10, 100}, false), 2).own_head == 0);
  CHECK(Facts(Table({100, 10, 100}, false), 2).gathered_once == 0);
}

TEST_CASE("bounds: with a head of its own no gradient of it counts as open, and states still do") {
  TrainSetup base;
  Candidate group;
  group.gpus = 4;
  group.stage = 2;
  Cluster cluster;
  cluster.gpus = cluster.gpus_per_node = 4;
  cluster.runtime_bytes = 1000;
  const auto bound = [&](const std::vector<ParamTensor>& tensors, const BoundAssumptions& assumed) {
    const LayoutFacts facts = FactsOf(Layout(tensors, 4), kLayers, assumed, Dtype::kBF16);
    const GroupMemory memory =
        MemoryOfGroup(GroupTerms(SetupOf(group, base), facts), group, base, facts, cluster, {});
    return memory.states.gpu_bytes + memory.tied_head_bytes;
  };
  const std::vector<ParamTensor> untied = Table({80, 80, 80}, true);
  const BoundAssumptions assumed = AssumptionsOf(untied, kLayers);
  // bf16: parameters whole, gradients and states of a quarter; the runtime.
  const auto psi = static_cast<uint64_t>(Facts(untied, 4).all);
  const uint64_t least = 2 * psi + (2 + 12) * psi / 4 + 1000;
  CHECK(bound(untied, assumed) <= least);
  CHECK(bound(untied, assumed) + 4096 >= least);
  BoundAssumptions tied = assumed;
  tied.tied_head_elements = kVocab * kHidden;
  CHECK(bound(untied, tied) == bound(untied, assumed) + 2 * kVocab * kHidden);
}

GroupTime TimeOf(const LayoutFacts& facts, int stage, const CostModel& costs) {
  const TrainSetup base;
  Candidate group;
  group.gpus = 8;
  group.stage = stage;
  return TimeOfGroup(GroupTerms(SetupOf(group, base), facts), group, base, facts, costs);
}

TEST_CASE("bounds: collectives of unlike layers are no longer than those of any order of them") {
  const SearchFixture fixture("gpt2", 8);
  const CostModel& costs = *fixture.inputs.clusters[0].costs;
  // 19.2M, 1.92M and 9.6M elements: the bucket is the largest layer.
  const std::vector<int64_t> rows = {300'000, 30'000, 150'000};
  const auto seconds = [&](CollectiveOp op, double layer_rows) {
    return costs.CollectiveSeconds(op, 2 * layer_rows * kHidden);
  };
  std::vector<int64_t> order = {30'000, 150'000, 300'000};
  do {
    const LayoutFacts facts = Facts(Table(order, false), 8);
    CHECK(!facts.assumed.uniform_layers);
    CHECK(facts.auto_reduce_bucket == 300'000 * kHidden);
    // The backward pass fills a bucket from the last layer on, as far as the next one fits.
    double reductions = 0;
    int64_t filled = 0;
    for (size_t i = order.size(); i-- > 0;) {
      if (filled + order[i] > 300'000) {
        reductions += seconds(CollectiveOp::kReduceScatter, static_cast<double>(filled));
        filled = 0;
      }
      filled += order[i];
    }
    reductions += seconds(CollectiveOp::kReduceScatter, static_cast<double>(filled));
    const GroupTime two = TimeOf(facts, 2, costs);
    CHECK(two.within.backward > 0);
    CHECK(two.within.backward <= reductions);
    // Two of the backward half's gathers may be in the forward half, whichever they are.
    const double again = seconds(CollectiveOp::kAllGather, kVocab + 32);
    const double smallest = seconds(CollectiveOp::kAllGather, 30'000);
    double layers = 0;
    for (const int64_t layer : order) {
      layers += seconds(CollectiveOp::kAllGather, static_cast<double>(layer));
    }
    const GroupTime three = TimeOf(facts, 3, costs);
    CHECK(three.within.before == doctest::Approx(again));
    CHECK(three.within.forward == doctest::Approx(layers + again));
    CHECK(three.within.backward <= smallest + reductions);
    const GroupTime own_head = TimeOf(Facts(Table(order, true), 8), 3, costs);
    CHECK(own_head.within.forward > layers);
    CHECK(own_head.within.forward <= layers + 2 * again);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("bounds: small layers that are alike are reduced by as many as fit the bucket") {
  const SearchFixture fixture("gpt2", 8);
  const CostModel& costs = *fixture.inputs.clusters[0].costs;
  // 2.56M elements a layer: three to a bucket of 8M.
  const LayoutFacts facts = Facts(Table({40'000, 40'000, 40'000}, false), 8);
  CHECK(facts.auto_reduce_layers == 3);
  CHECK(TimeOf(facts, 2, costs).within.backward ==
        doctest::Approx(
            costs.CollectiveSeconds(CollectiveOp::kReduceScatter, 2 * 120'000 * kHidden)));
}

TEST_CASE("bounds: of a model with small layers no time exceeds its program's") {
  SearchFixture fixture("gpt2", 8);
  SearchInputs& in = fixture.inputs;
  Shrink(in.model);
  Bounds bounds = BoundsOf(in);
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int64_t grad_accum : {1, 2}) {
      Candidate candidate;
      candidate.gpus = 8;
      candidate.stage = stage;
      candidate.grad_accum = grad_accum;
      CheckHolds(bounds, in, candidate);
    }
  }
}

TEST_CASE("bounds: reductions that take as long as kernels may hide under the next forward pass") {
  for (const char* link : {"20GB/s", "60GB/s", "200GB/s"}) {
    SearchFixture fixture("gpt2", 8);
    SearchInputs& in = fixture.inputs;
    // The last two buckets, which may hide, are most of two layers.
    in.model.layers = 2;
    in.model.vocab = in.model.padded_vocab = 1024;
    ApplyGpuLink(fixture.profile, link);
    const CostModel costs(fixture.profile, {8, 8});
    in.clusters[0].costs = &costs;
    Bounds bounds = BoundsOf(in);
    CAPTURE(std::string(link));
    for (const int stage : {1, 2, 3}) {
      for (const OffloadDevice device : {OffloadDevice::kNone, OffloadDevice::kCpu}) {
        for (const int64_t grad_accum : {1, 2, 4}) {
          Candidate candidate;
          candidate.gpus = 8;
          candidate.stage = stage;
          candidate.micro_batch = 4;
          candidate.grad_accum = grad_accum;
          candidate.optimizer = {device, 1};
          CheckHolds(bounds, in, candidate);
        }
      }
    }
  }
}

TEST_CASE("bounds: what all slots hold may be written while the backward pass runs") {
  for (const double write : {4e9, 8e9, 16e9}) {
    SearchFixture fixture("gpt2", 1);
    SearchInputs& in = fixture.inputs;
    fixture.profile.node.nvme_read->value = 100e9;
    fixture.profile.node.nvme_write->value = write;
    const CostModel costs(fixture.profile, {1, 1});
    in.clusters[0].costs = &costs;
    CAPTURE(write);
    for (const int slots : {2, 4, 8}) {
      in.base.zero.offload_optimizer.buffer_count = slots;
      Bounds bounds = BoundsOf(in);
      for (const int64_t micro_batch : {16, 64}) {
        CAPTURE(slots);
        Candidate candidate;
        candidate.stage = 2;
        candidate.micro_batch = micro_batch;
        candidate.optimizer = {OffloadDevice::kNvme, 1};
        candidate.sub_group_elements = 1 << 22;
        CheckHolds(bounds, in, candidate);
      }
    }
  }
}

TEST_CASE("bounds: under a power limit no time exceeds its program's") {
  for (const double watts : {300.0, 700.0}) {
    CAPTURE(watts);
    SearchFixture fixture("gpt2-large", 8);
    SearchInputs& in = fixture.inputs;
    fixture.profile.gpu.power = H200Power(watts);
    const CostModel costs(fixture.profile, {8, 8});
    in.clusters[0].costs = &costs;
    Bounds bounds = BoundsOf(in);
    for (const int stage : {0, 2, 3}) {
      for (const OffloadDevice device : {OffloadDevice::kNone, OffloadDevice::kCpu}) {
        if (stage == 0 && device != OffloadDevice::kNone) continue;
        for (const int64_t micro_batch : {1, 16}) {
          Candidate candidate;
          candidate.gpus = 8;
          candidate.stage = stage;
          candidate.micro_batch = micro_batch;
          candidate.grad_accum = 2;
          candidate.optimizer = {device, 1};
          CheckHolds(bounds, in, candidate);
        }
      }
    }
  }
}

TEST_CASE("bounds: of a family with a head of its own none exceeds its program") {
  SearchFixture fixture("gpt2", 8);
  SearchInputs& in = fixture.inputs;
  Shrink(in.model);
  in.model.family = &testing::MadeUp();
  in.model.vocab = in.model.padded_vocab = 16'384;
  in.base.zero.param_persistence_threshold = 0;
  in.base.zero.sub_group_elements = 1 << 18;
  CHECK(AssumptionsOf(BuildParamTable(in.model), in.model.layers).tied_head_elements == 0);
  Bounds bounds = BoundsOf(in);
  in.space.micro_batches = {4};
  in.space.grad_accums = {1, 3};
  in.space.max_step_sequences = 96;
  in.space.recompute = {kNoRecompute, FullRecompute()};
  in.space.offload_optimizer = {
      {OffloadDevice::kNone, 1}, {OffloadDevice::kCpu, 0.4}, {OffloadDevice::kNvme, 1}};
  size_t checked = 0;
  for (Candidate candidate : Groups(in.space)) {
    for (const BatchPair& batch : BatchPairs(in.space, candidate.gpus)) {
      candidate.micro_batch = batch.micro_batch;
      candidate.grad_accum = batch.grad_accum;
      CheckHolds(bounds, in, candidate);
      ++checked;
    }
  }
  CHECK(checked >= 100);
}

TEST_CASE("bounds: what is frozen has no gradients and states, and none exceeds its program") {
  SearchFixture fixture(LoadModel("llama3.2-1b"), 8);
  SearchInputs& in = fixture.inputs;
  Shrink(in.model);
  in.base.zero.param_persistence_threshold = 0;
  in.base.zero.sub_group_elements = 1 << 18;
  in.space.micro_batches = {2};
  in.space.grad_accums = {1, 3};
  in.space.max_step_sequences = 96;
  in.space.recompute = {kNoRecompute, FullRecompute()};
  in.space.offload_optimizer = {
      {OffloadDevice::kNone, 1}, {OffloadDevice::kCpu, 0.4}, {OffloadDevice::kNvme, 1}};
  const ModelSpec whole = in.model;
  for (const std::string kind :
       {"adapters", "adapters over NF4", "adapters of some layers", "layers", "embedding"}) {
    CAPTURE(kind);
    in.model = whole;
    if (kind == "adapters") {
      in.model = testing::WithLora(whole, "all-linear", 4);
    } else if (kind == "adapters over NF4") {
      in.model = testing::WithQlora(whole, "all-linear", 4);
    } else if (kind == "adapters of some layers") {
      in.model = testing::WithLora(whole, "all-linear@1-2,q_proj@1:8,down_proj@2:16/1", 4);
    } else {
      in.model.frozen = kind == "layers" ? "model.layers.[0-1].*" : "model.embed*";
    }
    Bounds bounds = BoundsOf(in);
    const LayoutFacts facts = Facts(BuildParamTable(in.model), 8);
    CHECK(facts.trained < facts.all);
    size_t checked = 0;
    for (Candidate candidate : Groups(in.space)) {
      for (const BatchPair& batch : BatchPairs(in.space, candidate.gpus)) {
        candidate.micro_batch = batch.micro_batch;
        candidate.grad_accum = batch.grad_accum;
        CheckHolds(bounds, in, candidate);
        ++checked;
      }
    }
    CHECK(checked >= 100);
  }
}

TEST_CASE("bounds: where collectives send blocks of integers none exceeds its program") {
  for (const char* link : {"5GB/s", "200GB/s"}) {
    for (const int quantized : {1, 2, 3}) {
      SearchFixture fixture("gpt2", 8);
      SearchInputs& in = fixture.inputs;
      Shrink(in.model);
      in.model.layers = 8;
      in.base.zero.quantized_weights = (quantized & 1) != 0;
      in.base.zero.quantized_gradients = (quantized & 2) != 0;
      ApplyGpuLink(fixture.profile, link);
      const CostModel costs(fixture.profile, {8, 8});
      in.clusters[0].costs = &costs;
      Bounds bounds = BoundsOf(in);
      CAPTURE(std::string(link));
      CAPTURE(quantized);
      for (const uint64_t reduce : {kAuto, uint64_t{500'000}}) {
        for (const Grouping& grouping : {Grouping{}, {2, 0}, {4, 1}, {2, 2}}) {
          for (const int64_t grad_accum : {1, 2}) {
            Candidate candidate;
            candidate.gpus = 8;
            candidate.stage = 3;
            candidate.grouping = grouping;
            candidate.micro_batch = 4;
            candidate.grad_accum = grad_accum;
            candidate.buckets.reduce = reduce;
            CheckHolds(bounds, in, candidate);
          }
        }
      }
    }
  }
}

TEST_CASE("bounds: of optimizer states of every kind none exceeds its program") {
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16, Dtype::kF32}) {
    SearchFixture fixture("gpt2", 8);
    SearchInputs& in = fixture.inputs;
    Shrink(in.model);
    in.base.precision.dtype = in.base.precision.grad_accum_dtype = dtype;
    in.base.zero.sub_group_elements = 1 << 18;
    Bounds bounds = BoundsOf(in);
    in.space.micro_batches = {4};
    in.space.grad_accums = {1, 2};
    in.space.max_step_sequences = 64;
    in.space.recompute = {kNoRecompute};
    in.space.gathering = {{.persistence_threshold = 0}};
    in.space.groupings = {{}, {4, 1}};
    in.space.states.clear();
    for (const MasterWeights masters :
         {MasterWeights::kFp32, MasterWeights::kSplit, MasterWeights::kParam}) {
      for (const Dtype moments : {Dtype::kF32, Dtype::kBF16, Dtype::kDynamic8}) {
        PrecisionConfig precision = in.base.precision;
        precision.master_weights = masters;
        precision.moment_dtype = moments;
        if (!FindPrecisionProblem(precision)) in.space.states.push_back({masters, moments});
      }
    }
    CHECK(in.space.states.size() == (dtype == Dtype::kBF16 ? 9 : dtype == Dtype::kF16 ? 6 : 3));
    in.space.offload_optimizer = {
        {OffloadDevice::kNone, 1}, {OffloadDevice::kCpu, 0.4}, {OffloadDevice::kNvme, 1}};
    size_t checked = 0;
    for (Candidate candidate : Groups(in.space)) {
      for (const BatchPair& batch : BatchPairs(in.space, candidate.gpus)) {
        candidate.micro_batch = batch.micro_batch;
        candidate.grad_accum = batch.grad_accum;
        CheckHolds(bounds, in, candidate);
        ++checked;
      }
    }
    CHECK(checked >= 100);
  }
}

// The bound of GPU memory, as a share of what the program takes.
double MemoryShare(const SearchInputs& in, const Candidate& candidate) {
  const SearchCluster& cluster = in.clusters[0];
  Bounds bounds = BoundsOf(in);
  const MemoryBound bound =
      Bounds::Memory(bounds.Group(candidate, cluster.cluster, *cluster.costs),
                     bounds.Compute(candidate.micro_batch, candidate.recompute, *cluster.costs));
  const Program program = Lower(in.model, SetupOf(candidate, in.base), in.lower);
  return static_cast<double>(bound.gpu_bytes) /
         static_cast<double>(
             TotalsOf(program.arena_bytes, OutsideArenasOf(program), cluster.cluster).gpu_bytes);
}

TEST_CASE("bounds: where a few layers take most of the memory, it is known to a few percent") {
  SearchFixture fixture("gpt2", 1024);
  SearchInputs& in = fixture.inputs;
  in.model.layers = 20;
  in.model.hidden = 16'384;
  in.model.heads = 128;
  in.model.ffn = 4 * in.model.hidden;
  const auto layer = static_cast<uint64_t>(12 * in.model.hidden * in.model.hidden);
  Candidate candidate;
  candidate.gpus = 1024;
  candidate.stage = 3;
  candidate.recompute = FullRecompute();
  CHECK(MemoryShare(in, candidate) > 0.93);
  candidate.buckets = {4 * layer, 4 * layer};
  CHECK(MemoryShare(in, candidate) > 0.7);
  candidate.recompute = kNoRecompute;
  CHECK(MemoryShare(in, candidate) > 0.7);
}

TEST_CASE("bounds: a peak in the forward pass has no gradient of a tied head beside it") {
  SearchFixture fixture("gpt2", 6);
  SearchInputs& in = fixture.inputs;
  in.model.layers = 2;
  in.model.hidden = 384;
  in.model.heads = 12;
  in.model.ffn = 4 * in.model.hidden;
  in.model.vocab = 5000;
  in.model.padded_vocab = 5120;
  Bounds bounds = BoundsOf(in);
  Candidate candidate;
  candidate.gpus = 6;
  candidate.stage = 2;
  candidate.optimizer = {OffloadDevice::kCpu, 0.5};
  candidate.micro_batch = 448;
  candidate.grad_accum = 2;
  // Both copies of what the last product reads are more than the logits.
  candidate.products = {true, Fp8Recipe::kBlocks};
  const ComputeBound& compute = bounds.Compute(candidate.micro_batch, candidate.recompute,
                                               *in.clusters[0].costs, candidate.products);
  CHECK(compute.transient_bytes > compute.backward_bytes);
  CheckHolds(bounds, in, candidate);
}

TEST_CASE("bounds: where layers are unlike, kernels and activations are the whole model's") {
  SearchFixture fixture("gpt2", 1);
  const SearchInputs& in = fixture.inputs;
  const CostModel& costs = *in.clusters[0].costs;
  std::vector<ParamTensor> unlike = BuildParamTable(in.model);
  // A bias of another shape, which no kernel looks at, in one layer.
  const auto bias = std::find_if(unlike.begin(), unlike.end(), [](const ParamTensor& tensor) {
    return tensor.layer == 1 && tensor.is_vector;
  });
  bias->shape = {bias->shape[0] / 2, 2};
  CHECK(!AssumptionsOf(unlike, in.model.layers).uniform_layers);
  const auto bounds_of = [&](const std::vector<ParamTensor>& tensors) {
    return Bounds(in.model, std::make_shared<const std::vector<ParamTensor>>(tensors), in.base,
                  in.lower);
  };
  Bounds plain = bounds_of(BuildParamTable(in.model)), whole = bounds_of(unlike);
  for (const RecomputeConfig& recompute :
       {kNoRecompute, kSelectiveRecompute, FullRecompute(), FullRecompute(3)}) {
    CAPTURE(recompute.every);
    const ComputeBound& extended = plain.Compute(4, recompute, costs);
    const ComputeBound& lowered = whole.Compute(4, recompute, costs);
    CHECK(lowered.kernels.forward_seconds == doctest::Approx(extended.kernels.forward_seconds));
    CHECK(lowered.kernels.backward_seconds == doctest::Approx(extended.kernels.backward_seconds));
    CHECK(lowered.transient_bytes >= extended.transient_bytes);
    CHECK(static_cast<double>(lowered.transient_bytes) ==
          doctest::Approx(static_cast<double>(extended.transient_bytes)).epsilon(0.01));
  }
}

}  // namespace
}  // namespace zeroplan
