#include "planner/search/search_space.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <limits>

#include "core/base/error.h"
#include "core/lowering/lower.h"
#include "core/model/param_table.h"
#include "core/program/bucket_sizes.h"
#include "core/settings/setup_facts.h"
#include "hwprofiles/fields.h"
#include "hwprofiles/loader.h"
#include "planner/estimate/choices.h"
#include "planner/search/search.h"

namespace zeroplan {
namespace {

template <typename T>
void SortUnique(std::vector<T>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

std::vector<int64_t> Divisors(int64_t n) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= n / d; ++d) {
    if (n % d != 0) continue;
    divisors.push_back(d);
    divisors.push_back(n / d);
  }
  SortUnique(divisors);
  return divisors;
}

uint64_t LayerElements(const ModelSpec& model) {
  uint64_t elements = 0;
  for (const ParamTensor& tensor : BuildParamTable(model)) {
    if (tensor.layer == 0) elements += tensor.elements();
  }
  return elements;
}

// Of what nobody asked for, groups of a node with states on hosts, all or half of them.
bool OffloadsInGroups(const Candidate& c, const SearchSpace& space) {
  const OptimizerOffload& optimizer = c.optimizer;
  return c.grouping.ranks == space.node_ranks && optimizer.device != OffloadDevice::kNvme &&
         c.param != OffloadDevice::kNvme && (optimizer.ratio == 1 || optimizer.ratio == 0.5);
}

// Of several nodes: half a node and powers of two of nodes; large clusters have 32 nodes too.
std::vector<Grouping> DefaultGroupings(int gpus, int gpus_per_node) {
  std::vector<Grouping> groupings = {{}};
  if (gpus <= gpus_per_node) return groupings;
  std::vector<int> sizes;
  if (gpus_per_node >= 8) sizes.push_back(gpus_per_node / 2);
  for (const int nodes : {1, 2, 4, 8}) sizes.push_back(nodes * gpus_per_node);
  if (gpus / gpus_per_node >= 64) sizes.push_back(32 * gpus_per_node);
  for (const int ranks : sizes) {
    if (ranks < 2 || ranks >= gpus || !TilesNodes(ranks, gpus, gpus_per_node)) continue;
    for (int across = 0; across <= 2; ++across) groupings.push_back({ranks, across});
  }
  return groupings;
}

}  // namespace

SearchSpace DefaultSpace(const ModelSpec& model, int gpus, int gpus_per_node, bool fewer_gpus) {
  SearchSpace space;
  space.gpus = {gpus};
  if (fewer_gpus) {
    for (int n = 1; n < std::min(gpus, gpus_per_node); n *= 2) space.gpus.push_back(n);
    for (int64_t n = gpus_per_node; n < gpus; n *= 2) space.gpus.push_back(static_cast<int>(n));
    SortUnique(space.gpus);
  }
  space.groupings = DefaultGroupings(gpus, gpus_per_node);
  space.node_ranks = std::min(gpus, gpus_per_node);
  space.offload_optimizer = {{OffloadDevice::kNone, 1}};
  for (int tenths = 1; tenths <= 10; ++tenths) {
    space.offload_optimizer.push_back({OffloadDevice::kCpu, tenths / 10.0});
  }
  space.offload_optimizer.push_back({OffloadDevice::kNvme, 1});
  space.offload_param = {OffloadDevice::kNone, OffloadDevice::kCpu, OffloadDevice::kNvme};
  space.recompute = {kNoRecompute, kSelectiveRecompute};
  // Longer segments hold more at once and save less: past a fifth of the layers they lose both
  // ways.
  for (int64_t every : Divisors(model.layers)) {
    if (every == 1 || every <= model.layers / 5) {
      space.recompute.push_back(FullRecompute(static_cast<int>(every)));
    }
  }
  const uint64_t layer = LayerElements(model);
  const uint64_t all = model.ParamCount() * 2;
  // A fifth of a layer: its larger tensors one by one, as soon as each is there.
  const uint64_t part = std::max<uint64_t>(1, layer / 5);
  space.buckets = {{kAuto, kAuto}, {part, kAuto}, {part, 2 * layer}, {4 * layer, 4 * layer}};
  space.gathering = {{}, {.persistence_threshold = 0}, {0, all, all}};
  const uint64_t sub_group = SubGroupElements(model.ParamCount(), space.gpus.front());
  space.sub_group_elements = {sub_group, 4 * sub_group};
  space.most_micro_step_tokens = MostMicroStepTokens(model);
  SetBatches(space, std::nullopt, model.LongestSequence());
  return space;
}

void AddMixes(int64_t layers, SearchSpace& space) {
  using enum RecomputeKind;
  constexpr ActivationHome kAllOnHost = {OffloadDevice::kCpu, 0};
  const auto last = static_cast<int>(layers) - 1;
  space.mixes.clear();
  const auto add = [&](const RecomputeConfig& recompute, int& open, int most) {
    std::vector<RecomputeConfig> members;
    for (open = 1; open <= most; ++open) members.push_back(recompute);
    if (!members.empty()) space.mixes.push_back(std::move(members));
  };
  for (const auto& [kind, above] : {std::pair(kSelective, kNone),
                                    {kProducts, kNone},
                                    {kProducts, kSelective},
                                    {kFull, kNone},
                                    {kFull, kSelective}}) {
    RecomputeConfig mix = {kind, kind == kFull ? 1 : 0, 0, above, {}};
    add(mix, mix.layers, last);
    // With more layers that compute again fewer bytes cross PCIe, so that none is slower for sure.
    if (kind == kFull) continue;
    mix.offload = kAllOnHost;
    int before = 0;
    for (int quarter = 1; quarter <= 3; ++quarter) {
      mix.layers = std::min(last, static_cast<int>(layers * quarter / 4));
      if (mix.layers > before) space.mixes.push_back({mix});
      before = mix.layers;
    }
  }
  // In steps of an eighth of the layers, and of five at most.
  const int64_t parts = std::max<int64_t>(8, (layers + 4) / 5);
  for (const RecomputeConfig& kind :
       {kNoRecompute, kSelectiveRecompute, kProductsRecompute, FullRecompute()}) {
    RecomputeConfig offloads = kind;
    offloads.offload = kAllOnHost;
    if (last > 0) space.mixes.push_back({offloads});
    // Which layers they are changes with their number, so that none is slower for sure.
    int before = 0;
    for (int64_t part = 1; part < parts; ++part) {
      const int number = static_cast<int>(layers * part / parts);
      if (number <= before || number >= last) continue;
      before = offloads.offload.layers = number;
      space.mixes.push_back({offloads});
    }
  }
}

void AddHomes(int64_t layers, SearchSpace& space) {
  const auto full = std::find_if(space.recompute.begin(), space.recompute.end(),
                                 [](const RecomputeConfig& r) { return r.every > 0; });
  space.recompute.insert(full, kProductsRecompute);
  AddMixes(layers, space);
}

RecomputeConfig MixOf(RecomputeConfig recompute) {
  recompute.layers = std::min(recompute.layers, 1);
  recompute.offload.layers = std::min(recompute.offload.layers, 1);
  return recompute;
}

std::vector<int> SequenceRanksOf(const Runtime& runtime, const ModelSpec& model, int64_t seq_len,
                                 int gpus) {
  std::vector<int> ranks;
  BatchSpec batch;
  batch.seq_len = seq_len;
  for (int& shared = batch.sequence_ranks = 1; shared <= gpus; ++shared) {
    if (seq_len % shared == 0 && !runtime.SequenceProblem(model, batch)) ranks.push_back(shared);
  }
  return ranks;
}

bool CarriesMixes(const Candidate& group, const SearchSpace& space) {
  const auto first = std::find_if(space.recompute.begin(), space.recompute.end(),
                                  [](const RecomputeConfig& r) { return r.every <= 1; });
  // Of shard groups that nobody asked for, those of a node.
  const int ranks = group.grouping.ranks;
  const bool grouped = ranks == 0 || ranks == space.node_ranks || space.grouping_fixed;
  return first != space.recompute.end() && group.recompute == *first && grouped &&
         group.buckets.prefetch == space.buckets.front().prefetch &&
         group.buckets.reduce == space.buckets.front().reduce &&
         group.gathering == space.gathering.front() &&
         group.sub_group_elements == space.sub_group_elements.front();
}

int64_t MostMicroStepTokens(const ModelSpec& model) {
  constexpr int64_t kMost = int64_t{1} << 26, kMostChunks = int64_t{1} << 16;
  // Of fp32, which has the most chunks.
  const auto bytes = [&model](int64_t rows) {
    return static_cast<int64_t>(LogitsChunkBytes(model, Dtype::kF32, rows, {}));
  };
  // A row of each of a token's experts is numbered with 31 bits.
  const int64_t most_routed =
      std::numeric_limits<int32_t>::max() / std::max<int64_t>(1, model.experts_per_token);
  return std::min({kMost, most_routed, kMostChunks * (bytes(kMost) / bytes(1))});
}

void CheckMicroBatch(int64_t micro_batch, int64_t seq_len, int64_t most) {
  if (micro_batch <= most / seq_len) return;
  if (seq_len > most) {
    ThrowUsage(
        "⟦seq_len⟧: {} is not allowed; use at most {} (the tokens of a GPU and micro-step that are "
        "planned for this vocabulary)",
        seq_len, most);
  }
  ThrowUsage(
      "⟦micro_batch⟧: {} sequences of {} tokens are not allowed; use at most {} sequences ({} "
      "tokens a GPU and micro-step are planned for this vocabulary) and more micro-steps "
      "(⟦grad_accum⟧)",
      micro_batch, seq_len, most / seq_len, most);
}

void SetBatches(SearchSpace& space, std::optional<int64_t> global_batch, int64_t seq_len) {
  space.global_batch = global_batch;
  space.micro_batches.clear();
  space.grad_accums.clear();
  if (global_batch) {
    space.micro_batches = space.grad_accums = Divisors(*global_batch);
    std::erase_if(space.micro_batches, [&](int64_t micro) {
      return micro > std::max<int64_t>(1, space.most_micro_step_tokens / seq_len);
    });
    return;
  }
  for (uint64_t micro = 1; micro <= 1024;
       micro += std::max<uint64_t>(1, std::bit_floor(micro) / 4)) {
    const auto sequences = static_cast<int64_t>(micro);  // 1 to 8, 10, 12, 14, 16, 20, ...
    if (micro > 1 && sequences > space.most_micro_step_tokens / seq_len) break;
    space.micro_batches.push_back(sequences);
  }
  for (int64_t accum = 1; accum <= 4096; accum *= 2) space.grad_accums.push_back(accum);
  const int64_t tokens = std::min(kDefaultStepTokens, space.gpus.back() * kDefaultGpuTokens);
  space.max_step_sequences = std::max<int64_t>(1, tokens / seq_len);
}

std::string StageLabel(const Candidate& candidate) {
  return StageLabel(candidate.stage, candidate.grouping);
}

int InexactnessOf(const Candidate& candidate) {
  constexpr int kMostOfStates = 16;
  return Inexactness(candidate.products) * kMostOfStates + Inexactness(candidate.states);
}

bool Offloads(const Candidate& candidate) {
  return candidate.optimizer.device != OffloadDevice::kNone ||
         candidate.param != OffloadDevice::kNone;
}

TrainSetup SetupOf(const Candidate& candidate, const TrainSetup& base) {
  TrainSetup setup = base;
  setup.batch.world_size = candidate.gpus;
  setup.batch.sequence_ranks = candidate.sequence_ranks;
  setup.batch.micro_batch = candidate.micro_batch;
  setup.batch.grad_accum = candidate.grad_accum;
  setup.recompute = candidate.recompute;
  setup.precision.master_weights = candidate.states.masters;
  setup.precision.moment_dtype = candidate.states.moments;
  SetProducts(candidate.products, setup.precision);
  ZeroConfig& zero = setup.zero;
  zero.stage = candidate.stage;
  zero.shard_group = candidate.grouping.ranks;
  zero.across_stage = candidate.grouping.across_stage;
  zero.offload_optimizer.device = candidate.optimizer.device;
  zero.offload_optimizer.ratio = candidate.optimizer.ratio;
  zero.offload_param.device = candidate.param;
  zero.reduce_bucket_elements = candidate.buckets.reduce;
  zero.prefetch_bucket_elements = candidate.buckets.prefetch;
  zero.param_persistence_threshold = candidate.gathering.persistence_threshold;
  zero.max_live_parameters = candidate.gathering.max_live_parameters;
  zero.max_reuse_distance = candidate.gathering.max_reuse_distance;
  zero.sub_group_elements = candidate.sub_group_elements;
  if (!candidate.pin_memory) UsePageableMemory(zero);
  return setup;
}

Candidate CandidateOf(const TrainSetup& setup) {
  const ZeroConfig& zero = setup.zero;
  Candidate candidate;
  candidate.gpus = setup.batch.world_size;
  candidate.sequence_ranks = setup.batch.sequence_ranks;
  candidate.stage = zero.stage;
  if (Hybrid(setup)) candidate.grouping = {zero.shard_group, zero.across_stage};
  candidate.optimizer = {zero.offload_optimizer.device, zero.offload_optimizer.ratio};
  candidate.param = zero.offload_param.device;
  candidate.recompute = setup.recompute;
  candidate.states = StatesOf(setup.precision);
  candidate.products = ProductsOf(setup.precision);
  candidate.buckets = {zero.reduce_bucket_elements, zero.prefetch_bucket_elements};
  candidate.gathering = {zero.param_persistence_threshold, zero.max_live_parameters,
                         zero.max_reuse_distance};
  candidate.sub_group_elements = zero.sub_group_elements;
  candidate.pin_memory = PinsMemory(zero);
  candidate.micro_batch = setup.batch.micro_batch;
  candidate.grad_accum = setup.batch.grad_accum;
  return candidate;
}

std::vector<BatchPair> BatchPairs(const SearchSpace& space, int data_ranks) {
  std::vector<BatchPair> pairs;
  for (int64_t micro : space.micro_batches) {
    for (int64_t accum : space.grad_accums) {
      const auto sequences = static_cast<__int128>(micro) * accum * data_ranks;
      const bool fits = space.global_batch ? sequences == *space.global_batch
                                           : sequences <= space.max_step_sequences ||
                                                 (micro == space.micro_batches.front() &&
                                                  accum == space.grad_accums.front());
      if (fits) pairs.push_back({micro, accum});
    }
  }
  return pairs;
}

bool AnyBatch(const SearchSpace& space) {
  return std::any_of(space.gpus.begin(), space.gpus.end(), [&](int gpus) {
    return std::any_of(space.sequence_ranks.begin(), space.sequence_ranks.end(), [&](int shared) {
      return gpus % shared == 0 && !BatchPairs(space, gpus / shared).empty();
    });
  });
}

std::vector<Candidate> Groups(const SearchSpace& space) {
  std::vector<Candidate> groups;
  Candidate c;
  bool gathers = false;
  // Where a dimension makes no difference, its first value stands for all.
  // Groups that nobody asked for go without what only tunes them: parameters that stay, buckets
  // below a layer.
  const auto tunes = [&] { return c.grouping.ranks == 0 || space.grouping_fixed; };
  auto each_gathering = [&] {
    for (const Gathering& gathering : space.gathering) {
      c.gathering = gathering;
      for (const uint64_t sub_group : space.sub_group_elements) {
        c.sub_group_elements = sub_group;
        groups.push_back(c);
        if (c.optimizer.device != OffloadDevice::kNvme) break;
      }
      if (!gathers || !tunes()) break;
    }
  };
  auto each_bucket = [&] {
    std::vector<Buckets> seen;
    for (const Buckets& buckets : space.buckets) {
      c.buckets = buckets;
      if (c.gpus == 1) c.buckets.reduce = space.buckets.front().reduce;
      if (!gathers) c.buckets.prefetch = space.buckets.front().prefetch;
      if (std::find(seen.begin(), seen.end(), c.buckets) != seen.end()) continue;
      seen.push_back(c.buckets);
      const bool ends = &buckets == &space.buckets.front() || &buckets == &space.buckets.back();
      if (ends || tunes()) each_gathering();
    }
  };
  auto each_pinning = [&] {
    for (const bool pin_memory : space.pin_memory) {
      c.pin_memory = pin_memory || !Offloads(c);
      const TrainSetup setup = SetupOf(c, {});
      gathers = ParamsSharded(setup);
      if (CanRun(setup.zero)) each_bucket();
      if (!Offloads(c)) break;
    }
  };
  auto each_offload = [&] {
    for (const OptimizerOffload& optimizer : space.offload_optimizer) {
      for (OffloadDevice param : space.offload_param) {
        c.optimizer = optimizer;
        c.param = param;
        if (!tunes() && Offloads(c) && !OffloadsInGroups(c, space)) continue;
        for (const RecomputeConfig& recompute : space.recompute) {
          c.recompute = recompute;
          for (const StatesKind& states : space.states) {
            c.states = states;
            for (const ProductsKind& products : space.products) {
              c.products = products;
              each_pinning();
            }
          }
        }
      }
    }
  };
  const auto each_stage = [&] {
    for (int stage : space.stages) {
      for (const Grouping& grouping : space.groupings) {
        const int ranks = grouping.ranks;
        if (ranks >= c.gpus || (ranks > 0 && c.gpus % ranks != 0)) continue;
        c.stage = stage;
        c.grouping = grouping;
        each_offload();
      }
    }
  };
  for (int gpus : space.gpus) {
    for (int shared : space.sequence_ranks) {
      if (gpus % shared != 0) continue;
      c.gpus = gpus;
      c.sequence_ranks = shared;
      each_stage();
    }
  }
  return groups;
}

uint64_t CountCandidates(const SearchSpace& space) {
  uint64_t count = 0;
  int ranks = 0;
  uint64_t pairs = 0, mixes = 0;
  for (const auto& members : space.mixes) mixes += members.size();
  for (const Candidate& group : Groups(space)) {
    if (group.data_ranks() != ranks) {
      ranks = group.data_ranks();
      pairs = BatchPairs(space, ranks).size();
    }
    count += pairs * (1 + (CarriesMixes(group, space) ? mixes : 0));
  }
  return count;
}

double OtherLink::present() const {
  return network ? hardware->network->bandwidth_per_node.value : hardware->node.gpu_link.value;
}

double OtherLink::Typed(double rate) const {
  const FigureRule& rule = network ? figure_rules::kNetworkBandwidth : figure_rules::kLink;
  const double unit = network ? 1e9 / 8 : 1e9;
  const double inside = std::clamp(rate, rule.low, rule.high);
  return std::strtod(fmt::format("{:.3g}", inside / unit).c_str(), nullptr) * unit;
}

HardwareProfile OtherLink::Profile(double rate) const {
  HardwareProfile other = *hardware;
  if (network) {
    ApplyNetwork(other, fmt::format("{:.0f}b", rate * 8));
  } else {
    ApplyGpuLink(other, fmt::format("{:.0f}B", rate));
  }
  return other;
}

std::string_view ObjectiveName(Objective objective) {
  switch (objective) {
    case Objective::kThroughput:
      return "throughput";
    case Objective::kHeadroom:
      return "headroom";
    case Objective::kFewestGpus:
      return "fewest-gpus";
  }
  return "?";
}

}  // namespace zeroplan
