#include "executor/kernels/cpu_kernels.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/strings.h"
#include "executor/kernels/cpu_levels.h"

#ifdef ZEROPLAN_WITH_CPU_LEVELS
#include <cpuid.h>
#endif

extern "C" {
extern const zeroplan::CpuKernelSet zeroplan_kernels_baseline;
#ifdef ZEROPLAN_WITH_CPU_LEVELS
extern const zeroplan::CpuKernelSet zeroplan_kernels_v3, zeroplan_kernels_v4;
#endif
}

namespace zeroplan {
namespace {

#ifdef ZEROPLAN_WITH_CPU_LEVELS
// The features of x86-64-v3 and v4 in the System V psABI. The compiler's test covers the registers
// that the system saves. Clang 14's knows no F16C, MOVBE and LZCNT.
bool HasV3() {
  unsigned a = 0, b = 0, c = 0, d = 0, extended = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return false;
  if (__get_cpuid(0x80000001, &a, &b, &extended, &d) == 0) return false;
  return (c & bit_F16C) != 0 && (c & bit_MOVBE) != 0 && (extended & bit_LZCNT) != 0 &&
         __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}
bool HasV4() {
  return HasV3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
#endif

std::string NamesOf(std::span<const CpuLevel> levels) {
  std::string names;
  for (size_t i = 0; i < levels.size(); ++i) {
    if (i > 0) names += i + 1 == levels.size() ? " or " : ", ";
    names += CpuLevelName(levels[i]);
  }
  return names;
}

KernelTable& CpuTable() {
  static KernelTable table = {.rows = BestCpuKernels().rows};
  return table;
}

}  // namespace

std::string_view CpuLevelName(CpuLevel level) {
  switch (level) {
    case CpuLevel::kBaseline:
      return "baseline";
    case CpuLevel::kV3:
      return "v3";
    case CpuLevel::kV4:
      return "v4";
  }
  return "";
}

const CpuKernelSet* CpuKernelsOf(CpuLevel level) {
  switch (level) {
    case CpuLevel::kBaseline:
      return &zeroplan_kernels_baseline;
#ifdef ZEROPLAN_WITH_CPU_LEVELS
    case CpuLevel::kV3:
      return HasV3() ? &zeroplan_kernels_v3 : nullptr;
    case CpuLevel::kV4:
      return HasV4() ? &zeroplan_kernels_v4 : nullptr;
#else
    case CpuLevel::kV3:
    case CpuLevel::kV4:
      return nullptr;
#endif
  }
  return nullptr;
}

std::vector<CpuLevel> CpuLevelsHere() {
  std::vector<CpuLevel> here;
  for (const CpuLevel level : kCpuLevels) {
    if (CpuKernelsOf(level) != nullptr) here.push_back(level);
  }
  return here;
}

CpuLevel ChooseCpuLevel(const char* named, std::span<const CpuLevel> here) {
  if (named == nullptr || *named == '\0') return here.back();
  for (const CpuLevel level : kCpuLevels) {
    if (CpuLevelName(level) != named) continue;
    if (std::find(here.begin(), here.end(), level) != here.end()) return level;
    ThrowUsage("ZEROPLAN_CPU: this CPU or this build has no {}; use {}", named, NamesOf(here));
  }
  ThrowUsage("ZEROPLAN_CPU: '{}' is not allowed; use {}", PrintableText(named, 40), NamesOf(here));
}

const CpuKernelSet& BestCpuKernels() {
  static const CpuKernelSet& best =
      *CpuKernelsOf(ChooseCpuLevel(std::getenv("ZEROPLAN_CPU"), CpuLevelsHere()));
  return best;
}

const KernelTable& CpuKernels() { return CpuTable(); }

void SetExtraCpuKernel(KernelFn fn) { CpuTable().rows.back() = fn; }

}  // namespace zeroplan
