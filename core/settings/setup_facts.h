// What follows from a setup alone: questions that lowering, planner and reports all ask.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "core/settings/zero_config.h"

namespace zeroplan {

// grad_accum > 1.
bool Accumulates(const TrainSetup& setup);
// True where gradients of a whole unit persist and are accumulated in place (stages 0 and 1, or one
// rank whose optimizer is on the GPU, where gradients are there to stay); else whole
// gradients are transient and shards persist.
bool GradsInPlace(const TrainSetup& setup);
// True where reduced gradients last from their reduction to their update alone: states on the GPU
// are updated in the backward pass of the step's one micro-step.
bool GradsAreTransient(const TrainSetup& setup);
// True where fp32_reduction has an effect: several ranks, whose gradients are of 16 bit without it.
bool ReducesInFp32(const TrainSetup& setup);
// The dtype of whole gradients, as kernels write them. Transient ones are written in what is sent.
Dtype FullGradDtype(const TrainSetup& setup);
// The dtype in which collectives send gradients. Where it is not FullGradDtype (fp32_reduction at
// stages 0 and 1), each bucket is converted before it is reduced, and back after.
Dtype SentGradDtype(const TrainSetup& setup);
// The dtype in which reduced gradients go to host memory micro-step by micro-step (stages 2 and 3
// with offloaded states): as they were sent, but no wider than they are summed.
Dtype HostGradDtype(const TrainSetup& setup);
// What is kept of a parameter beside its gradient, by StateKind (core/program/program.h): the
// master weight, the first and the second moment. Masters in halves are kF32 here: their value is.
std::array<Dtype, 3> StateDtypes(const PrecisionConfig& precision);
// Ranks that share what the stage partitions: 1 at stage 0, all without a shard group.
int ShardRanks(const ZeroConfig& zero, int world_size);
// False where all that is offloaded, and its staging, is pageable.
bool PinsMemory(const ZeroConfig& zero);
// True where there are several shard groups, which hold replicas of one another.
bool Hybrid(const TrainSetup& setup);
// Shard groups that hold the same gradients, all of which the sum over ranks of their squares
// counts: each rank then has the same bits of the norm. 1 at stage 0, where nothing is summed.
int GradReplicas(const TrainSetup& setup);
// True where gradients are reduced over the groups in every micro-step, not once a step: they are
// partitioned among these, or summed in host memory, which no collective reaches, or all-reduced,
// or a step has one micro-step.
bool CrossesEachMicroStep(const TrainSetup& setup);
// What sides and tokens of a product of eight bits are multiples of.
int64_t Fp8Multiple(Fp8Recipe recipe);
// Why GPUs of such a compute capability, 89 for 8.9, do not multiply so: "products in FP8 start at
// compute capability 8.9, and it has 8.0"; "" where they do.
std::string Fp8GpuLacks(const Fp8Config& fp8, int compute_capability);
// Names what the linears of layers multiply in.
inline constexpr WordTable<Dtype, 4> kMatmulWords = {
    {{"fp8", Dtype::kE4M3}, {"bf16", Dtype::kBF16}, {"fp16", Dtype::kF16}, {"fp32", Dtype::kF32}}};
// "fp8", or the compute dtype's name.
std::string_view MatmulDtypeName(const PrecisionConfig& precision);
// Whether `M` tokens times a weight of K x N is a product of eight bits. NF4 weights never are.
bool IsFp8Product(const Fp8Config& fp8, int64_t M, int64_t K, int64_t N);
// True where parameters of non-persistent units are sharded or away from the GPU (stage 3).
bool ParamsSharded(const TrainSetup& setup);

// ---- what is wrong with a setup ----

// The key, so that a reader can add its line.
struct SetupProblem {
  std::string key;      // "zero_optimization.offload_optimizer.ratio"
  std::string message;  // value, what is allowed, fix
};

// The key of a problem with grad_accum_dtype.
inline constexpr const char* kGradAccumKey = "data_types.grad_accum_dtype";

// The first problem of a setup, if any. ValidateSetup throws it.
std::optional<SetupProblem> FindSetupProblem(const TrainSetup& setup);
// The problem of its precision alone.
std::optional<SetupProblem> FindPrecisionProblem(const PrecisionConfig& precision);

}  // namespace zeroplan
