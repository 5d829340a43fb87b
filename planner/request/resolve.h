// Converts the fields of a request to the inputs of planning or running. All functions throw
// Error(kUsage).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/config/deepspeed_reader.h"
#include "core/families/load_model.h"
#include "core/lowering/lower.h"
#include "core/model/model_spec.h"
#include "core/settings/zero_config.h"
#include "hwprofiles/profile.h"
#include "planner/cluster.h"
#include "planner/estimate/choices.h"
#include "planner/estimate/estimate.h"
#include "planner/request/request.h"

namespace zeroplan {

// Values that resolving assumed ("⟦micro_batch⟧ 1"), and other lines for the user.
struct Assumptions {
  std::vector<std::string> assumed;
  std::vector<std::string> notes;
  std::optional<int> named_gpus;     // from the hardware's name: "8xh100"
  std::optional<int> detected_gpus;  // set if this machine supplies the hardware profile
  std::string first;    // first line of an answer, if all of it depends on that; "": none
  bool logged = false;  // ignored settings of the model's config.json are already reported
};

// Sequence length of a model that is derived from `params`, unless `seq_len` is set.
inline constexpr int64_t kDerivedSeqLen = 1024;
// Default sequence length for a model that supports longer ones: most such models are trained with
// it.
inline constexpr int64_t kLongestUsualSeqLen = 4096;
// The family that the request names, else the first.
const ModelFamily& FamilyOf(const ModelFields& fields);
// `seq_len`: for a model that is derived from `params`. Another model that computes its positions
// gets at least that many, and a note reports it. `runtime`: the program that trains; zeroplan's
// own refuses models that it does not train.
ModelSpec ResolveModel(const ModelFields& fields, const Given<int64_t>& seq_len,
                       Assumptions& assumptions, const Runtime& runtime = OwnExecutor());
// Returns which models that zeroplan does not train `runtime` accepts.
OtherModels OthersFor(const ModelFields& fields, const Runtime& runtime);
// False for a mixture of experts that the runtime trains whole alone. True if the model is unknown,
// which resolving it reports.
bool TakesAdapters(const ModelFields& fields, const Runtime& runtime);
// Sets ⟦runtime⟧ to DeepSpeed where it is not given and the model is of a type that zeroplan plans
// and does not train. Returns a note about it; "": nothing was set.
std::string PlanForOthers(Request& request);
// Sets unset fields of the recipe from the config's "_zeroplan", which `plan` wrote, if the runtime
// reads DeepSpeed configs. Notes report which fields were set and which differ.
void TakeConfigRecipe(Request& request, Assumptions& assumptions);
// Sets the sizes that `config` leaves to "auto" as transformers' Trainer and accelerate set them
// before DeepSpeed reads them. A note names them.
void TakeTrainerSizes(const ConfigDocument& config, const ModelSpec& model, ZeroConfig& zero,
                      Assumptions& assumptions);
// Sets unset parts of `recipe` to match the code of a model that zeroplan does not train. Refuses
// parts that are not modelled for it.
void SetCodeOfOthers(const AskedSettings& fields, const ModelSpec& model, TorchRecipe& recipe);
// The folder of the model; "" if the model is a preset, a file or not given.
std::string FolderOfModel(const ModelFields& fields);
// Whether to measure the bandwidth of this machine's memory if no profile is named and 'hw measure'
// stored nothing for this machine. That occupies all cores for a fraction of a second.
enum class MeasureHost : uint8_t { kNo, kYes };
// The named profile; else the profile of the machine that `fields.find` finds; else the default
// one. Named links replace the profile's. `cluster` sets the number of GPUs if only a card is
// named. These GPUs are in one machine, unless a network or GPUs per node are given.
HardwareProfile ResolveHardware(const HardwareFields& fields, const ClusterFields& cluster,
                                Assumptions& assumptions, MeasureHost measure = MeasureHost::kNo);
// The same fields with a `find` that looks at this machine once, for a request that is resolved
// many times.
HardwareFields FoundOnce(HardwareFields fields);
// Options to lower programs of `model` in `dtype` for such GPUs: the backend is CUDA, and attention
// materializes its scores if no fused kernel supports its heads.
LowerOptions GpuLowerOptions(const ModelSpec& model, Dtype dtype, const GpuProfile& gpu);
Cluster ResolveCluster(const Request& request, const HardwareProfile& hardware,
                       Assumptions& assumptions);

// The sequence length: `seq_len`, else the model's. Throws if it exceeds the model's positions or
// its window.
int64_t ResolveSeqLen(const Request& request, const ModelSpec& model, Assumptions& assumptions);
// Converts `global_batch_tokens` of `fields` to `global_batch`, in sequences of `seq_len`: the
// nearest whole number of sequences for each of `gpus`, or for each group of GPUs that share
// sequences (NoteRoundedBatch notes it). Throws if the tokens are fewer than one for each. Throws
// if `global_batch` is so large that it must be a number of tokens.
AskedSettings InSequences(AskedSettings fields, int64_t seq_len, int gpus, int sequence_ranks = 1);
// Adds a note if ⟦global_batch_tokens⟧ is given and the batch is another number of tokens.
void NoteRoundedBatch(const AskedSettings& asked, std::optional<int64_t> batch, int64_t seq_len,
                      Assumptions& assumptions);
// Throws if one of the given numbers of GPUs cannot share a sequence.
void CheckSequenceRanks(const Given<std::vector<int>>& given, const Runtime& runtime,
                        const ModelSpec& model, int64_t seq_len, int gpus);
// sequence_parallel_size of a config; 1 if it is not set.
int ConfigSequenceRanks(const ConfigDocument& config);
// The goal of a run in such batches. `fixed_rows`: as SequencesAsked.
RunGoal ResolveGoal(const GoalFields& fields, const BatchSpec& batch, const GpuProfile& gpu,
                    bool fixed_rows = true);
// The interruptions of a run; unset: the request has none. Throws for fields that have no effect
// without them.
std::optional<Interruptions> ResolveInterruptions(const GoalFields& fields);
// Notes the assumed time of a restart. Refuses interruptions for programs whose saves are not
// predicted.
void AssumeRestart(const Request& request, Assumptions& assumptions);
// ⟦async_save⟧ of a plan. If it is not given, auto for a run with interruptions, because that saves
// often, else off. The second function notes an assumed auto.
AsyncSave AsyncSaveOf(const Request& request);
void AssumeAsyncSave(const Request& request, Assumptions& assumptions);
// The default dtype is `otherwise`.
PrecisionConfig ResolvePrecision(const AskedSettings& fields, const HardwareProfile& hardware,
                                 Dtype otherwise, Assumptions& assumptions);

// Sets FP8 matmuls from the fields, for a run in precision.dtype.
void SetFp8(const AskedSettings& fields, PrecisionConfig& precision);
// Refuses a ⟦matmul_dtype⟧ that names a dtype other than the run's.
void CheckMatmulName(const AskedSettings& fields, Dtype dtype);
// Refuses FP8 matmuls that the model or the GPU does not support.
void CheckFp8(const Request& request, const PrecisionConfig& precision, const ModelSpec& model,
              const GpuProfile& gpu);
// The reason why a search cannot use FP8 matmuls in a run of `dtype`, and a remedy, as the end of a
// message: "is not allowed in fp32; use ⟦dtype⟧ bf16, or leave it out"; "" if it can.
std::string WhyNoFp8(const ModelSpec& model, Dtype dtype, const GpuProfile& gpu, Fp8Recipe recipe);

// Refuses fields of recompute and homes that have no effect, or that the runtime lacks.
void CheckRecomputeFields(const Request& request);
// Adds the other recompute fields to `recompute`, a kind for all of `layers` layers: the layers
// that it covers, the kind for the layers above, and the home of activations.
RecomputeConfig WithRecomputeFields(RecomputeConfig recompute, const Request& request,
                                    int64_t layers);
// GPUs per node for `gpus` in all.
int GpusPerNode(const ClusterFields& cluster, const HardwareProfile& hardware, int gpus);
// The groups that the request sets, for `gpus` GPUs. A number that equals `gpus` means one group of
// all ranks. Throws if the groups do not tile nodes.
Grouping ResolveGrouping(const AskedSettings& fields, int gpus, int gpus_per_node);
// The sizes of groups that tile nodes, for messages.
std::string GroupsText(int gpus, int gpus_per_node);
// Throws because ⟦across_groups⟧ is given without groups.
[[noreturn]] void ThrowWithoutGroups(const AskedSettings& fields, int gpus, int gpus_per_node);
// EnumerateSetups with the groups of `fields`. A note names the requested stages that do not
// support them.
std::vector<TrainSetup> SetupsInGroups(const AskedSettings& fields, const TrainSetup& base,
                                       ChoiceSpace space, int gpus_per_node,
                                       Assumptions& assumptions);

// All choices of the request that can run. Batch parts default to 1, the dtype to `dtype`, and the
// rest to `otherwise`.
std::vector<TrainSetup> ResolveSetups(const Request& request, const ModelSpec& model,
                                      const HardwareProfile& hardware, int gpus, Dtype dtype,
                                      ChoiceSpace otherwise, Assumptions& assumptions);
// The one setup of the config. May add to `recipe`. `says_states`: ReadResult's.
TrainSetup ResolveConfig(const Request& request, const ModelSpec& model,
                         const HardwareProfile& hardware, int gpus, Assumptions& assumptions,
                         TorchRecipe* recipe = nullptr, bool* says_states = nullptr);

// Throws Error(kUsage) naming a field that the request's runtime lacks.
void RefuseForRuntime(const Request& request);
// Throws Error(kUsage) if PyTorch has no such attention on the GPU, or none that is modelled.
void RefuseAttention(const Runtime& runtime, const ModelSpec& model, Dtype dtype,
                     TorchAttention attention, const HardwareProfile& hardware);

// A request's values for the reader of a DeepSpeed config, except the model's layers and whether
// the reader is strict. Throws as InSequences does.
ReadContext ConfigContext(const AskedSettings& fields, const HardwareProfile& hardware, int gpus,
                          int64_t seq_len, int sequence_ranks = 1);

// Notes of estimate and plan in addition to their answer.

// Notes the accuracy that states other than fp32 cost.
void NoteStates(const TrainSetup& setup, Assumptions& assumptions);

// A paragraph about which matmuls run in FP8; "" if none do.
std::string Fp8Text(const ModelSpec& model, const TrainSetup& setup);
void NoteFp8(const ModelSpec& model, const TrainSetup& setup, Assumptions& assumptions);

// A paragraph about attention's kernels; "" if there is nothing to tell. It names plain kernels,
// with the reason and a remedy, own fused kernels on GPUs where they were not timed, and several
// calls of cuDNN's kernel. `lower`: the options to lower `setup` for CUDA. `ordered_program`:
// whether it was lowered as deterministic. A plan for `train --deterministic` may not have been.
std::string AttentionNote(const ModelSpec& model, const TrainSetup& setup,
                          const LowerOptions& lower, const GpuProfile& gpu, bool ordered_program);
inline std::string AttentionNote(const ModelSpec& model, const TrainSetup& setup,
                                 const LowerOptions& lower, const GpuProfile& gpu) {
  return AttentionNote(model, setup, lower, gpu, setup.deterministic);
}

// Adds AttentionNote, and a note if matmuls are not tuned.
void NoteKernels(const ModelSpec& model, const TrainSetup& setup, const LowerOptions& lower,
                 const HardwareProfile& hardware, bool ordered_program, Assumptions& assumptions);
// Adds a note of the guessed figures that the times of `setups`, with `recipe`, depend on
// (hwprofiles/guesses.h).
void NoteGuesses(const HardwareProfile& hardware, const Cluster& cluster,
                 std::span<const TrainSetup> setups, const TorchRecipe& recipe,
                 Assumptions& assumptions);
// Applies the packing: with documents the program has their borders, and attention is timed by the
// lengths of ⟦data⟧'s documents. A note states that they are unknown. REQUIRES: SettleData was
// called.
void ApplyPacking(const Request& request, const ModelSpec& model, const GpuProfile& gpu,
                  LowerOptions& lower, Assumptions& assumptions);
// Sets the mean keys that a token sees, 0 if unknown, and own kernels within documents where these
// were faster on such a GPU.
void SetVisibleKeys(double keys, const ModelSpec& model, const GpuProfile& gpu,
                    LowerOptions& lower);
// Adds to the assumptions that gradients of several micro-steps are summed in 16 bits, if the
// request leaves it open.
void AssumeSums(const Request& request, std::span<const TrainSetup> setups,
                Assumptions& assumptions);
// Adds a note if a setup's sums in fp32 change nothing.
void NoteIdleSums(std::span<const TrainSetup> setups, Assumptions& assumptions);

// Drops notes of a config's reader about zeroplan's own executor, because they do not apply to
// another program.
void DropOwnNotes(const Request& request, Assumptions& assumptions);

}  // namespace zeroplan
