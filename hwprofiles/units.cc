#include "hwprofiles/units.h"

namespace zeroplan {
namespace {

// Scale of "", K, M, G, T, P (powers of 1000) or Ki, Mi, Gi, Ti (powers of 1024).
std::optional<double> PrefixScale(std::string_view prefix, bool binary_allowed) {
  constexpr std::string_view kLetters = "KMGTP";
  if (prefix.empty()) return 1.0;
  const size_t index = kLetters.find(prefix[0]);
  if (index == std::string_view::npos) return std::nullopt;
  const bool binary = prefix.size() == 2 && prefix[1] == 'i' && binary_allowed && index < 4;
  if (prefix.size() != 1 && !binary) return std::nullopt;
  double scale = 1;
  for (size_t i = 0; i <= index; ++i) scale *= binary ? 1024.0 : 1000.0;
  return scale;
}

std::optional<double> WithSuffix(std::string_view unit, std::string_view suffix, double factor,
                                 bool binary_allowed) {
  if (!unit.ends_with(suffix)) return std::nullopt;
  const auto scale = PrefixScale(unit.substr(0, unit.size() - suffix.size()), binary_allowed);
  if (!scale) return std::nullopt;
  return *scale * factor;
}

}  // namespace

std::optional<double> UnitScale(Dimension dimension, std::string_view unit) {
  switch (dimension) {
    case Dimension::kBytes:
      return WithSuffix(unit, "B", 1, true);
    case Dimension::kBytesPerSecond:
      if (unit.ends_with("b/s")) return WithSuffix(unit, "b/s", 1.0 / 8, false);
      return WithSuffix(unit, "B/s", 1, true);
    case Dimension::kFlopsPerSecond:
      return WithSuffix(unit, "FLOP/s", 1, false);
    case Dimension::kHertz:
      return WithSuffix(unit, "Hz", 1, false);
    case Dimension::kSeconds:
      if (unit == "s") return 1.0;
      if (unit == "ms") return 1e-3;
      if (unit == "us") return 1e-6;
      if (unit == "ns") return 1e-9;
      return std::nullopt;
    case Dimension::kWatts:
      return unit == "W" ? std::optional<double>(1.0) : std::nullopt;
    case Dimension::kJoules:
      if (unit == "J") return 1.0;
      if (unit == "nJ") return 1e-9;
      if (unit == "pJ") return 1e-12;
      return std::nullopt;
    case Dimension::kRatio:
      return unit == "ratio" ? std::optional<double>(1.0) : std::nullopt;
    case Dimension::kCount:
      return unit == "count" ? std::optional<double>(1.0) : std::nullopt;
  }
  return std::nullopt;
}

std::string_view AllowedUnits(Dimension dimension) {
  switch (dimension) {
    case Dimension::kBytes:
      return "B, KB, MB, GB, TB, KiB, MiB, GiB or TiB";
    case Dimension::kBytesPerSecond:
      return "GB/s, TB/s, GiB/s (bytes) or Gb/s (bits)";
    case Dimension::kFlopsPerSecond:
      return "GFLOP/s, TFLOP/s or PFLOP/s";
    case Dimension::kHertz:
      return "MHz or GHz";
    case Dimension::kSeconds:
      return "s, ms, us or ns";
    case Dimension::kWatts:
      return "W";
    case Dimension::kJoules:
      return "J, nJ or pJ";
    case Dimension::kRatio:
      return "ratio";
    case Dimension::kCount:
      return "count";
  }
  return "";
}

}  // namespace zeroplan
