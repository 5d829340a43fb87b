// Ranks that are started apart may be told different things, and a resume other things than its
// checkpoint. Found before the first step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config/packing.h"
#include "core/config/zero_config.h"
#include "core/program/program.h"
#include "executor/process/process_group.h"

namespace zeroplan {

// What a rank is about to do, by name: {"program", "8c1f..."}, {"--steps", "100"}.
using NamedFacts = std::vector<std::pair<std::string, std::string>>;

// Called before anything else that ranks do together. They compare what runs (OwnBinary), then
// `facts`, those that decide what is exchanged next. Rank 0 warns of clocks that differ
// (ClockWarning). Throws as AgreeOnFacts.
void AgreeAtStart(ProcessGroup& group, const NamedFacts& facts);

// Throws Error(kUsage) on every rank, naming the first rank that differs from rank 0, and in what.
// A fact that one of them lacks is "none" there. REQUIRES: no tab in a name, no line feed in
// either.
void AgreeOnFacts(ProcessGroup& group, const NamedFacts& facts);

// What the program was lowered from, by name: the model's fields, and the setup's keys as a config
// has them ("zero_optimization.stage"). What a config says of a setup is among them by itself.
NamedFacts SettingsOf(const Program& program);

// What this process runs: version, a hash of its program's file, the version of NCCL ("none" in
// a build without) and CudaLibraries. Two builds of one version may differ in the last bit of a
// result.
NamedFacts OwnBinary();

// The files of cuBLAS, cuDNN and the CUDA runtime that are loaded, whose names hold their versions:
// "libcublasLt.so.13.1.0.3, libcudart.so.13.0.96". "none loaded" if none is. `maps`: a file as
// /proc/self/maps.
std::string CudaLibraries(const std::filesystem::path& maps = "/proc/self/maps");

// "" if the ranks' clocks, read at about the same time in ms since the epoch, are within a few
// seconds of each other; else a sentence that names the rank that is farthest off.
std::string ClockWarning(const std::vector<int64_t>& clocks_ms);

// What a resume may change only where --allow-change names it: other samples would be trained on,
// or held-out ones, or adapters on another base than theirs.
inline constexpr std::string_view kHeldFacts[] = {"data", "order", "seq-len", "base"};

// The facts that decide the numbers of a run, by name: those, and "global batch", "lr", "betas",
// ..., "schedule", "precision", "products", "master weights" and "optimizer states". `steps`: the
// length of the run, which schedules without one of their own decay over. `data`: the digest of its
// content. What merely says how the work is cut (micro-batch, ranks, stage, offload, recompute) is
// not among them.
NamedFacts DecidingFacts(const TrainSetup& setup, int64_t steps, bool shuffle,
                         const std::string& data, Packing packing = Packing::kStream,
                         bool truncate = false);

struct RunChange {
  std::string name;
  // "lr: 0.001 in the checkpoint, 0.0005 from here on"; of states also what becomes of the numbers:
  // "optimizer states: fp32 in the checkpoint, bf16 from here on: rounded once".
  std::string sentence;
};

// Compares with the facts that the checkpoint was saved with. Throws Error(kUsage) naming every
// held fact that differs and is not in `allowed`, with the checkpoint. Returns every other
// difference.
std::vector<RunChange> CompareWithCheckpoint(const NamedFacts& now,
                                             const std::map<std::string, std::string>& saved,
                                             const std::vector<std::string>& allowed,
                                             const std::string& checkpoint);

}  // namespace zeroplan
