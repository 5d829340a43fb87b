// Writes a TrainSetup as a DeepSpeed JSON config that DeepSpeed itself loads.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/json_source.h"
#include "core/config/config_document.h"
#include "core/settings/zero_config.h"

namespace zeroplan {

// The setup with every field that has no effect (a stage 3 key below stage 3, the settings of an
// offload or schedule that is not used, loss scaling without fp16, a recompute segment longer than
// the model) at the value that the reader gives it when a config leaves it out. It trains the same,
// step by step and byte by byte. `layers`: of the model; 0: not known.
TrainSetup CanonicalSetup(TrainSetup setup, int64_t layers);

// Every key that is needed to reproduce `setup`, values at which DeepSpeed and zeroplan's reader
// agree by default left out: strict JSON, keys in the order in which people write them.
// ReadDeepSpeedConfig of the result with the same world size, sequence length and `layers` gives
// CanonicalSetup(setup) back, exactly. REQUIRES: a valid setup, nothing kAuto (the caller puts in
// what zeroplan chose), DeepSpeedCannot(setup) empty.
//
// `layers`: of the model, for activation_checkpointing.number_checkpoints. In DeepSpeed the model's
// own code decides what is recomputed; the config only has the number of segments. Callers tell the
// user so. Segments that no number gives (6 layers of 10) are written beside it as
// "_zeroplan": {"checkpoint_every": 6}, which DeepSpeed ignores.
std::string WriteDeepSpeedConfig(const TrainSetup& setup, int64_t layers);

// The same for zeroplan's own reader: DeepSpeedCannot need not be empty. Recompute that DeepSpeed
// has not is "_zeroplan": {"checkpointing": "selective"} or "products", "checkpoint_layers" and
// "checkpointing_above"; activations in host memory are DeepSpeed's "cpu_checkpointing" beside full
// recompute, else "_zeroplan": {"offload_activations": true}, and "offload_activation_layers" of
// some layers; a deterministic run is "_zeroplan": {"deterministic": true}; so is a
// RunScheduleConfig, as "lr_schedule", "warmup_ratio" or "warmup_num_steps", and "min_lr_ratio";
// and so are shard groups that DeepSpeed has no key for, as "shard_group" and "across_groups", and
// states that it has no key for, as "master_weights" and "optimizer_states".
std::string WriteConfig(const TrainSetup& setup, int64_t layers);

// What DeepSpeed cannot do of `setup`: "ratio 0.4 below stage 3", "the optimizer on NVMe below
// stage 3"; empty if it can do all. The search leaves such choices out when a DeepSpeed config is
// wanted.
std::string DeepSpeedCannot(const TrainSetup& setup);

// Which of its keys for light states DeepSpeed takes for `setup`: it has masters in 16 bit at
// stages 1 to 3, where moments are bf16 too or the optimizer is offloaded (runtime/config.py;
// base_optimizer.py, _configure_master_weights).
struct DeepSpeedStateKeys {
  bool masters = false;  // bf16_master_weights_and_grads, fp16_master_weights_and_grads
  bool moments = false;  // bf16_optimizer_states
};
DeepSpeedStateKeys StateKeysOf(const TrainSetup& setup);
// What of the states of `setup` DeepSpeed has not: "master weights in two halves", joined by
// "and"; "" if nothing.
std::string DeepSpeedStatesCannot(const TrainSetup& setup);

// The keys of a config that came in which go out again beside those that were written.

// `written`, a DeepSpeed config as strict JSON, with every key of `incoming` that it does not have:
// other sections, comments, keys that nobody knows, settings that have no effect here. Where both
// have a key, `written` decides. Keys that would contradict it are left out: "auto" in the sections
// and keys that the reader reads (it was for zeroplan to choose), other and deprecated names of
// keys that `written` has. Whether whole weights are gathered when a model is saved stays as
// `incoming` says it: no plan decides that.
std::string KeepOtherKeys(std::string_view written, const JsonNode& incoming);

// `config`, strict JSON, with what it is for under "_zeroplan", which programs other than zeroplan
// ignore: {"runtime": "deepspeed 0.19.6"}, and what `recipe` says by the names of IsRecipe rows.
// With "optim" the config has no optimizer of its own.
std::string NameRuntime(std::string_view config, std::string_view runtime,
                        const std::vector<std::pair<std::string, std::string>>& recipe);

}  // namespace zeroplan
