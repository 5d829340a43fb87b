// Axes with round numbers, and what numbers are called beside a picture.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zeroplan {

// What a number counts; values are in the base unit.
enum class Quantity : uint8_t {
  kBytes,
  kSeconds,
  kTokenRate,    // a second
  kNetworkRate,  // bytes a second, shown in bits
  kLinkRate,     // bytes a second
  kCount,        // steps, sequences
  kWatts,
  kNumber  // loss
};

// "38.4 GB", "3.30 s", "119K tokens/s", "400 Gb/s": as the text reports have it.
std::string FormatQuantity(double value, Quantity quantity);

struct Tick {
  double at;
  std::string label;
};

struct Axis {
  double begin = 0, end = 1;
  bool log = false;
  std::vector<Tick> ticks;  // by rising `at`, within [begin, end]

  // 0 at begin, 1 at end, beyond them less and more.
  double Share(double value) const;
};

// Pixels that `text` takes at most at `font_px`, in whichever sans serif face the browser has:
// widths of DejaVu Sans, among the widest.
double TextPixels(std::string_view text, double font_px);

// Font of pictures, in pixels.
inline constexpr double kTickFont = 11, kLabelFont = 12;

// An axis from 0 to `most` and on to the next tick. Neighbours of a row of labels of `length_px` do
// not touch. REQUIRES: most >= 0.
Axis AxisFromZero(double most, Quantity quantity, double length_px, bool vertical);
// An axis from below `least` to above `most`, not to zero: for a loss.
Axis AxisAround(double least, double most, Quantity quantity, double length_px, bool vertical);
// A logarithmic one from `least` to `most`, both as they are, with ticks at 1, 2 and 5 times powers
// of ten as far as their labels have room. REQUIRES: 0 < least < most; horizontal.
Axis LogAxis(double least, double most, Quantity quantity, double length_px);

}  // namespace zeroplan
