// From options to what is planned or run. All throw Error(kUsage).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/common/common_options.h"
#include "core/config/zero_config.h"
#include "core/lowering/lower.h"
#include "core/model/model_spec.h"
#include "hwprofiles/profile.h"
#include "planner/cluster.h"
#include "planner/estimate/choices.h"
#include "planner/estimate/run_cost.h"

namespace zeroplan {

// What resolving assumed ("--micro-batch 1") and other lines for the user.
struct Assumptions {
  std::vector<std::string> assumed;
  std::vector<std::string> notes;
  std::optional<int> detected_gpus;  // of this machine, where it gives the hardware profile
};

// Tokens a sequence of a model that is derived from --params, unless --seq-len says.
inline constexpr int64_t kDerivedSeqLen = 1024;
// The sequence length for a model that takes longer ones: what such models are mostly trained with.
inline constexpr int64_t kLongestUsualSeqLen = 4096;
// The family that was asked for, else the first there is.
const ModelFamily& FamilyOf(const ModelOptions& options);
// `seq_len`: of a model that is derived from --params.
ModelSpec ResolveModel(const ModelOptions& options, const Option<int64_t>& seq_len,
                       Assumptions& assumptions);
// Whether the bandwidth of this machine's memory is measured, where this machine is what --hw left
// out and 'hw measure' kept nothing of it. It takes a fraction of a second of all cores.
enum class MeasureHost : uint8_t { kNo, kYes };
// --hw; else what 'hw measure' kept of this machine (machine/kept_profile.h), else its GPUs
// (machine/detect.h); else the default profile. With --network and --intra-node-bandwidth.
HardwareProfile ResolveHardware(const HardwareOptions& options, Assumptions& assumptions,
                                MeasureHost measure = MeasureHost::kNo);
// Adds a note of the guessed figures that these setups' times rest on (hwprofiles/guesses.h).
void NoteGuesses(const HardwareProfile& hardware, const Cluster& cluster,
                 std::span<const TrainSetup> setups, Assumptions& assumptions);
// How programs of `model` in `dtype` are lowered for such GPUs: for CUDA, keeping attention's
// scores where no other kernel takes its heads.
// Applies the packing: with documents the program has their borders, and a note says where that
// runs.
void ApplyPacking(const CommonOptions& options, LowerOptions& lower, Assumptions& assumptions);
LowerOptions GpuLowerOptions(const ModelSpec& model, Dtype dtype, const GpuProfile& gpu);
// Adds a note where attention is not cuDNN's fused kernel in one call (planner/attention_note.h).
void NoteAttention(const ModelSpec& model, const TrainSetup& setup, const LowerOptions& lower,
                   const HardwareProfile& hardware, bool ordered_program, Assumptions& assumptions);
// Adds a note where sums in fp32 that a setup asks for change nothing.
void NoteIdleSums(std::span<const TrainSetup> setups, Assumptions& assumptions);
Cluster ResolveCluster(const CommonOptions& options, const HardwareProfile& hardware,
                       Assumptions& assumptions);

// The sequence length: --seq-len, else the model's. Throws if it is more than the model's
// positions.
int64_t ResolveSeqLen(const CommonOptions& options, const ModelSpec& model,
                      Assumptions& assumptions);
// `options` with --global-batch-tokens as --global-batch, in sequences of `seq_len`. Throws where
// that is not a whole number of them for each of `gpus`, and where --global-batch is so many that
// its number must have been tokens.
BatchOptions InSequences(BatchOptions options, int64_t seq_len, int gpus);
// --tokens and --gpu-hour-price.
RunGoal ResolveGoal(const GoalOptions& options, int64_t seq_len);
// --dtype, or `otherwise`.
PrecisionConfig ResolvePrecision(const BatchOptions& options, const HardwareProfile& hardware,
                                 Dtype otherwise, Assumptions& assumptions);

// Refuses --checkpoint-every where it has no effect.
void CheckCheckpointEvery(const ChoiceOptions& options);
// The choices of the options, all that can run. Of what they leave out, batch parts are 1, and
// `dtype` and `otherwise` say the rest.
std::vector<TrainSetup> ResolveSetups(const CommonOptions& options, const ModelSpec& model,
                                      const HardwareProfile& hardware, int gpus, Dtype dtype,
                                      ChoiceSpace otherwise, Assumptions& assumptions);
// The one setup of --config.
TrainSetup ResolveConfig(const CommonOptions& options, const ModelSpec& model,
                         const HardwareProfile& hardware, int gpus, Assumptions& assumptions);

}  // namespace zeroplan
