// The choice of a level of instruction sets, and its sets of kernels.
#include "executor/kernels/cpu_levels.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include "core/base/error.h"
#include "tests/wordings/executor.h"

namespace zeroplan {
namespace {

std::string Refusal(const char* named, std::span<const CpuLevel> here) {
  try {
    ChooseCpuLevel(named, here);
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUsage);
    return error.what();
  }
  return "";
}

TEST_CASE("cpu levels: the highest of the CPU, or the one that ZEROPLAN_CPU names") {
  constexpr std::array kOld = {CpuLevel::kBaseline, CpuLevel::kV3};
  CHECK(ChooseCpuLevel(nullptr, kCpuLevels) == CpuLevel::kV4);
  CHECK(ChooseCpuLevel("", kOld) == CpuLevel::kV3);
  CHECK(ChooseCpuLevel("baseline", kOld) == CpuLevel::kBaseline);
  CHECK(ChooseCpuLevel("v3", kCpuLevels) == CpuLevel::kV3);
  CHECK(Refusal("v4", kOld) == wording::kCpuHasNoV4);
  CHECK(Refusal("avx2", kCpuLevels) == wording::kCpuAvx2IsNotAllowed);
  CHECK(Refusal("V3", std::span(kOld).first(1)) == wording::kCpuV3IsNotAllowed);
}

// A kernel that a level's objects lack would be the baseline's, without a word of the linker's.
TEST_CASE("cpu levels: each one here has all kernels of its own") {
  const std::vector<CpuLevel> here = CpuLevelsHere();
  REQUIRE(here.front() == CpuLevel::kBaseline);
  const CpuKernelSet& baseline = *CpuKernelsOf(CpuLevel::kBaseline);
  for (const CpuLevel level : here) {
    CAPTURE(CpuLevelName(level));
    const CpuKernelSet& kernels = *CpuKernelsOf(level);
    const bool is_baseline = level == CpuLevel::kBaseline;
    CHECK((kernels.widen == baseline.widen) == is_baseline);
    CHECK((kernels.narrow == baseline.narrow) == is_baseline);
    CHECK((kernels.adam->f32 == baseline.adam->f32) == is_baseline);
    for (size_t row = 0; row < kKernelCount; ++row) {
      CAPTURE(row);
      REQUIRE((kernels.rows[row] != nullptr));
      // executor/optimizer has the one that is not in this folder.
      const bool shared = is_baseline || static_cast<KernelId>(row) == KernelId::kStepScalars;
      CHECK((kernels.rows[row] == baseline.rows[row]) == shared);
    }
  }
  CHECK(&BestCpuKernels() ==
        CpuKernelsOf(ChooseCpuLevel(std::getenv("ZEROPLAN_CPU"), CpuLevelsHere())));
}

}  // namespace
}  // namespace zeroplan
