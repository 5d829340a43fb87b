// Scales that measured figures are written in.
#pragma once

#include <cstdint>

namespace zeroplan {

constexpr double kTera = 1e12, kGiga = 1e9, kMega = 1e6, kMicro = 1e-6, kPico = 1e-12;
constexpr uint64_t kKib = 1024, kMib = 1024 * kKib, kGib = 1024 * kMib;

}  // namespace zeroplan
