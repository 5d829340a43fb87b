// Nodes with GPUs of several kinds. Ranks run in step and hold equal shards, so all are planned
// with the figures of the slowest and smallest.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "hwprofiles/profile.h"

namespace zeroplan {

// The number of each name, in the order of first occurrence.
using GpuCounts = std::vector<std::pair<std::string, int>>;
// Adds `count` of `name`.
void AddTo(GpuCounts& counts, const std::string& name, int count);

// Sets `gpu` of a profile with several kinds: the slowest one's (by 16-bit matmuls, then memory
// bandwidth), with each figure replaced by the worst of all kinds: least memory, peaks, bandwidth,
// the capabilities that all have, the longest launch; for board_power the mean, which gives a
// node's total. Tables by shape come from the kind that the figure comes from. REQUIRES: several
// kinds.
void TakeSlowest(HardwareProfile& profile);

// "1 x NVIDIA GeForce RTX 4090, 1 x NVIDIA GeForce RTX 3090".
std::string KindsText(const HardwareProfile& profile);

// The figures that are planned with, and the loss of faster kinds, by peaks; a paragraph. "" for
// one kind.
std::string UnequalNote(const HardwareProfile& profile);

// One host with the given number of each built-in GPU ("rtx4090"), with host and links of
// SeveralOf's machine (names.cc) for the GPU whose link is slowest. REQUIRES: several kinds.
HardwareProfile UnequalProfile(const GpuCounts& parts);

}  // namespace zeroplan
