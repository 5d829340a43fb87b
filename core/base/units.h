// Sizes as people write them. Counts use powers of ten (10B parameters = 10^10); memory is GB =
// 10^9 bytes, as on data sheets, and GiB = 2^30 bytes, as printed by the driver.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace zeroplan {

// "10B", "1.5e9", "350M", "125000000", "2k", "1T": a positive count. `what` is the option or key
// that the error names. Throws Error(kUsage) for nonsense, zero, negative, fractional counts,
// non-finite numbers and anything past 2^63 - 1.
uint64_t ParseCount(std::string_view text, std::string_view what);

// "32GB", "80GiB", "512MB", "1.5e9" (bytes): a positive number of bytes; K/M/G/T with B (10^3
// steps) or iB (2^10 steps). A bare "32G" means GB. Throws the errors of ParseCount.
uint64_t ParseBytes(std::string_view text, std::string_view what);

// "25Gb" or "25Gb/s" (bits per second), "100GB/s" (bytes per second): bytes per second.
double ParseBandwidth(std::string_view text, std::string_view what);

// 1.50 GB, 831 MB: three significant digits, powers of ten.
std::string FormatBytes(uint64_t bytes);
// 10.3B, 124M: three significant digits.
std::string FormatCount(uint64_t count);
// Tokens a second, rounded to the nearest whole number, then as FormatCount: wherever a rate is
// printed, so that one rate reads the same in a table, a sentence and a picture.
std::string FormatRate(double tokens_per_second);

// A share in per cent, "0.58", "41", "150": two significant digits below 10, whole from 10 on.
std::string FormatPercent(double share);

constexpr uint64_t CeilDiv(uint64_t a, uint64_t b) { return (a + b - 1) / b; }
constexpr uint64_t AlignUp(uint64_t value, uint64_t alignment) {
  return CeilDiv(value, alignment) * alignment;
}

// Overflow-checked arithmetic for sizes that a user controls: throws Error(kUsage) naming `what`.
uint64_t CheckedMul(uint64_t a, uint64_t b, std::string_view what);
uint64_t CheckedAdd(uint64_t a, uint64_t b, std::string_view what);

}  // namespace zeroplan
