// What a search may choose from.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/config/zero_config.h"
#include "core/model/model_spec.h"
#include "planner/estimate/choices.h"

namespace zeroplan {

class Runtime;  // planner/runtime.h

struct OptimizerOffload {
  OffloadDevice device = OffloadDevice::kNone;
  double ratio = 1;  // below 1 with the CPU only

  auto operator<=>(const OptimizerOffload&) const = default;
};

// Elements that one collective takes.
struct Buckets {
  uint64_t reduce = kAuto;    // of gradients; kAuto: one layer
  uint64_t prefetch = kAuto;  // of parameters, stage 3; kAuto: one unit ahead

  auto operator<=>(const Buckets&) const = default;
};

// Stage 3: what of the parameters stays whole, for how long.
struct Gathering {
  uint64_t persistence_threshold = ZeroConfig{}.param_persistence_threshold;
  uint64_t max_live_parameters = kAuto;
  uint64_t max_reuse_distance = 0;

  auto operator<=>(const Gathering&) const = default;
};

// Every list has at least one entry. The space is their product, without what cannot run
// (optimizer offload at stage 0, parameter offload below stage 3) and without what makes no
// difference (reduce buckets of one GPU, prefetch and the like where nothing is gathered).
struct SearchSpace {
  std::vector<int> gpus = {1};  // rising
  // GPUs that share each sequence, rising. What goes with no number of GPUs is left out.
  std::vector<int> sequence_ranks = {1};
  bool sequence_ranks_fixed = false;  // the user said them
  std::vector<int> stages = {0, 1, 2, 3};
  // Shard groups that tile nodes. What goes with no number of GPUs or no stage is left out. Those
  // that nobody asked for have of gatherings the first, of buckets the first and the last; and with
  // something offloaded (to hosts, states in halves) only groups of `node_ranks` are there.
  std::vector<Grouping> groupings = {{}};
  bool grouping_fixed = false;  // the user set them
  int node_ranks = 0;
  std::vector<OptimizerOffload> offload_optimizer;
  std::vector<OffloadDevice> offload_param;
  std::vector<RecomputeConfig> recompute;
  // What zeroplan's own programs have besides (AddMixes). Of each list a number of layers is open:
  // from one member to the next less is kept on the GPU, and a step takes longer. They go with the
  // first of buckets, gatherings and sub-groups, and else with what the first of `recompute`
  // without segments of several layers goes with.
  std::vector<std::vector<RecomputeConfig>> mixes;
  std::vector<StatesKind> states = {{}};
  bool states_fixed = false;  // the user said them, or which are allowed
  std::vector<ProductsKind> products = {{}};
  bool products_fixed = false;  // the same of these
  std::vector<Buckets> buckets;
  std::vector<Gathering> gathering;          // stage 3
  std::vector<uint64_t> sub_group_elements;  // states on disk
  // Whether what is offloaded is staged in page-locked memory; both where that may be too little.
  std::vector<uint8_t> pin_memory = {true};

  // Sequences a GPU (or GPUs that share them) and micro-step, and micro-steps a step; both rising.
  // With `global_batch` only pairs whose product with the GPUs (or groups of these) is that; else
  // those of at most `max_step_sequences` (but the smallest pair always).
  std::vector<int64_t> micro_batches, grad_accums;
  std::optional<int64_t> global_batch;
  int64_t max_step_sequences = 0;
  int64_t most_micro_step_tokens = int64_t{1} << 26;  // MostMicroStepTokens of the model
  // Whether the user set them, so that they hold for other batches too.
  bool micro_batch_fixed = false, grad_accum_fixed = false;
};

// All that zeroplan chooses from for `model` on up to `gpus` GPUs: all stages and offloads, ratios
// of a tenth, selective recompute and that of segments that divide the layers, buckets of a part of
// a layer, of one and of 4 with a prefetch of 1, 2 or 4 units, small tensors whole on every GPU or
// not, parameters gathered for each use or once a micro-step, and swapping by 16 or 64 million
// elements. On several nodes shard groups of half a node (of 8 GPUs or more), a node, 2, 4 and 8
// nodes, with each of what groups share. GPUs used: `gpus` alone, or with
// `fewer_gpus` the powers of two below it and the multiples of a node too. Batch: see
// DefaultBatches.
SearchSpace DefaultSpace(const ModelSpec& model, int gpus, int gpus_per_node, bool fewer_gpus);

// Fills the mixes of a space: selective, products or full of the first n layers, for every n, and
// none or selective above; each kind with the activations of so many layers on the host, in steps
// of an eighth and of five at most; each kind, and selective and products of a quarter, a half and
// three quarters of the layers, with those of all but the last one there.
void AddMixes(int64_t layers, SearchSpace& space);
// What zeroplan's own programs have beside DefaultSpace: of recompute that of products, and mixes.
void AddHomes(int64_t layers, SearchSpace& space);
// The number of layers that a list of mixes leaves open set to 1.
RecomputeConfig MixOf(RecomputeConfig recompute);
// How many GPUs may share sequences of so many tokens (Runtime::SequenceProblem), rising from 1; of
// up to `gpus`.
std::vector<int> SequenceRanksOf(const Runtime& runtime, const ModelSpec& model, int64_t seq_len,
                                 int gpus);

// A program has some instructions a chunk of logits: past this many tokens of a GPU and micro-step
// it takes minutes and gigabytes to lower, for a micro-step that no GPU holds. 2^26, and fewer
// where a vocabulary is so large that these are more than 2^16 chunks.
int64_t MostMicroStepTokens(const ModelSpec& model);
// Throws Error(kUsage) naming ⟦micro_batch⟧ or ⟦seq_len⟧ where there are more than `most`.
void CheckMicroBatch(int64_t micro_batch, int64_t seq_len, int64_t most);

// Fills the batch of `space`. With a global batch: its divisors; none past most_micro_step_tokens.
// Without: micro-batches from 1 to 1024 in steps of at most a half, four to an octave; accumulation
// by powers of two, in steps of at most kDefaultGpuTokens tokens of each GPU and kDefaultStepTokens
// of all. REQUIRES: the space's GPUs.
void SetBatches(SearchSpace& space, std::optional<int64_t> global_batch, int64_t seq_len);

// 16 sequences of 4096, as one card is tuned with (assumed); and the smallest batch that the GPT-3
// paper trains with (Brown et al. 2020, table 2.1): 0.5M tokens.
inline constexpr int64_t kDefaultGpuTokens = 65'536, kDefaultStepTokens = 524'288;

// One choice; what its batch leaves open of a TrainSetup comes from the search's base.
struct Candidate {
  int gpus = 1;
  int sequence_ranks = 1;  // BatchSpec's
  int stage = 0;
  Grouping grouping;
  OptimizerOffload optimizer;
  OffloadDevice param = OffloadDevice::kNone;
  RecomputeConfig recompute;
  StatesKind states;
  ProductsKind products;
  Buckets buckets;
  Gathering gathering;
  uint64_t sub_group_elements = ZeroConfig{}.sub_group_elements;
  bool pin_memory = true;  // false: what is offloaded is pageable
  int64_t micro_batch = 1, grad_accum = 1;

  int data_ranks() const { return gpus / sequence_ranks; }
  // Ranks that share what the stage shards: 1 at stage 0.
  int RanksOfGroup() const { return stage == 0 ? 1 : grouping.ranks == 0 ? gpus : grouping.ranks; }
  auto operator<=>(const Candidate&) const = default;
};

// "stage 3 in groups of 8, optimizer over all".
std::string StageLabel(const Candidate& candidate);

// How exact its products are, then its states: 0 where both are, the more the less exact.
int InexactnessOf(const Candidate& candidate);

// Whether states or parameters are on the host or on disk.
bool Offloads(const Candidate& candidate);

TrainSetup SetupOf(const Candidate& candidate, const TrainSetup& base);
// What SetupOf took from a candidate.
Candidate CandidateOf(const TrainSetup& setup);

// Pairs of micro-batch and accumulation for so many GPUs, or groups of these that share sequences,
// by rising micro-batch.
struct BatchPair {
  int64_t micro_batch, grad_accum;
};
std::vector<BatchPair> BatchPairs(const SearchSpace& space, int data_ranks);
// Whether any of the space's GPUs and sequence ranks have such a pair.
bool AnyBatch(const SearchSpace& space);

// Whether mixes go with a group.
bool CarriesMixes(const Candidate& group, const SearchSpace& space);

// Every choice but for its batch (which is left at 1 x 1) and mixes: what shares memory's shape.
std::vector<Candidate> Groups(const SearchSpace& space);

// Groups and their mixes times their batches.
uint64_t CountCandidates(const SearchSpace& space);

}  // namespace zeroplan
