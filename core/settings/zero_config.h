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

// Names the states that shard groups partition among one another (ZeroConfig::across_stage).
inline constexpr WordTable<int, 3> kAcrossWords = {
    {{"replicate", 0}, {"optimizer", 1}, {"gradients", 2}}};
inline std::string_view AcrossName(int across_stage) { return WordFor(kAcrossWords, across_stage); }

inline constexpr uint64_t kUnlimited = std::numeric_limits<int64_t>::max();
// zeroplan chooses the value; each field states how.
inline constexpr uint64_t kAuto = std::numeric_limits<uint64_t>::max();

struct ZeroConfig {
  // 0: nothing is partitioned; 1: optimizer states; 2: gradients too; 3: parameters too.
  int stage = 0;

  // Hybrid sharding: the number of ranks of a shard group, neighbours in rank order. The stage
  // partitions states among the ranks of a group, and the groups hold replicas. At least 2 and a
  // divisor of the number of ranks; 0 or the number of ranks: all ranks are one group. DeepSpeed's
  // mics_shard_size and zero_hpz_partition_size.
  int shard_group = 0;
  // The states that the groups also partition among one another, as a stage. 0: none. 1: optimizer
  // states; new parameters are gathered over the groups after the step. 2: gradients too; they are
  // reduced over the groups in every micro-step. 1 and 2 need a shard group of fewer ranks than
  // all.
  int across_stage = 0;

  // Elements of gradient reduced by one collective at stages 1-3 (and all-reduced at stage 0).
  // Larger: fewer collectives, more memory at stages 2 and 3. A tensor larger than the bucket is
  // reduced alone. kAuto: the largest layer, at least 8e6. DeepSpeed's default is 5e8.
  uint64_t reduce_bucket_elements = kAuto;
  // Elements gathered by one collective after the optimizer step, stages 1 and 2. Default 5e8.
  uint64_t allgather_bucket_elements = 500'000'000;
  // Stages 2 and 3. true: the gradients of a unit share one buffer; false: each tensor has its own
  // buffer and collective.
  bool contiguous_gradients = true;
  // true: reduce-scatter; false: all-reduce, of which each rank keeps its shard (more bytes sent).
  bool reduce_scatter = true;
  // true: one all-gather a bucket after the step; false: a broadcast from each owner (stages 1, 2).
  bool allgather_partitions = true;
  // true: reductions overlap with the backward pass, using a second bucket, and gathers run ahead
  // of their use. false: each collective is waited for where it is issued. Default: on (DeepSpeed:
  // on at stage 3 only).
  bool overlap_comm = true;

  // Stage 3. Elements gathered ahead of their use; a whole unit (layer) at a time, at least the
  // next one if > 0. 0: gathered when needed. kAuto: one unit ahead.
  uint64_t prefetch_bucket_elements = kAuto;
  // Stage 3. Tensors of at most this many elements are kept whole on every rank.
  uint64_t param_persistence_threshold = 100'000;
  // Stage 3. At most this many elements are kept whole, chosen in table order.
  uint64_t model_persistence_threshold = kUnlimited;
  // Stage 3. The number of elements that may be gathered at the same time, not counting persistent
  // ones; a unit larger than this is gathered alone. If two layers exceed the limit, no gather runs
  // ahead of its use. kAuto: 1e9, DeepSpeed's default, or the size of the units in use and gathered
  // ahead (LiveParameterLimit).
  uint64_t max_live_parameters = kAuto;
  // Stage 3. A gathered unit is kept for its next use if at most this many elements of other units
  // are used in between. zeroplan's default 0 (always released); DeepSpeed's is 1e9.
  uint64_t max_reuse_distance = 0;

  // Stage 3. true: gathers send parameters as int8, with an fp32 scale for each 256 elements: half
  // the bytes of 16 bit. Every rank computes with the rounded parameters, so the numbers of a run
  // change; master weights are not rounded. Persistent parameters are gathered without
  // quantization. Default: off. DeepSpeed's zero_quantized_weights.
  bool quantized_weights = false;
  // Stage 3. true: gradients are reduced as int4, with an fp32 scale for each 256 elements. Each
  // rank sends its parts, and the receiver sums them in fp32; with shard groups once within the
  // group and once over the groups. This sends a quarter of the bytes of 16 bit. Gradients have
  // four bits, so the numbers of a run change. Each reduction covers whole units, even if they are
  // larger than the bucket. Needs contiguous_gradients and reduce_scatter. Default: off.
  // DeepSpeed's zero_quantized_gradients.
  bool quantized_gradients = false;

  struct OffloadOptimizer {
    OffloadDevice device = OffloadDevice::kNone;
    double ratio = 1.0;  // share of the optimizer's elements on the CPU, (0, 1]; rest stays on GPU
    bool pin_memory =
        true;  // transfer buffers page-locked (faster copies; memory that cannot be swapped)
    int buffer_count = 4;  // staging slots between host, disk and GPU
    // DeepSpeed only, with device nvme: while a sub-group is updated, DeepSpeed reads the files of
    // the next one and writes the files of the previous one. Default: neither.
    bool pipeline_read = false, pipeline_write = false;
    std::string nvme_path;  // folder of the swap file; a run with nvme needs it, planning does not
    bool operator==(const OffloadOptimizer&) const = default;
  } offload_optimizer;
  struct OffloadParam {  // stage 3 only
    OffloadDevice device = OffloadDevice::kNone;
    bool pin_memory = true;
    int buffer_count = 5;                    // staging slots between disk and GPU
    uint64_t buffer_elements = 100'000'000;  // DeepSpeed only: elements of a staging slot
    // The number of elements of a rank's shards that stay in host memory with nvme, first units
    // first.
    uint64_t max_in_cpu_elements = 0;
    std::string nvme_path;
    bool operator==(const OffloadParam&) const = default;
  } offload_param;
  // Offloaded optimizer states are updated (and swapped, with nvme) this many elements at a time;
  // staging slots have this size. Larger: fewer, larger transfers and more host memory. Default
  // 2^24 (201 MB a slot of states); DeepSpeed's is 1e9.
  uint64_t sub_group_elements = 16'777'216;

  // Stages 2 and 3. true: states are updated in the backward pass of a step's last micro-step. Each
  // unit is updated as soon as its gradient is complete and its parameters have been used. With
  // states on the GPU and one micro-step, the gradients never all exist at the same time; with
  // states on the host, the update runs concurrently with the backward pass. The norm of all
  // gradients is unknown at the update, so there is no clipping, and a step with non-finite
  // gradients ends the run because updates cannot be undone. Default: off. DeepSpeed has no such
  // key.
  bool optimizer_in_backward = false;
  bool operator==(const ZeroConfig&) const = default;
};

// The activations that the backward pass recomputes. The others are kept from the forward pass.
enum class RecomputeKind : uint8_t {
  kNone,       // none: all are kept
  kSelective,  // the outputs of each layer's norms, GELU and SwiGLU, from kept inputs; matmuls and
               // attention never run twice
  kProducts,   // all of each layer but its input and the output of attention; attention never runs
               // twice
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

// The home of the layers' kept activations between forward and backward pass. In host memory, each
// is copied out after the kernel that writes it, and back while layers above run backward.
struct ActivationHome {
  OffloadDevice device = OffloadDevice::kNone;  // kNone or kCpu (page-locked)
  // The number of layers whose activations are offloaded, spread as evenly as possible over all but
  // the last. 0: all but the last, whose backward pass follows at once.
  int layers = 0;

  // True if the kept activations of `layer`, of `of_layers` layers, are offloaded.
  bool Takes(int64_t layer, int64_t of_layers) const {
    if (device == OffloadDevice::kNone || layer + 1 >= of_layers) return false;
    return layers == 0 || layer * layers % (of_layers - 1) < layers;
  }
  auto operator<=>(const ActivationHome&) const = default;  // NOLINT(modernize-use-nullptr)
};

// How the backward pass gets each layer's activations: kept on the GPU, offloaded or recomputed.
struct RecomputeConfig {
  RecomputeKind kind = RecomputeKind::kNone;
  // Layers of a segment: at least 1 with kFull (more than the model has: one segment), else 0.
  // Larger segments keep fewer inputs, but hold more activations while a segment is recomputed.
  int every = 0;
  // The number of layers, from the first on, that `kind` applies to; 0: all. Recomputed activations
  // occupy much memory while their layer runs backward. The first layers run backward last, when
  // the least other memory is occupied, so they are the ones that recompute.
  int layers = 0;
  // The kind of the layers from `layers` on: kNone or kSelective, less than `kind`.
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
// The same setting, with `layers` and offload.layers set to 0 where they cover all that a model of
// `layers` layers allows.
RecomputeConfig OfModel(RecomputeConfig recompute, int64_t layers);

// The master weight that a 16-bit run keeps for each parameter.
enum class MasterWeights : uint8_t {
  kFp32,   // an fp32 number in addition to the parameter
  kSplit,  // the same number in two halves; where both halves are in the same memory, the parameter
           // is the upper one (core/base/split_master.h): 2 bytes less, nothing lost. bf16 only
  kParam,  // the parameter's own 16 bits, rounded stochastically
};
// The last two words are accepted only in runs of the dtype that they name.
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

// The scaling of the tensors of an FP8 matmul (core/base/fp8.h).
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

// FP8 matmuls: those of the layers' linears, for the forward pass, the gradient of the input and
// the gradient of the weights. Scales are computed from the current tensors. Embedding, head,
// norms, attention, master weights and reductions do not change. The sides of the weight and the
// tokens of a micro-step must be multiples of 16, with kBlocks of 128; other matmuls stay in
// PrecisionConfig::dtype.
struct Fp8Config {
  bool enabled = false;
  Fp8Recipe recipe = Fp8Recipe::kTensor;
  // The format of the gradients of activations: kE4M3, or kE5M2, which has a wider range and steps
  // twice as large.
  Dtype gradients = Dtype::kE4M3;
  // True: the matmuls for gradients accumulate in fewer bits, as the forward matmuls do. This is
  // faster on Hopper, and loses less precision than the rounding to FP8.
  bool fast_gradients = true;
  // Linears whose smaller side is below this stay in PrecisionConfig::dtype, because rounding costs
  // a small matmul more time than FP8 saves.
  int64_t least_side = 0;
  bool operator==(const Fp8Config&) const = default;
};

struct PrecisionConfig {
  Dtype dtype = Dtype::kBF16;  // compute and parameter dtype: kBF16, kF16 or kF32
  // The dtype in which gradients of several micro-steps are summed: the compute dtype or kF32.
  Dtype grad_accum_dtype = Dtype::kBF16;
  // DeepSpeed's communication_data_type fp32: gradients of several ranks are reduced in kF32, then
  // rounded to grad_accum_dtype. Buckets and collectives have twice the bytes of 16 bit; in return,
  // sums over ranks are not rounded on the way. Default false: gradients are reduced in their own
  // dtype.
  bool fp32_reduction = false;
  // kParam is DeepSpeed's bf16_master_weights_and_grads and fp16_master_weights_and_grads;
  // DeepSpeed rounds to nearest. No effect in fp32, where the parameters are the masters.
  MasterWeights master_weights = MasterWeights::kFp32;
  // The dtype of Adam's moments. kF32. kBF16: the second moment is rounded stochastically;
  // DeepSpeed's bf16_optimizer_states. kDynamic8: eight bits (core/base/dynamic8.h).
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
  int64_t micro_batch = 1;  // sequences per micro-step and rank (or group of ranks that share
                            // sequences), B
  int64_t grad_accum = 1;   // micro-steps per optimizer step, g
  int world_size = 1;       // ranks, N
  int64_t seq_len = 1024;   // tokens per sequence, T
  // The number of consecutive ranks that share each sequence, S. Each has T/S of its tokens, and in
  // attention 1/S of its heads (Jacobs et al. 2023, "DeepSpeed Ulysses", arXiv 2309.14509). A
  // divisor of world_size, seq_len and the query heads. ZeRO still partitions states among all
  // ranks. DeepSpeed's sequence_parallel_size. Default 1.
  int sequence_ranks = 1;
  // The tokens of a sequence that one rank has.
  constexpr int64_t local_seq() const { return seq_len / sequence_ranks; }
  // The number of ranks, or groups of ranks that share sequences, that have different sequences.
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
  kOfRun  // the schedule of `train` itself, see RunScheduleConfig; DeepSpeed has no key for it
};

enum class DecayShape : uint8_t { kConstant, kLinear, kCosine };
template <>
inline constexpr WordTable<DecayShape, 3> kWords<DecayShape> = {
    {{"constant", DecayShape::kConstant},
     {"linear", DecayShape::kLinear},
     {"cosine", DecayShape::kCosine}}};
inline std::string_view DecayShapeName(DecayShape shape) { return WordOf(shape); }

// The schedule of `train --lr-schedule`: a warm-up over a share of the run, then lr itself or a
// decay over the rest of the run. The formulas are those of transformers'
// get_constant_schedule_with_warmup, get_linear_schedule_with_warmup and
// get_cosine_with_min_lr_schedule_with_warmup.
struct RunScheduleConfig {
  DecayShape shape = DecayShape::kConstant;
  // Share of the run's steps that warm up. Once the number of steps is known, warmup_steps is set
  // to that share of it, rounded up.
  double warmup_share = 0;
  int64_t warmup_steps = 0;
  double min_ratio = 0;  // a decay ends at this times lr
  bool operator==(const RunScheduleConfig&) const = default;
};

// DeepSpeed's OneCycle: lr rises from min_lr to max_lr, falls back, then decays below min_lr.
struct OneCycleConfig {
  double min_lr = 0;
  double max_lr = 1e-3;
  int64_t first_steps = 2000;   // steps of the rise, at least 1
  int64_t second_steps = 2000;  // steps of the fall; 0: none
  int64_t first_stairs = 0;     // number of stairs of the rise; 0: a straight line
  int64_t second_stairs = 0;    // the same for the fall
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

// Everything about a training run except model and hardware.
struct TrainSetup {
  ZeroConfig zero;
  RecomputeConfig recompute;
  PrecisionConfig precision;
  BatchSpec batch;
  OptimizerConfig optimizer;
  // True: runs on the same GPUs and libraries give the same results. Attention's backward pass is
  // then slower (core/program/attention_path.h), and matmuls use the algorithm that the library
  // suggests, without tuning. The program does not change. Default: off. The CPU is always
  // deterministic.
  bool deterministic = false;
  bool operator==(const TrainSetup&) const = default;
};

// Throws Error(kUsage) for combinations that cannot run (naming key, value and fix):
// offload_optimizer at stage 0, offload_param below stage 3, ratio < 1 with nvme, ratio outside (0,
// 1], stage outside 0..3, non-positive batch parts, grad_accum_dtype 16-bit other than dtype,
// buffer_count < 1, ...
void ValidateSetup(const TrainSetup& setup, std::string_view source);

}  // namespace zeroplan
