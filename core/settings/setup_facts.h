// Facts that follow from a setup alone and that lowering, planner and reports all need.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "core/settings/zero_config.h"

namespace zeroplan {

// grad_accum > 1.
bool Accumulates(const TrainSetup& setup);
// True where the gradients of a whole unit persist and are accumulated in place: at stages 0 and 1,
// or on one rank whose optimizer is on the GPU and whose gradients are not transient
// (GradsAreTransient). Otherwise whole gradients are transient and shards persist.
bool GradsInPlace(const TrainSetup& setup);
// True where reduced gradients live only from their reduction to their update, because states on
// the GPU are updated in the backward pass of the step's only micro-step.
bool GradsAreTransient(const TrainSetup& setup);
// True where fp32_reduction has an effect: there are several ranks, and without it their gradients
// would be 16-bit.
bool ReducesInFp32(const TrainSetup& setup);
// The dtype in which kernels write whole gradients. Transient gradients are written in the dtype in
// which they are sent.
Dtype FullGradDtype(const TrainSetup& setup);
// The dtype in which collectives send gradients. Where it is not FullGradDtype (fp32_reduction at
// stages 0 and 1), each bucket is converted before it is reduced and converted back after.
Dtype SentGradDtype(const TrainSetup& setup);
// The dtype in which reduced gradients are copied to host memory in each micro-step (stages 2 and 3
// with offloaded states): the dtype in which they were sent, but no wider than the one in which
// they are summed.
Dtype HostGradDtype(const TrainSetup& setup);
// The dtypes of a parameter's optimizer states, by StateKind (core/program/program.h): the master
// weight, the first and the second moment. Masters in halves count as kF32, because their value is
// fp32.
std::array<Dtype, 3> StateDtypes(const PrecisionConfig& precision);
// The number of ranks that share the states that the stage partitions: 1 at stage 0, all ranks
// without a shard group.
int ShardRanks(const ZeroConfig& zero, int world_size);
// True if states or activations lie on the host or on a disk.
bool UsesHost(const TrainSetup& setup);
// False if all offloaded states and their staging buffers are pageable.
bool PinsMemory(const ZeroConfig& zero);
// True if there are several shard groups. They hold replicas of one another.
bool Hybrid(const TrainSetup& setup);
// The number of shard groups that hold the same gradients. The sum of their squares over all ranks
// counts each group, so that every rank has the same bits of the norm. 1 at stage 0, where nothing
// is summed.
int GradReplicas(const TrainSetup& setup);
// True where gradients are reduced over the groups in every micro-step, not once a step: the groups
// partition them, or they are summed in host memory, which no collective reaches, or they are
// all-reduced, or a step has one micro-step.
bool CrossesEachMicroStep(const TrainSetup& setup);
// The number of which the sides and tokens of an FP8 matmul must be multiples.
int64_t Fp8Multiple(Fp8Recipe recipe);
// Why GPUs of `compute_capability` (89 for 8.9) cannot run FP8 matmuls: "products in FP8 start at
// compute capability 8.9, and it has 8.0"; "" if they can.
std::string Fp8GpuLacks(const Fp8Config& fp8, int compute_capability);
// Names the dtypes in which the linears of layers multiply.
inline constexpr WordTable<Dtype, 4> kMatmulWords = {
    {{"fp8", Dtype::kE4M3}, {"bf16", Dtype::kBF16}, {"fp16", Dtype::kF16}, {"fp32", Dtype::kF32}}};
// "fp8", or the compute dtype's name.
std::string_view MatmulDtypeName(const PrecisionConfig& precision);
// True if the matmul of `M` tokens with a weight of K x N runs in FP8. Matmuls with NF4 weights
// never do.
bool IsFp8Product(const Fp8Config& fp8, int64_t M, int64_t K, int64_t N);
// True where parameters of non-persistent units are sharded or away from the GPU (stage 3).
bool ParamsSharded(const TrainSetup& setup);

// ---- problems of a setup ----

// A problem with its key, so that a reader can add the key's line.
struct SetupProblem {
  std::string key;      // "zero_optimization.offload_optimizer.ratio"
  std::string message;  // the value, the values allowed, the fix
};

// SetupProblem::key of a problem with grad_accum_dtype.
inline constexpr const char* kGradAccumKey = "data_types.grad_accum_dtype";

// The first problem of a setup, if any. ValidateSetup throws it.
std::optional<SetupProblem> FindSetupProblem(const TrainSetup& setup);
// The first problem of `precision`, if any.
std::optional<SetupProblem> FindPrecisionProblem(const PrecisionConfig& precision);

}  // namespace zeroplan
