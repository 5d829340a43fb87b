// Units of a profile's figures.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace zeroplan {

enum class Dimension : uint8_t {
  kBytes,
  kBytesPerSecond,
  kFlopsPerSecond,
  kHertz,
  kSeconds,
  kCount,
  kWatts,
  kJoules,
  kRatio  // a share of something, above 0 and up to 1
};

// What one `unit` is in the dimension's base unit; nothing if the unit does not belong to it.
std::optional<double> UnitScale(Dimension dimension, std::string_view unit);
// "B, KB, MB, GB, TB, KiB, MiB, GiB or TiB".
std::string_view AllowedUnits(Dimension dimension);

}  // namespace zeroplan
