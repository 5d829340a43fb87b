// Ranks that are started apart may be told different things. Found before the first step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "executor/process/process_group.h"

namespace zeroplan {

// What a rank is about to do, by name: {"program", "8c1f..."}, {"--steps", "100"}.
using NamedFacts = std::vector<std::pair<std::string, std::string>>;

// Before anything else that ranks do together: what runs (OwnBinary), then `facts`, those that
// decide what is exchanged next. Rank 0 warns of clocks that differ (ClockWarning). Throws as
// AgreeOnFacts.
void AgreeAtStart(ProcessGroup& group, const NamedFacts& facts);

// Throws Error(kUsage) on every rank, naming the first rank and fact that differ from rank 0's.
// REQUIRES: the same names in the same order everywhere, no line feed in a value.
void AgreeOnFacts(ProcessGroup& group, const NamedFacts& facts);

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

}  // namespace zeroplan
