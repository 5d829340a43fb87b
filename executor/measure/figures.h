// Figures of a profile from plain numbers.
#pragma once

#include <cmath>
#include <string>
#include <utility>

#include "hwprofiles/profile.h"

namespace zeroplan {

// Four significant digits; what a measurement is good for.
inline double FourDigits(double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  const double power = std::pow(10.0, 3 - std::floor(std::log10(std::abs(value))));
  // Divided where the power is a fraction: 4960 is 496 / 0.1 to the bit, not 496 * 10.000000001.
  return power >= 1 ? std::round(value * power) / power
                    : std::round(value * power) * std::round(1 / power);
}

// `value` (base unit) as four digits of a unit of `scale` say it.
inline void RoundTo(double& value, double scale) { value = FourDigits(value / scale) * scale; }

inline Figure MakeFigure(double written, double scale, const char* unit, FigureSource source,
                         std::string reference) {
  return {written * scale, written, unit, source, std::move(reference)};
}
inline Figure MeasuredFigure(double value, double scale, const char* unit, std::string reference) {
  return MakeFigure(FourDigits(value / scale), scale, unit, FigureSource::kMeasured,
                    std::move(reference));
}
inline Figure DerivedFigure(double value, double scale, const char* unit, std::string reference) {
  return MakeFigure(FourDigits(value / scale), scale, unit, FigureSource::kDerived,
                    std::move(reference));
}
inline Figure Count(double value, std::string reference) {
  return MakeFigure(value, 1, "count", FigureSource::kMeasured, std::move(reference));
}
// Rounded down to 0.01 GiB: what is promised must be there.
inline Figure Capacity(double bytes, std::string reference) {
  constexpr double kGib = 1024.0 * 1024 * 1024;
  return MakeFigure(std::floor(bytes / kGib * 100) / 100, kGib, "GiB", FigureSource::kMeasured,
                    std::move(reference));
}

}  // namespace zeroplan
