// The CPU backend's kernels, compiled once for each level of instruction sets, and the choice of a
// level at run time.
//
// levels.cmake compiles this folder's sources for each level. All that a level's objects export is
// its CpuKernelSet, so no inline function that is compiled for AVX runs on a CPU without it. Code
// outside of this folder is compiled for the lowest level: a function of this folder that it calls
// by name is the baseline's, and a fast one is a member of BestCpuKernels().
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "executor/kernels/adamw_update.h"
#include "executor/kernels/kernel_call.h"

namespace zeroplan {

// Levels of the x86-64 psABI: v3 has AVX2, FMA and F16C, v4 has AVX-512. Other architectures have
// the baseline alone.
enum class CpuLevel : uint8_t { kBaseline, kV3, kV4 };
inline constexpr std::array kCpuLevels = {CpuLevel::kBaseline, CpuLevel::kV3, CpuLevel::kV4};

// "baseline", "v3" or "v4".
std::string_view CpuLevelName(CpuLevel level);

struct CpuKernelSet {
  std::array<KernelFn, kKernelSlots> rows;  // by KernelId
  const AdamLoops* adam;
  // The functions of convert.h.
  void (*widen)(Dtype dtype, const void* src, int64_t n, float* dst);
  void (*narrow)(Dtype dtype, const float* src, int64_t n, void* dst);
  void (*narrow_half_away)(const float* src, int64_t n, uint16_t* dst);
};

// nullptr if this build or this CPU lacks the level.
const CpuKernelSet* CpuKernelsOf(CpuLevel level);

// The levels that this build and this CPU have, ascending.
std::vector<CpuLevel> CpuLevelsHere();

// The highest level of `here`, or the one that `named`, the value of ZEROPLAN_CPU, asks for. Throws
// Error(kUsage) if that is no level or not in `here`. REQUIRES: `here` ascends and is not empty.
CpuLevel ChooseCpuLevel(const char* named, std::span<const CpuLevel> here);

// The kernels of the highest level that this CPU and this build have, or of the level that the
// environment variable ZEROPLAN_CPU names (baseline, v3 or v4). Throws Error(kUsage) as above.
const CpuKernelSet& BestCpuKernels();

}  // namespace zeroplan
