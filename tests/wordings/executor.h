// The prose that tests/executor assert on: change a wording here when a message changes.
#pragma once

namespace zeroplan::wording {

// kernels/cpu_levels_test.cc
inline constexpr const char kCpuHasNoV4[] =
    "ZEROPLAN_CPU: this CPU or this build has no v4; use baseline or v3";
inline constexpr const char kCpuAvx2IsNotAllowed[] =
    "ZEROPLAN_CPU: 'avx2' is not allowed; use baseline, v3 or v4";
inline constexpr const char kCpuV3IsNotAllowed[] =
    "ZEROPLAN_CPU: 'V3' is not allowed; use baseline";

}  // namespace zeroplan::wording
