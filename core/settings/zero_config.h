// How a model is trained: ZeRO stage, offload, buckets, recompute, precision, batch and optimizer.
// Field names follow DeepSpeed's keys. Each field states its default, its unit and its effect.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/dtype.h"
#include "core/base/words.h"

namespace zeroplan {

enum class OffloadDevice : uint8_t { kNone, kCpu, kNvme };
template <>
inline constexpr WordTable<OffloadDevice, 3> kWords<OffloadDevice> = {
    {{"none", OffloadDevice::kNone}, {"cpu", OffloadDevice::kCpu}, {"nvme", OffloadDevice::kNvme}}};
inline std::string_view OffloadDeviceName(OffloadDevice device) { return WordOf(device); }

// Names what shard groups partition among one another (ZeroConfig::across_stage).
inline constexpr WordTable<int, 3> kAcrossWords = {
    {{"replicate", 0}, {"optimizer", 1}, {"gradients", 2}}};
inline std::string_view AcrossName(int across_stage) { return WordFor(kAcrossWords, across_stage); }

inline constexpr uint64_t kUnlimited = std::numeric_limits<int64_t>::max();
// "Let zeroplan choose": see each field.
inline constexpr uint64_t kAuto = std::numeric_limits<uint64_t>::max();

struct ZeroConfig {
  // 0: nothing is partitioned; 1: optimizer states; 2: gradients too; 3: parameters too.
  int stage = 0;

  // Hybrid sharding: ranks of a shard group, neighbours in rank order. What the stage partitions is
  // partitioned among them, and the groups hold replicas of it. At least 2, a divisor of the ranks;
  // 0, or as many as there are: all ranks are one group. DeepSpeed's mics_shard_size and
  // zero_hpz_partition_size.
  int shard_group = 0;
  // What the groups partition among one another, too, as a stage: 0 nothing; 1 optimizer states,
  // whose new parameters are gathered over the groups after the step; 2 gradients too, which are
  // then reduced over the groups in every micro-step. Needs a shard group of fewer ranks than all.
  int across_stage = 0;

  // Elements of gradient reduced by one collective at stages 1-3 (and all-reduced at stage 0).
  // Larger: fewer collectives, more memory at stages 2 and 3. A tensor larger than the bucket is
  // reduced alone. kAuto: the largest layer, at least 8e6. DeepSpeed's default is 5e8.
  uint64_t reduce_bucket_elements = kAuto;
  // Elements gathered by one collective after the optimizer step, stages 1 and 2. Default 5e8.
  uint64_t allgather_bucket_elements = 500'000'000;
  // Stages 2 and 3. true: gradients of a unit lie in one buffer; false: one buffer and collective a
  // tensor.
  bool contiguous_gradients = true;
  // true: reduce-scatter; false: all-reduce and keep the own shard (more bytes sent).
  bool reduce_scatter = true;
  // true: one all-gather a bucket after the step; false: a broadcast from each owner (stages 1, 2).
  bool allgather_partitions = true;
  // Reductions run behind the backward pass with a second bucket, gathers ahead of their use. Off:
  // each collective is waited for where it is issued. Default: on (DeepSpeed: on at stage 3 only).
  bool overlap_comm = true;

  // Stage 3. Elements gathered ahead of their use; a whole unit (layer) at a time, at least the
  // next one if > 0. 0: gathered when needed. kAuto: one unit ahead.
  uint64_t prefetch_bucket_elements = kAuto;
  // Stage 3. Tensors of at most this many elements are kept whole on every rank.
  uint64_t param_persistence_threshold = 100'000;
  // Stage 3. At most this many elements are kept whole, taken in table order.
  uint64_t model_persistence_threshold = kUnlimited;
  // Stage 3. Elements that may be gathered at once, persistent ones apart; a unit larger than this
  // is gathered alone. Where two layers are more than this, no gather runs ahead of its use. kAuto:
  // 1e9, DeepSpeed's default, or what the units in use and gathered ahead take
  // (LiveParameterLimit).
  uint64_t max_live_parameters = kAuto;
  // Stage 3. A gathered unit is kept for its next use if at most this many elements of other units
  // are used in between. zeroplan's default 0 (always released); DeepSpeed's is 1e9.
  uint64_t max_reuse_distance = 0;

  // Stage 3. true: gathers send parameters as int8, 256 elements to an fp32 scale: half the bytes
  // of 16 bit. Every rank computes with the rounded parameters; master weights stay as they are, so
  // the numbers of a run change. Persistent parameters are gathered whole as before. Default: off.
  // DeepSpeed's zero_quantized_weights.
  bool quantized_weights = false;
  // Stage 3. true: gradients are reduced as int4, 256 elements to an fp32 scale: each rank sends
  // its parts, and who gets them sums them in fp32; with shard groups once within the group and
  // once over the groups. A quarter of the bytes of 16 bit, and gradients with four bits: the
  // numbers of a run change. Whole units are reduced at a time, also where they are larger than the
  // bucket. Needs contiguous_gradients and reduce_scatter. Default: off. DeepSpeed's
  // zero_quantized_gradients.
  bool quantized_gradients = false;

  struct OffloadOptimizer {
    OffloadDevice device = OffloadDevice::kNone;
    double ratio = 1.0;  // share of the optimizer's elements on the CPU, (0, 1]; rest stays on GPU
    bool pin_memory =
        true;  // transfer buffers page-locked (faster copies; memory that cannot be swapped)
    int buffer_count = 4;  // staging slots between host, disk and GPU
    // DeepSpeed's, of device nvme: files of the next sub-group are read, and those of the one
    // before are written, while a sub-group is updated. Default: neither.
    bool pipeline_read = false, pipeline_write = false;
    std::string nvme_path;  // folder of the swap file; to run with nvme (planning needs none)
    bool operator==(const OffloadOptimizer&) const = default;
  } offload_optimizer;
  struct OffloadParam {  // stage 3 only
    OffloadDevice device = OffloadDevice::kNone;
    bool pin_memory = true;
    int buffer_count = 5;                    // staging slots between disk and GPU
    uint64_t buffer_elements = 100'000'000;  // DeepSpeed's: of such a slot
    // How many elements of a rank's shards stay in host memory with nvme, first units first.
    uint64_t max_in_cpu_elements = 0;
    std::string nvme_path;
    bool operator==(const OffloadParam&) const = default;
  } offload_param;
  // Offloaded optimizer states are updated (and swapped, with nvme) this many elements at a time;
  // staging slots have this size. Larger: fewer, larger transfers and more host memory. Default
  // 2^24 (201 MB a slot of states); DeepSpeed's is 1e9.
  uint64_t sub_group_elements = 16'777'216;

  // Stages 2 and 3. true: states are updated in the backward pass of a step's last micro-step, each
  // unit's as soon as its gradient is whole and its parameters have been used. On the GPU, with one
  // micro-step, gradients are never all there at once; on the host the update runs beside the
  // backward pass. The norm of all gradients is not known then: no clipping, and a step whose
  // gradients are not finite ends the run, since what was updated cannot be taken back. Default:
  // off, and DeepSpeed has no such key.
  bool optimizer_in_backward = false;
  bool operator==(const ZeroConfig&) const = default;
};

// What the backward pass computes again of the forward's activations. What it does not is kept.
enum class RecomputeKind : uint8_t {
  kNone,       // nothing, all are kept
  kSelective,  // of each layer the outputs of norms, GELU and SwiGLU, from kept inputs;
               // products and attention never run twice
  kProducts,   // of each layer all but its input and what attention made, which never runs twice
  kFull,       // all but the inputs of segments of layers
};
template <>
inline constexpr WordTable<RecomputeKind, 4> kWords<RecomputeKind> = {
    {{"none", RecomputeKind::kNone},
     {"selective", RecomputeKind::kSelective},
     {"products", RecomputeKind::kProducts},
     {"full", RecomputeKind::kFull}}};
constexpr std::string_view RecomputeName(RecomputeKind kind) { return WordOf(kind); }
// Names RecomputeConfig::above.
inline constexpr WordTable<RecomputeKind, 2> kAboveWords = {
    {{"none", RecomputeKind::kNone}, {"selective", RecomputeKind::kSelective}}};

// What is kept of layers lies in host memory between their forward and their backward pass: copied
// behind the kernel that makes it, and back while layers above run backward.
struct ActivationHome {
  OffloadDevice device = OffloadDevice::kNone;  // kNone or kCpu (page-locked)
  // Of so many layers, which lie as evenly as can be among all but the last. 0: of all but the
  // last, whose backward pass comes right away.
  int layers = 0;

  // Whether what is kept of `layer`, of so many, goes there.
  bool Takes(int64_t layer, int64_t of_layers) const {
    if (device == OffloadDevice::kNone || layer + 1 >= of_layers) return false;
    return layers == 0 || layer * layers % (of_layers - 1) < layers;
  }
  auto operator<=>(const ActivationHome&) const = default;  // NOLINT(modernize-use-nullptr)
};

// Where what the backward pass needs of each layer's forward pass is meanwhile.
struct RecomputeConfig {
  RecomputeKind kind = RecomputeKind::kNone;
  // Layers of a segment: at least 1 with kFull (more than the model has: one segment), else 0.
  // Larger segments keep fewer inputs and hold more while one is computed again.
  int every = 0;
  // `kind` is of the first so many layers; 0: of all. What is computed again is large for a layer's
  // time, so the first layers, whose backward pass runs last, are those which take no room then.
  int layers = 0;
  // Of the layers from `layers` on: kNone or kSelective, less than `kind`.
  RecomputeKind above = RecomputeKind::kNone;
  ActivationHome offload;

  RecomputeKind KindOf(int64_t layer) const { return layers == 0 || layer < layers ? kind : above; }
  auto operator<=>(const RecomputeConfig&) const = default;  // NOLINT(modernize-use-nullptr)
};
inline constexpr RecomputeConfig kNoRecompute{};
inline constexpr RecomputeConfig kSelectiveRecompute{RecomputeKind::kSelective};
inline constexpr RecomputeConfig kProductsRecompute{RecomputeKind::kProducts};
constexpr RecomputeConfig FullRecompute(int every = 1) { return {RecomputeKind::kFull, every}; }

// Names the kind of the first layers.
inline std::string_view RecomputeName(const RecomputeConfig& recompute) {
  return RecomputeName(recompute.kind);
}
// The same in which `layers` and offloaded layers that a model of so many layers has anyway are 0.
RecomputeConfig OfModel(RecomputeConfig recompute, int64_t layers);

// What a run of 16 bits keeps of each parameter for its updates.
enum class MasterWeights : uint8_t {
  kFp32,   // an fp32 number beside the parameter
  kSplit,  // the same number in two halves, of which the parameter is one where both lie in one
           // memory (core/base/split_master.h): 2 bytes less, nothing lost. bf16 alone
  kParam,  // the parameter's own 16 bits, rounded stochastically
};
// The last two words are accepted in runs of that dtype.
template <>
inline constexpr WordTable<MasterWeights, 5> kWords<MasterWeights> = {
    {{"fp32", MasterWeights::kFp32},
     {"split", MasterWeights::kSplit},
     {"16bit", MasterWeights::kParam},
     {"bf16", MasterWeights::kParam},
     {"fp16", MasterWeights::kParam}}};
inline std::string_view MasterWeightsName(MasterWeights masters) { return WordOf(masters); }
// The value of a word in a run of `dtype`.
std::optional<MasterWeights> ParseMasterWeights(std::string_view name, Dtype dtype);
// Names PrecisionConfig::moment_dtype.
inline constexpr WordTable<Dtype, 3> kMomentWords = {
    {{"fp32", Dtype::kF32}, {"bf16", Dtype::kBF16}, {"8bit", Dtype::kDynamic8}}};
inline std::string_view MomentsName(Dtype moments) { return WordFor(kMomentWords, moments); }

// How eight bits stand for a tensor of a product (core/base/fp8.h).
enum class Fp8Recipe : uint8_t {
  kTensor,  // one scale, from the tensor's largest magnitude
  kBlocks,  // a scale a block: 1 x 128 of activations and gradients, 128 x 128 of weights
};
template <>
inline constexpr WordTable<Fp8Recipe, 2> kWords<Fp8Recipe> = {
    {{"tensor", Fp8Recipe::kTensor}, {"blocks", Fp8Recipe::kBlocks}}};
inline std::string_view Fp8RecipeName(Fp8Recipe recipe) { return WordOf(recipe); }
// Names Fp8Config::gradients.
inline constexpr WordTable<Dtype, 2> kFp8GradientWords = {
    {{"e4m3", Dtype::kE4M3}, {"e5m2", Dtype::kE5M2}}};

// Products of eight bits: those of the layers' linears, forward, of the gradient of their input and
// of that of their weights. Scales come from the numbers at hand. Embedding, head, norms,
// attention, master weights and reductions stay as they are. Needs sides and tokens of a micro-step
// that are multiples of 16, with blocks of 128; other products stay in PrecisionConfig::dtype.
struct Fp8Config {
  bool enabled = false;
  Fp8Recipe recipe = Fp8Recipe::kTensor;
  // What gradients of activations are rounded to: kE4M3, or kE5M2, whose range is wider and whose
  // steps are twice as large.
  Dtype gradients = Dtype::kE4M3;
  // Whether the products for gradients keep sums of fewer bits while they multiply, as the forward
  // products do: faster on Hopper, and less exact by less than what eight bits lose.
  bool fast_gradients = true;
  // Linears whose smaller side is below this stay in PrecisionConfig::dtype: what rounding them
  // costs is more than what small products gain.
  int64_t least_side = 0;
  bool operator==(const Fp8Config&) const = default;
};

struct PrecisionConfig {
  Dtype dtype = Dtype::kBF16;  // compute and parameter dtype: kBF16, kF16 or kF32
  // Where gradients of several micro-steps are summed: the compute dtype or kF32.
  Dtype grad_accum_dtype = Dtype::kBF16;
  // DeepSpeed's communication_data_type fp32: gradients of several ranks are reduced in kF32, then
  // rounded to grad_accum_dtype. Twice the bytes of 16 bit in the buckets and on the wire, for sums
  // over ranks that are not rounded on the way. Default false: reduced in the dtype they have.
  bool fp32_reduction = false;
  // kParam is DeepSpeed's bf16_master_weights_and_grads and fp16_master_weights_and_grads, which
  // rounds to nearest. No effect in fp32, where parameters are masters.
  MasterWeights master_weights = MasterWeights::kFp32;
  // What Adam's moments are kept in: kF32; kBF16, the second rounded stochastically, DeepSpeed's
  // bf16_optimizer_states; kDynamic8, eight bits (core/base/dynamic8.h).
  Dtype moment_dtype = Dtype::kF32;
  Fp8Config fp8;

  // fp16 loss scaling. loss_scale 0: dynamic.
  double loss_scale = 0;
  int initial_scale_power = 16;         // first dynamic scale is 2^this
  int loss_scale_window = 1000;         // good steps before the scale doubles
  int hysteresis = 2;                   // overflows tolerated before the scale halves
  bool consecutive_hysteresis = false;  // refill hysteresis at each good step
  double min_loss_scale = 1;
  bool operator==(const PrecisionConfig&) const = default;
};

struct BatchSpec {
  int64_t micro_batch = 1;  // sequences per rank (or ranks that share them) and micro-step, B
  int64_t grad_accum = 1;   // micro-steps per optimizer step, g
  int world_size = 1;       // ranks, N
  int64_t seq_len = 1024;   // tokens per sequence, T
  // So many ranks that follow one another share each sequence: each has T/S of its tokens, and in
  // attention 1/S of its heads (Jacobs et al. 2023, "DeepSpeed Ulysses", arXiv 2309.14509). A
  // divisor of world_size, seq_len and the query heads. What ZeRO partitions is partitioned among
  // all ranks all the same. DeepSpeed's sequence_parallel_size. Default 1.
  int sequence_ranks = 1;
  // Tokens of a sequence that a rank has.
  constexpr int64_t local_seq() const { return seq_len / sequence_ranks; }
  // How many ranks, or groups of ranks that share sequences, have sequences of their own.
  constexpr int data_ranks() const { return world_size / sequence_ranks; }
  constexpr int64_t global_batch() const { return micro_batch * grad_accum * data_ranks(); }
  bool operator==(const BatchSpec&) const = default;
};

enum class ScheduleKind : uint8_t {
  kConstant,
  kWarmup,
  kWarmupDecay,
  kWarmupCosine,
  kOneCycle,
  kRangeTest,
  kOfRun  // of `train` itself, see RunScheduleConfig; no DeepSpeed config says it
};

enum class DecayShape : uint8_t { kConstant, kLinear, kCosine };
template <>
inline constexpr WordTable<DecayShape, 3> kWords<DecayShape> = {
    {{"constant", DecayShape::kConstant},
     {"linear", DecayShape::kLinear},
     {"cosine", DecayShape::kCosine}}};
inline std::string_view DecayShapeName(DecayShape shape) { return WordOf(shape); }

// What `train --lr-schedule` makes: a warm-up as a share of the run, then lr itself, or a decay
// over the rest of it. The formulas are those of transformers' get_constant_schedule_with_warmup,
// get_linear_schedule_with_warmup and get_cosine_with_min_lr_schedule_with_warmup.
struct RunScheduleConfig {
  DecayShape shape = DecayShape::kConstant;
  // Share of the run's steps, rounded up; warmup_steps is made of it once their number is known.
  double warmup_share = 0;
  int64_t warmup_steps = 0;
  double min_ratio = 0;  // a decay ends at this times lr
  bool operator==(const RunScheduleConfig&) const = default;
};

// DeepSpeed's OneCycle: up from min_lr to max_lr, down again, then a decay below min_lr.
struct OneCycleConfig {
  double min_lr = 0;
  double max_lr = 1e-3;
  int64_t first_steps = 2000;   // of the way up, at least 1
  int64_t second_steps = 2000;  // of the way down, 0: none
  int64_t first_stairs = 0;     // how many stairs the way up has; 0: a straight line
  int64_t second_stairs = 0;    // the same, down
  int64_t decay_steps = 0;      // unit of time of the decay; 0: no decay
  double decay_rate = 0;  // lr = min_lr / (1 + decay_rate * steps past the cycle / decay_steps)
  bool operator==(const OneCycleConfig&) const = default;
};

// DeepSpeed's LRRangeTest: lr = min_lr * (1 + step_rate * t / step_size).
struct RangeTestConfig {
  double min_lr = 1e-3;
  int64_t step_size = 2000;
  double step_rate = 1.0;
  bool staircase = false;  // t / step_size rounded down
  bool operator==(const RangeTestConfig&) const = default;
};

// lr(t) for t = optimizer steps taken so far (skipped steps do not count).
struct ScheduleConfig {
  ScheduleKind kind = ScheduleKind::kConstant;
  double warmup_min_lr = 0;
  double warmup_max_lr = 1e-3;
  int64_t warmup_steps = 1000;
  bool log_warmup = true;       // WarmupLR's warmup_type: log (default) or linear
  int64_t total_steps = 0;      // for decay and cosine; 0: the length of the run
  double cos_min_ratio = 1e-4;  // cosine: lr ends at this times lr
  double warmup_min_ratio = 0;  // cosine: lr starts at this times lr
  OneCycleConfig one_cycle;
  RangeTestConfig range_test;
  RunScheduleConfig of_run;
  bool operator==(const ScheduleConfig&) const = default;
};

struct OptimizerConfig {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  bool adam_w_mode = true;  // decoupled decay; false: decay is added to the gradient
  bool bias_correction = true;
  double gradient_clipping = 1.0;  // global norm; 0: off
  ScheduleConfig schedule;
  bool operator==(const OptimizerConfig&) const = default;
};

// Everything of a training run that is neither model nor hardware.
struct TrainSetup {
  ZeroConfig zero;
  RecomputeConfig recompute;
  PrecisionConfig precision;
  BatchSpec batch;
  OptimizerConfig optimizer;
  // The same results from run to run on the same GPUs and libraries. Attention's backward pass is
  // slower then (core/program/attention_path.h), and products run as the library suggests them, not
  // as they are fastest. The program is the same. Default: off. The CPU is always deterministic.
  bool deterministic = false;
  bool operator==(const TrainSetup&) const = default;
};

// Throws Error(kUsage) for combinations that cannot run (naming key, value and fix):
// offload_optimizer at stage 0, offload_param below stage 3, ratio < 1 with nvme, ratio outside (0,
// 1], stage outside 0..3, non-positive batch parts, grad_accum_dtype 16-bit other than dtype,
// buffer_count < 1, ...
void ValidateSetup(const TrainSetup& setup, std::string_view source);

}  // namespace zeroplan
