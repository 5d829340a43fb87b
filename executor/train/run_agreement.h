// Checks before the first step that ranks started separately got the same instructions, and that a
// resume got those of its checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/program/program.h"
#include "core/settings/packing.h"
#include "core/settings/zero_config.h"
#include "executor/process/process_group.h"

namespace zeroplan {

// Facts of a rank's run, by name: {"program", "8c1f..."}, {"--steps", "100"}.
using NamedFacts = std::vector<std::pair<std::string, std::string>>;

// Called before any other collective of the ranks. Compares the binaries (OwnBinary), then `facts`,
// which determine the next exchanges. Rank 0 warns of clocks that differ (ClockWarning). Throws as
// AgreeOnFacts.
void AgreeAtStart(ProcessGroup& group, const NamedFacts& facts);

// Throws Error(kUsage) on every rank, naming the first rank that differs from rank 0, and the fact.
// A missing fact counts as "none". REQUIRES: no tab in a name, no line feed in either.
void AgreeOnFacts(ProcessGroup& group, const NamedFacts& facts);

// The inputs of the program's lowering, by name: the model's fields, and the setup's keys in a
// config ("zero_optimization.stage"), each key as a fact of its own.
NamedFacts SettingsOf(const Program& program);

// This process's binary: version, and a hash of its program's file. Two builds of one version may
// differ in the last bit of a result.
NamedFacts OwnBinary();

// "" if the ranks' clocks, read at about the same time in ms since the epoch, are within a few
// seconds of each other; else a sentence that names the rank that is farthest off.
std::string ClockWarning(const std::vector<int64_t>& clocks_ms);

// Facts that a resume may change only if --allow-change names them: otherwise it would train on
// other samples, or on held-out ones, or use adapters with another base than theirs.
inline constexpr std::string_view kHeldFacts[] = {"data", "order", "seq-len", "base"};

// The facts that determine the numbers of a run, by name: those of kHeldFacts, and "global batch",
// "lr", "betas", ..., "schedule", "precision", "products", "master weights" and "optimizer states".
// `steps`: the length of the run, over which schedules without a length of their own decay. `data`:
// the digest of its content. Facts that only determine how the work is divided (micro-batch, ranks,
// stage, offload, recompute) are left out.
NamedFacts DecidingFacts(const TrainSetup& setup, int64_t steps, bool shuffle,
                         const std::string& data, Packing packing = Packing::kStream,
                         bool truncate = false);

struct RunChange {
  std::string name;
  // "lr: 0.001 in the checkpoint, 0.0005 from here on"; for states also their conversion:
  // "optimizer states: fp32 in the checkpoint, bf16 from here on: rounded once".
  std::string sentence;
};

// Compares with the facts saved in the checkpoint. Throws Error(kUsage) naming every held fact that
// differs and is not in `allowed`, with the checkpoint. Returns every other difference.
std::vector<RunChange> CompareWithCheckpoint(const NamedFacts& now,
                                             const std::map<std::string, std::string>& saved,
                                             const std::vector<std::string>& allowed,
                                             const std::string& checkpoint);

}  // namespace zeroplan
