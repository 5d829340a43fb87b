// The choices that a search considers.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/model/model_spec.h"
#include "core/settings/zero_config.h"
#include "planner/estimate/choices.h"

namespace zeroplan {

class Runtime;  // planner/runtime.h

struct OptimizerOffload {
  OffloadDevice device = OffloadDevice::kNone;
  double ratio = 1;  // below 1 with the CPU only

  auto operator<=>(const OptimizerOffload&) const = default;
};

// Elements of one collective.
struct Buckets {
  uint64_t reduce = kAuto;    // gradients; kAuto: one layer
  uint64_t prefetch = kAuto;  // parameters, stage 3; kAuto: one unit ahead

  auto operator<=>(const Buckets&) const = default;
};

// Stage 3: which parameters stay whole, and for how long.
struct Gathering {
  uint64_t persistence_threshold = ZeroConfig{}.param_persistence_threshold;
  uint64_t max_live_parameters = kAuto;
  uint64_t max_reuse_distance = 0;

  auto operator<=>(const Gathering&) const = default;
};

// Every list has at least one entry. The space is their Cartesian product, without combinations
// that cannot run (optimizer offload at stage 0, parameter offload below stage 3) and without those
// that make no difference (reduce buckets of one GPU, prefetch and the like where nothing is
// gathered).
struct SearchSpace {
  std::vector<int> gpus = {1};  // rising
  // GPUs that share each sequence, rising. Entries that suit no number of GPUs are left out.
  std::vector<int> sequence_ranks = {1};
  bool sequence_ranks_fixed = false;  // set by the user
  std::vector<int> stages = {0, 1, 2, 3};
  // Shard groups that tile nodes. Entries that suit no number of GPUs or no stage are left out.
  // Groups that the user did not set combine with the first gathering and with the first and last
  // buckets only; with something offloaded (to hosts, states in halves) only groups of `node_ranks`
  // are in the space.
  std::vector<Grouping> groupings = {{}};
  bool grouping_fixed = false;  // set by the user
  int node_ranks = 0;
  std::vector<OptimizerOffload> offload_optimizer;
  std::vector<OffloadDevice> offload_param;
  std::vector<RecomputeConfig> recompute;
  // Further recomputes of zeroplan's own programs (AddMixes). In each list a number of layers is
  // open: each member keeps less on the GPU than the one before, and its step is longer. Mixes
  // combine with the first of buckets, gatherings and sub-groups, and otherwise with whatever the
  // first of `recompute` without segments of several layers combines with.
  std::vector<std::vector<RecomputeConfig>> mixes;
  std::vector<StatesKind> states = {{}};
  bool states_fixed = false;  // the user set them, or which are allowed
  std::vector<ProductsKind> products = {{}};
  bool products_fixed = false;  // the user set `products`, or which are allowed
  std::vector<Buckets> buckets;
  std::vector<Gathering> gathering;          // stage 3
  std::vector<uint64_t> sub_group_elements;  // states on disk
  // Whether offloaded states are staged in page-locked memory; both where page-locked memory may be
  // too small.
  std::vector<uint8_t> pin_memory = {true};

  // Sequences a GPU (or group of GPUs that share them) and micro-step, and micro-steps a step; both
  // rising. With `global_batch` only pairs whose product with the number of GPUs (or groups) equals
  // it; else pairs of at most `max_step_sequences` (but the smallest pair always).
  std::vector<int64_t> micro_batches, grad_accums;
  std::optional<int64_t> global_batch;
  int64_t max_step_sequences = 0;
  int64_t most_micro_step_tokens = int64_t{1} << 26;  // MostMicroStepTokens of the model
  // The user set them, so that they hold for other batches too.
  bool micro_batch_fixed = false, grad_accum_fixed = false;
};

// All choices of zeroplan for `model` on up to `gpus` GPUs: all stages and offloads, ratios of a
// tenth, selective recompute and recompute of segments that divide the layers, buckets of a part of
// a layer, of one and of 4 with a prefetch of 1, 2 or 4 units, small tensors whole on every GPU or
// not, parameters gathered for each use or once a micro-step, and swapping by 16 or 64 million
// elements. On several nodes shard groups of half a node (of 8 GPUs or more), a node, 2, 4 and 8
// nodes, with each state that groups may share. GPUs used: `gpus` alone, or with `fewer_gpus` the
// powers of two below it and the multiples of a node too. Batch: see DefaultBatches.
SearchSpace DefaultSpace(const ModelSpec& model, int gpus, int gpus_per_node, bool fewer_gpus);

// Fills the mixes of a space: selective, "products" or full recompute of the first n layers,
// for every n, and none or selective above; each kind with the activations of that many layers on
// the host, in steps of an eighth and of five at most; each kind, and selective and "products"
// recompute of a quarter, a half and three quarters of the layers, with the activations of all but
// the last layer on the host.
void AddMixes(int64_t layers, SearchSpace& space);
// Adds choices of zeroplan's own programs beyond DefaultSpace: recompute of "products", and mixes.
void AddHomes(int64_t layers, SearchSpace& space);
// `recompute` with the number of layers that a list of mixes leaves open set to 1.
RecomputeConfig MixOf(RecomputeConfig recompute);
// The numbers of GPUs that may share sequences of this many tokens (Runtime::SequenceProblem),
// rising from 1, up to `gpus`.
std::vector<int> SequenceRanksOf(const Runtime& runtime, const ModelSpec& model, int64_t seq_len,
                                 int gpus);

// The most tokens of a GPU and micro-step. A program has some instructions a chunk of logits:
// beyond this it would be lowered for minutes and need gigabytes, for a micro-step that no GPU
// holds. 2^26, and fewer if a vocabulary is so large that 2^26 tokens are more than 2^16 chunks.
int64_t MostMicroStepTokens(const ModelSpec& model);
// Throws Error(kUsage) naming ⟦micro_batch⟧ or ⟦seq_len⟧ if there are more than `most` tokens.
void CheckMicroBatch(int64_t micro_batch, int64_t seq_len, int64_t most);

// Fills the batch of `space`. With a global batch: its divisors; none past most_micro_step_tokens.
// Without: micro-batches from 1 to 1024 in steps of at most a half, four to an octave; accumulation
// by powers of two, in steps of at most kDefaultGpuTokens tokens of each GPU and kDefaultStepTokens
// of all. REQUIRES: the space's GPUs.
void SetBatches(SearchSpace& space, std::optional<int64_t> global_batch, int64_t seq_len);

// 16 sequences of 4096, as one card is tuned with (assumed); and the smallest batch of the GPT-3
// paper (Brown et al. 2020, table 2.1): 0.5M tokens.
inline constexpr int64_t kDefaultGpuTokens = 65'536, kDefaultStepTokens = 524'288;

// One choice. The search's base supplies the settings of a TrainSetup that it leaves open.
struct Candidate {
  int gpus = 1;
  int sequence_ranks = 1;  // as in BatchSpec
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
  bool pin_memory = true;  // false: offloaded states are in pageable memory
  int64_t micro_batch = 1, grad_accum = 1;

  int data_ranks() const { return gpus / sequence_ranks; }
  // Ranks that share the states that the stage shards: 1 at stage 0.
  int RanksOfGroup() const { return stage == 0 ? 1 : grouping.ranks == 0 ? gpus : grouping.ranks; }
  auto operator<=>(const Candidate&) const = default;
};

// "stage 3 in groups of 8, optimizer over all".
std::string StageLabel(const Candidate& candidate);

// Inexactness of its matmuls, then of its states: 0 if both are exact, higher is less exact.
int InexactnessOf(const Candidate& candidate);

// Whether states or parameters are on the host or on disk.
bool Offloads(const Candidate& candidate);

TrainSetup SetupOf(const Candidate& candidate, const TrainSetup& base);
// The candidate that SetupOf would turn into `setup`.
Candidate CandidateOf(const TrainSetup& setup);

// Pairs of micro-batch and accumulation for `data_ranks` GPUs, or groups of GPUs that share
// sequences, by rising micro-batch.
struct BatchPair {
  int64_t micro_batch, grad_accum;
};
std::vector<BatchPair> BatchPairs(const SearchSpace& space, int data_ranks);
// Whether any of the space's GPUs and sequence ranks have such a pair.
bool AnyBatch(const SearchSpace& space);

// Whether mixes combine with a group.
bool CarriesMixes(const Candidate& group, const SearchSpace& space);

// Every choice without its batch (left at 1 x 1) and mixes: the settings that determine the form of
// its memory.
std::vector<Candidate> Groups(const SearchSpace& space);

// Groups and their mixes times their batches.
uint64_t CountCandidates(const SearchSpace& space);

}  // namespace zeroplan
