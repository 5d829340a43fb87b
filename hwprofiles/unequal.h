// Nodes with GPUs of several kinds. Ranks run in step and hold equal shards, so that all are
// planned as what the slowest and smallest of them reach.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "hwprofiles/profile.h"

namespace zeroplan {

// How many of each, in the order of their first.
using GpuCounts = std::vector<std::pair<std::string, int>>;
// Adds `count` of `name`.
void AddTo(GpuCounts& counts, const std::string& name, int count);

// Sets `gpu` of a profile with kinds: the slowest one's (by products in 16 bits, then memory
// bandwidth), and of each of its figures the worst of all kinds: least memory, peaks, bandwidth,
// what all are capable of, the longest launch; of board_power the mean, which gives a node's.
// Tables by shape are those of the kind that the figure is of. REQUIRES: several kinds.
void TakeSlowest(HardwareProfile& profile);

// "1 x NVIDIA GeForce RTX 4090, 1 x NVIDIA GeForce RTX 3090".
std::string KindsText(const HardwareProfile& profile);

// What is planned with, and what faster kinds lose by it, by peaks; a paragraph. "" for one kind.
std::string UnequalNote(const HardwareProfile& profile);

// One host with so many of each built-in GPU ("rtx4090"), with host and links of the machine that
// SeveralOf (names.cc) has for the one of them whose link is slowest. REQUIRES: several kinds.
HardwareProfile UnequalProfile(const GpuCounts& parts);

}  // namespace zeroplan
