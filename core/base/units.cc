#include "core/base/units.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "core/base/error.h"
#include "core/base/strings.h"

namespace zeroplan {
namespace {

using Wide = unsigned __int128;

constexpr uint64_t kMaxSize = std::numeric_limits<int64_t>::max();

// digits * 10^exponent, as written, and the unit behind it. Decimal all the way: a double would
// already have lost 9007199254740993.
struct Quantity {
  Wide digits = 0;
  int exponent = 0;
  std::string_view number;
  std::string_view unit;
};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Reads "12", "1.5", ".5", "1e9", "1.5E+9" and hands over what follows. nullopt: no such number, or
// more significant digits than any size has.
std::optional<Quantity> SplitQuantity(std::string_view text) {
  Quantity out;
  size_t i = 0;
  bool any_digit = false;
  constexpr Wide kLimit = static_cast<Wide>(1) << 96;
  auto take_digits = [&](bool fraction) {
    for (; i < text.size() && IsDigit(text[i]); ++i) {
      any_digit = true;
      if (out.digits >= kLimit) return false;
      out.digits = out.digits * 10 + static_cast<unsigned>(text[i] - '0');
      if (fraction) --out.exponent;
    }
    return true;
  };
  if (!take_digits(false)) return std::nullopt;
  if (i < text.size() && text[i] == '.') {
    ++i;
    if (i == text.size() || !IsDigit(text[i]) || !take_digits(true)) return std::nullopt;
  }
  if (!any_digit) return std::nullopt;
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && text[i] == '+') ++i;
    int exponent = 0;
    const auto [end, error] = std::from_chars(text.data() + i, text.data() + text.size(), exponent);
    // 10^±400 is past any size and any double; the bound keeps the sums below in range.
    if (error != std::errc() || exponent > 400 || exponent < -400) return std::nullopt;
    i = static_cast<size_t>(end - text.data());
    out.exponent += exponent;
  }
  out.number = text.substr(0, i);
  while (i < text.size() && text[i] == ' ') ++i;
  if (i == text.size() && text.back() == ' ') return std::nullopt;
  out.unit = text.substr(i);
  return out;
}

// digits * 10^exponent * factor as a whole number. `exact`: a fraction left over is refused, else
// it is dropped. nullopt: past 2^63 - 1, a refused fraction, or zero.
std::optional<uint64_t> ToWhole(Quantity q, uint64_t factor, bool exact) {
  while (q.digits != 0 && q.digits % 10 == 0 && q.exponent < 0) {
    q.digits /= 10;
    ++q.exponent;
  }
  Wide value = q.digits;
  // digits < 10 * 2^96 and binary factors are at most 2^40 apart from powers of ten, which arrive
  // in the exponent; so multiply first only where that cannot wrap.
  if (factor > 1) {
    if (value > (std::numeric_limits<Wide>::max() / factor)) return std::nullopt;
    value *= factor;
  }
  for (; q.exponent > 0; --q.exponent) {
    if (value > kMaxSize) return std::nullopt;
    value *= 10;
  }
  for (; q.exponent < 0; ++q.exponent) {
    if (exact && value % 10 != 0) return std::nullopt;
    value /= 10;
  }
  if (value == 0 || value > kMaxSize) return std::nullopt;
  return static_cast<uint64_t>(value);
}

// The power of 1000 that a prefix stands for, by its place among `prefixes`; 0 if it is none.
int PrefixSteps(char c, std::string_view prefixes) {
  const size_t at = prefixes.find(static_cast<char>(std::toupper(static_cast<unsigned char>(c))));
  return at == std::string_view::npos ? 0 : static_cast<int>(at) + 1;
}
constexpr std::string_view kCountPrefixes = "KMBT";
constexpr std::string_view kBytePrefixes = "KMGTP";

constexpr std::string_view kCountHelp =
    "use a positive whole number such as 125000000, 350M, 1.5B or 1e9 (K, M, B, T; at most 2^63 - "
    "1)";
constexpr std::string_view kBytesHelp =
    "use a positive size such as 32GB, 80GiB or 512MB (K, M, G, T with B or iB; at most 2^63 - 1 "
    "bytes)";
constexpr std::string_view kBandwidthHelp =
    "use bits as in 25Gb/s or bytes as in 100GB/s (K, M, G, T)";

// Hostile input may be long or binary; a message quotes the beginning only.
std::string Quote(std::string_view text) { return "'" + PrintableText(text, 40) + "'"; }

struct ScaledNumber {
  double scaled;
  int steps;
};

// Divides by 1000 until three significant digits print below 1000.
ScaledNumber ToThreeDigits(uint64_t value, int max_steps) {
  double scaled = static_cast<double>(value);
  int steps = 0;
  while (scaled >= 999.5 && steps < max_steps) {
    scaled /= 1000;
    ++steps;
  }
  return {scaled, steps};
}

std::string ThreeDigits(double value) {
  const int decimals = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}", value, decimals);
}

}  // namespace

uint64_t ParseCount(std::string_view text, std::string_view what) {
  if (std::optional<Quantity> q = SplitQuantity(text)) {
    const int steps = q->unit.size() == 1 ? PrefixSteps(q->unit[0], kCountPrefixes) : 0;
    if (steps > 0 || q->unit.empty()) {
      q->exponent += 3 * steps;
      if (std::optional<uint64_t> value = ToWhole(*q, 1, /*exact=*/true)) return *value;
    }
  }
  ThrowUsage("{}: {} is not a count; {}", what, Quote(text), kCountHelp);
}

uint64_t ParseBytes(std::string_view text, std::string_view what) {
  if (std::optional<Quantity> q = SplitQuantity(text)) {
    std::string_view unit = q->unit;
    const int steps = unit.empty() ? 0 : PrefixSteps(unit[0], kBytePrefixes);
    if (steps > 0) unit.remove_prefix(1);
    bool known = false, binary = false;
    if (unit.empty() || ((unit == "B" || unit == "b"))) {
      known = true;
    } else if (steps > 0 && unit.size() == 2 && (unit[0] == 'i' || unit[0] == 'I') &&
               (unit[1] == 'B' || unit[1] == 'b')) {
      known = binary = true;
    }
    if (known) {
      const uint64_t factor = binary ? uint64_t{1} << (10 * steps) : 1;
      if (!binary) q->exponent += 3 * steps;
      // 79.6GiB is no whole number of bytes, and yet what a driver reports: round down. A fraction
      // of a plain byte is a slip.
      if (std::optional<uint64_t> value = ToWhole(*q, factor, /*exact=*/steps == 0)) return *value;
    }
  }
  ThrowUsage("{}: {} is not a size in bytes; {}", what, Quote(text), kBytesHelp);
}

double ParseBandwidth(std::string_view text, std::string_view what) {
  if (std::optional<Quantity> q = SplitQuantity(text)) {
    std::string_view unit = q->unit;
    if (unit.ends_with("/s") || unit.ends_with("ps")) unit.remove_suffix(2);
    const bool per_second_only = unit.empty() && !q->unit.empty();
    double scale = 1;
    bool binary = false;
    if (!unit.empty()) {
      const int steps = PrefixSteps(unit[0], kBytePrefixes);
      if (steps > 0) unit.remove_prefix(1);
      if (steps > 0 && !unit.empty() && (unit[0] == 'i' || unit[0] == 'I')) {
        binary = true;
        unit.remove_prefix(1);
      }
      scale = std::pow(binary ? 1024.0 : 1000.0, steps);
    }
    // Here the case of the b carries meaning: bits or bytes. A bare number is bytes a second.
    const bool bits = unit == "b" || unit == "bit";
    const bool bytes = unit == "B" || (unit.empty() && q->unit.empty());
    if ((bits || bytes) && !per_second_only) {
      double number = 0;
      const auto [end, error] =
          std::from_chars(q->number.data(), q->number.data() + q->number.size(), number,
                          std::chars_format::general);
      const double value = number * scale / (bits ? 8 : 1);
      if (error == std::errc() && end == q->number.data() + q->number.size() &&
          std::isfinite(value) && value > 0) {
        return value;
      }
    }
  }
  ThrowUsage("{}: {} is not a bandwidth; {}", what, Quote(text), kBandwidthHelp);
}

std::string FormatBytes(uint64_t bytes) {
  if (bytes < 1000) return fmt::format("{} B", bytes);
  constexpr std::array<const char*, 7> kUnits = {"B", "KB", "MB", "GB", "TB", "PB", "EB"};
  const ScaledNumber n = ToThreeDigits(bytes, 6);
  return fmt::format("{} {}", ThreeDigits(n.scaled), kUnits[n.steps]);
}

std::string FormatPercent(double share) {
  const double percent = 100 * share;
  return percent < 99.5 ? fmt::format("{:.2g}", percent) : fmt::format("{:.0f}", percent);
}

std::string FormatCount(uint64_t count) {
  if (count < 1000) return fmt::format("{}", count);
  constexpr std::array<const char*, 5> kUnits = {"", "K", "M", "B", "T"};
  const ScaledNumber n = ToThreeDigits(count, 4);
  return ThreeDigits(n.scaled) + kUnits[n.steps];
}

std::string FormatRate(double tokens_per_second) {
  return FormatCount(static_cast<uint64_t>(std::llround(tokens_per_second)));
}

uint64_t CheckedMul(uint64_t a, uint64_t b, std::string_view what) {
  uint64_t out = 0;
  if (__builtin_mul_overflow(a, b, &out)) {
    ThrowUsage("{}: {} x {} is too large; use smaller values (at most 2^64 - 1)", what, a, b);
  }
  return out;
}

uint64_t CheckedAdd(uint64_t a, uint64_t b, std::string_view what) {
  uint64_t out = 0;
  if (__builtin_add_overflow(a, b, &out)) {
    ThrowUsage("{}: {} + {} is too large; use smaller values (at most 2^64 - 1)", what, a, b);
  }
  return out;
}

}  // namespace zeroplan
