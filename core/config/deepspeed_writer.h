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

// Sets every field that has no effect to the value that the reader gives it when a config leaves it
// out: a stage 3 key below stage 3, the settings of an unused offload or schedule, loss scaling
// without fp16, a recompute segment longer than the model. The result trains the same, step by step
// and byte by byte. `layers`: the model's layers; 0: unknown.
TrainSetup CanonicalSetup(TrainSetup setup, int64_t layers);

// Returns strict JSON with every key that is needed to reproduce `setup`, in the order in which
// people write them. A value is left out where it is the default of both DeepSpeed and zeroplan's
// reader. ReadDeepSpeedConfig of the result with the same world size, sequence length and `layers`
// returns exactly CanonicalSetup(setup). REQUIRES: a valid setup without kAuto (the caller fills in
// what zeroplan chose), and DeepSpeedCannot(setup) is empty but for a schedule without length,
// which is "auto": whoever runs it fills that in.
//
// `layers`: the model's layers, for activation_checkpointing.number_checkpoints. In DeepSpeed the
// model's own code decides what is recomputed; the config only has the number of segments. Callers
// tell the user so. A segment length that no number of segments gives (6 layers of 10) is also
// written as "_zeroplan": {"checkpoint_every": 6}; DeepSpeed ignores that key.
std::string WriteDeepSpeedConfig(const TrainSetup& setup, int64_t layers);
// `setup` with a length for a schedule without one, as whoever runs it fills "auto" in.
TrainSetup WithScheduleLength(TrainSetup setup);

// The same for zeroplan's own reader: DeepSpeedCannot need not be empty. Settings that DeepSpeed
// lacks are written under "_zeroplan". Recompute is "checkpointing" ("selective" or "products"),
// "checkpoint_layers" and "checkpointing_above". Activations in host memory are DeepSpeed's
// "cpu_checkpointing" with full recompute, else "offload_activations": true;
// "offload_activation_layers" limits them to some layers. A deterministic run is "deterministic":
// true. A RunScheduleConfig is "lr_schedule", "warmup_ratio" or "warmup_num_steps", and
// "min_lr_ratio". Shard groups are "shard_group" and "across_groups". States are "master_weights"
// and "optimizer_states".
std::string WriteConfig(const TrainSetup& setup, int64_t layers);

// Names the parts of `setup` that DeepSpeed cannot do: "ratio 0.4 below stage 3", "the optimizer on
// NVMe below stage 3". Empty if DeepSpeed can do all of it. A search for a DeepSpeed config leaves
// out setups for which it is not empty.
std::string DeepSpeedCannot(const TrainSetup& setup);

// The keys for 16-bit states that DeepSpeed accepts for `setup`. DeepSpeed supports 16-bit masters
// at stages 1 to 3 if moments are bf16 too or the optimizer is offloaded (runtime/config.py;
// base_optimizer.py, _configure_master_weights).
struct DeepSpeedStateKeys {
  bool masters = false;  // bf16_master_weights_and_grads, fp16_master_weights_and_grads
  bool moments = false;  // bf16_optimizer_states
};
DeepSpeedStateKeys StateKeysOf(const TrainSetup& setup);
// Names the formats of states in `setup` that DeepSpeed lacks: "master weights in two halves",
// joined by "and"; "" if it has all.
std::string DeepSpeedStatesCannot(const TrainSetup& setup);

// Keys of a config that was read and must survive in the config that is written.

// Returns `written`, a DeepSpeed config as strict JSON, plus every key of `incoming` that it lacks:
// other sections, comments, unknown keys, settings that have no effect here. Where both have a key,
// `written` decides. Keys that would contradict `written` are left out: "auto" in the sections and
// keys that the reader reads (zeroplan has chosen those values), and other or deprecated names of
// keys that `written` has. `incoming` decides whether whole weights are gathered when a model is
// saved, because no plan decides that.
std::string KeepOtherKeys(std::string_view written, const JsonNode& incoming);

// Returns `config`, which is strict JSON, with its target under "_zeroplan": {"runtime": "deepspeed
// 0.19.6"} and the entries of `recipe`, whose names are those of IsRecipe rows. Other programs
// ignore "_zeroplan". If `recipe` has "optim", the result has no optimizer section.
std::string NameRuntime(std::string_view config, std::string_view runtime,
                        const std::vector<std::pair<std::string, std::string>>& recipe);

}  // namespace zeroplan
