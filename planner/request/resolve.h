// Turns the fields of a request into what is planned or run. All throw Error(kUsage).
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

// What resolving assumed ("⟦micro_batch⟧ 1") and other lines for the user.
struct Assumptions {
  std::vector<std::string> assumed;
  std::vector<std::string> notes;
  std::optional<int> named_gpus;     // that the hardware's name says: "8xh100"
  std::optional<int> detected_gpus;  // of this machine, where it gives the hardware profile
  std::string first;    // what an answer begins with, as all of it rests on that; "" for nothing
  bool logged = false;  // what the model's config.json is not trained with; it is not said again
};

// Tokens a sequence of a model that is derived from `params`, unless `seq_len` says.
inline constexpr int64_t kDerivedSeqLen = 1024;
// The sequence length for a model that takes longer ones: what such models are mostly trained with.
inline constexpr int64_t kLongestUsualSeqLen = 4096;
// From so many tokens on a plan searches mixes of homes of activations where nobody says.
inline constexpr int64_t kLongSequence = 8192;
// The family that was asked for, else the first there is.
const ModelFamily& FamilyOf(const ModelFields& fields);
// `seq_len`: of a model that is derived from `params`; another one that computes its positions has
// so many at least, and a note says so. `runtime`: what it is planned for; models that zeroplan
// does not train are refused for its own.
ModelSpec ResolveModel(const ModelFields& fields, const Given<int64_t>& seq_len,
                       Assumptions& assumptions, const Runtime& runtime = OwnExecutor());
// Which models that zeroplan does not train `runtime` takes.
OtherModels OthersFor(const ModelFields& fields, const Runtime& runtime);
// Fills fields of the recipe that are not given as the config's "_zeroplan" says them, which `plan`
// wrote, for a runtime that reads such configs; notes say what is taken and what differs.
void TakeConfigRecipe(Request& request, Assumptions& assumptions);
// Sets the sizes that `config` leaves to "auto" as transformers' Trainer and accelerate do before
// DeepSpeed sees them; a note names them.
void TakeTrainerSizes(const ConfigDocument& config, const ModelSpec& model, ZeroConfig& zero,
                      Assumptions& assumptions);
// Sets what of `recipe` is open as the code of a model that zeroplan does not train has it, and
// refuses what is not known of it.
void SetCodeOfOthers(const AskedSettings& fields, const ModelSpec& model, TorchRecipe& recipe);
// The model as a folder; "" where it is a preset, a file or not given.
std::string FolderOfModel(const ModelFields& fields);
// Whether the bandwidth of this machine's memory is measured, where no profile is named and 'hw
// measure' kept nothing of this machine. It takes a fraction of a second of all cores.
enum class MeasureHost : uint8_t { kNo, kYes };
// The profile that is named; else that of the machine which `fields.find` finds; else the default
// one. With the links that are named. `cluster` says how many are wanted of a card that is named
// alone: they are one machine's, unless a network or GPUs a node are given.
HardwareProfile ResolveHardware(const HardwareFields& fields, const ClusterFields& cluster,
                                Assumptions& assumptions, MeasureHost measure = MeasureHost::kNo);
// The same fields for a question that is resolved many times: its copies look at this machine once.
HardwareFields FoundOnce(HardwareFields fields);
// How programs of `model` in `dtype` are lowered for such GPUs: for CUDA, keeping attention's
// scores where no other kernel takes its heads.
LowerOptions GpuLowerOptions(const ModelSpec& model, Dtype dtype, const GpuProfile& gpu);
Cluster ResolveCluster(const Request& request, const HardwareProfile& hardware,
                       Assumptions& assumptions);

// The sequence length: `seq_len`, else the model's. Throws if it is more than the model's positions
// or its window.
int64_t ResolveSeqLen(const Request& request, const ModelSpec& model, Assumptions& assumptions);
// `fields` with `global_batch_tokens` as `global_batch`, in sequences of `seq_len`. Throws where
// that is not a whole number of them for each of `gpus`, or of groups of these that share
// sequences, and where `global_batch` is so large that its number must have been tokens.
AskedSettings InSequences(AskedSettings fields, int64_t seq_len, int gpus, int sequence_ranks = 1);
// Throws where a number of GPUs that are to share sequences cannot.
void CheckSequenceRanks(const Given<std::vector<int>>& given, const Runtime& runtime,
                        const ModelSpec& model, int64_t seq_len, int gpus);
// sequence_parallel_size of a config; 1 where there is none.
int ConfigSequenceRanks(const ConfigDocument& config);
// What a run in such batches is to come to. `fixed_rows`: as SequencesAsked.
RunGoal ResolveGoal(const GoalFields& fields, const BatchSpec& batch, const GpuProfile& gpu,
                    bool fixed_rows = true);
// How the run is interrupted; unset: nobody says. Throws for what has no effect without that.
std::optional<Interruptions> ResolveInterruptions(const GoalFields& fields);
// Says what is assumed of a restart. Refuses interruptions of programs whose saves are not
// predicted.
void AssumeRestart(const Request& request, Assumptions& assumptions);
// ⟦async_save⟧ of a plan; where nobody says, auto for a run that is interrupted, which saves often,
// else off. The second says it where it is assumed.
AsyncSave AsyncSaveOf(const Request& request);
void AssumeAsyncSave(const Request& request, Assumptions& assumptions);
// `dtype`, or `otherwise`.
PrecisionConfig ResolvePrecision(const AskedSettings& fields, const HardwareProfile& hardware,
                                 Dtype otherwise, Assumptions& assumptions);

// What the fields say of products of eight bits, of a run in precision.dtype.
void SetFp8(const AskedSettings& fields, PrecisionConfig& precision);
// Refuses a ⟦matmul_dtype⟧ that is the name of another dtype than the run's.
void CheckMatmulName(const AskedSettings& fields, Dtype dtype);
// Refuses products of eight bits that neither the model nor the GPU has.
void CheckFp8(const Request& request, const PrecisionConfig& precision, const ModelSpec& model,
              const GpuProfile& gpu);
// Why a search takes no products of eight bits in a run of `dtype`, and what to do, as a message
// ends: "is not allowed in fp32; use ⟦dtype⟧ bf16, or leave it out"; "" where it may.
std::string WhyNoFp8(const ModelSpec& model, Dtype dtype, const GpuProfile& gpu, Fp8Recipe recipe);

// Refuses what the fields say of recompute and homes that has no effect, or that the runtime has
// not.
void CheckRecomputeFields(const Request& request);
// `recompute`, a kind of all layers of a model of so many, with what the fields say beside the
// kind: of which layers it is, what is of those above, where what is kept lies.
RecomputeConfig WithRecomputeFields(RecomputeConfig recompute, const Request& request,
                                    int64_t layers);
// GPUs of a node, of `gpus` in all.
int GpusPerNode(const ClusterFields& cluster, const HardwareProfile& hardware, int gpus);
// The groups that are asked for, of `gpus` GPUs, of which so many share a node: all ranks one group
// where that is what a number comes to. Throws where they tile no nodes.
Grouping ResolveGrouping(const AskedSettings& fields, int gpus, int gpus_per_node);
// The ranks of groups that tile nodes: of a message.
std::string GroupsText(int gpus, int gpus_per_node);
// ⟦across_groups⟧ is given where there are no groups.
[[noreturn]] void ThrowWithoutGroups(const AskedSettings& fields, int gpus, int gpus_per_node);
// EnumerateSetups with the groups of `fields`; notes which stages that were named go without them.
std::vector<TrainSetup> SetupsInGroups(const AskedSettings& fields, const TrainSetup& base,
                                       ChoiceSpace space, int gpus_per_node,
                                       Assumptions& assumptions);

// The choices that are asked for, all that can run. Of what they leave out, batch parts are 1, and
// `dtype` and `otherwise` say the rest.
std::vector<TrainSetup> ResolveSetups(const Request& request, const ModelSpec& model,
                                      const HardwareProfile& hardware, int gpus, Dtype dtype,
                                      ChoiceSpace otherwise, Assumptions& assumptions);
// The one setup of the config, which may add to `recipe`. `says_states`: ReadResult's.
TrainSetup ResolveConfig(const Request& request, const ModelSpec& model,
                         const HardwareProfile& hardware, int gpus, Assumptions& assumptions,
                         TorchRecipe* recipe = nullptr, bool* says_states = nullptr);

// Throws Error(kUsage) naming the field that the runtime asked for does not have.
void RefuseForRuntime(const Request& request);
// Throws Error(kUsage) where PyTorch has no such attention on the GPU, or none that is modelled.
void RefuseAttention(const Runtime& runtime, const ModelSpec& model, Dtype dtype,
                     TorchAttention attention, const HardwareProfile& hardware);

// A request's values for the reader of a DeepSpeed config: all but the model's layers and whether
// the reader is strict. Throws as InSequences.
ReadContext ConfigContext(const AskedSettings& fields, const HardwareProfile& hardware, int gpus,
                          int64_t seq_len, int sequence_ranks = 1);

// What estimate and plan say beside their answer.

// What other states than fp32 cost in accuracy.
void NoteStates(const TrainSetup& setup, Assumptions& assumptions);

// Which products are of eight bits, a paragraph; "" where none are asked for.
std::string Fp8Text(const ModelSpec& model, const TrainSetup& setup);
void NoteFp8(const ModelSpec& model, const TrainSetup& setup, Assumptions& assumptions);

// One paragraph where attention is not one call of cuDNN's fused kernel: what runs instead, why,
// and what to change; else "". `lower`: what `setup` is lowered with, for CUDA. `ordered_program`:
// whether it was lowered as deterministic, which a plan that `train
// --deterministic` runs may not have been.
std::string AttentionNote(const ModelSpec& model, const TrainSetup& setup,
                          const LowerOptions& lower, const GpuProfile& gpu, bool ordered_program);
inline std::string AttentionNote(const ModelSpec& model, const TrainSetup& setup,
                                 const LowerOptions& lower, const GpuProfile& gpu) {
  return AttentionNote(model, setup, lower, gpu, setup.deterministic);
}

// Why attention within packed documents would run on plain kernels on this GPU: "cuDNN takes packed
// documents from compute capability 9.0 on, the GPU has 8.9". "" where it would not, or where whole
// rows run on slow kernels too (fp32).
std::string PlainWithinDocuments(const ModelSpec& model, const TrainSetup& setup,
                                 const GpuProfile& gpu);

// Adds notes where attention is not cuDNN's fused kernel in one call, and where products are not
// tuned.
void NoteKernels(const ModelSpec& model, const TrainSetup& setup, const LowerOptions& lower,
                 const HardwareProfile& hardware, bool ordered_program, Assumptions& assumptions);
// Adds a note of the guessed figures that these setups' times rest on (hwprofiles/guesses.h).
void NoteGuesses(const HardwareProfile& hardware, const Cluster& cluster,
                 std::span<const TrainSetup> setups, Assumptions& assumptions);
// Applies the packing: with documents the program has their borders, and a note says where that
// runs.
void ApplyPacking(const Request& request, LowerOptions& lower, Assumptions& assumptions);
// Names as assumed that gradients of several micro-steps are summed in 16 bits, where nobody said
// so.
void AssumeSums(const Request& request, std::span<const TrainSetup> setups,
                Assumptions& assumptions);
// Adds a note where sums in fp32 that a setup asks for change nothing.
void NoteIdleSums(std::span<const TrainSetup> setups, Assumptions& assumptions);

// Drops what a config's reader said of zeroplan's own executor, which says nothing of another
// program.
void DropOwnNotes(const Request& request, Assumptions& assumptions);

}  // namespace zeroplan
