// Drawing primitives of the pictures: shapes in CSS pixels, with colours set by the page (html.cc).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "planner/page/html.h"

namespace zeroplan {

// Axes with round numbers, and the format of numbers in a picture.

// The unit of a number; values are in the base unit.
enum class Quantity : uint8_t {
  kBytes,
  kSeconds,
  kTokenRate,    // tokens a second
  kNetworkRate,  // bytes a second, shown in bits
  kLinkRate,     // bytes a second
  kCount,        // steps, sequences
  kWatts,
  kMoney,   // in whatever currency
  kEnergy,  // kWh
  kNumber   // loss
};

// "38.4 GB", "3.30 s", "119K tokens/s", "400 Gb/s": same format as in the text reports.
std::string FormatQuantity(double value, Quantity quantity);

// "17,900", "41.5": whole units with their thousands apart from 1,000 on, FineCell below.
std::string MoneyText(double amount);

struct Tick {
  double at;
  std::string label;
};

struct Axis {
  double begin = 0, end = 1;
  bool log = false;
  std::vector<Tick> ticks;  // by rising `at`, within [begin, end]

  // 0 at begin, 1 at end, linear beyond both.
  double Share(double value) const;
};

// An upper bound on the pixels of `text` at `font_px`, in any browser's sans serif face: widths of
// DejaVu Sans, among the widest.
double TextPixels(std::string_view text, double font_px);

// Font of pictures, in pixels.
inline constexpr double kTickFont = 11, kLabelFont = 12;

// An axis from 0 to `most` and on to the next tick. Adjacent labels of `length_px` do not touch.
// REQUIRES: most >= 0.
Axis AxisFromZero(double most, Quantity quantity, double length_px, bool vertical);
// An axis from below `least` to above `most`, not to zero: for a loss.
Axis AxisAround(double least, double most, Quantity quantity, double length_px, bool vertical);
// A logarithmic axis from exactly `least` to exactly `most`, with ticks at 1, 2 and 5 times powers
// of ten as far as their labels have room. REQUIRES: 0 < least < most; horizontal.
Axis LogAxis(double least, double most, Quantity quantity, double length_px);

struct Box {
  double left = 0, top = 0, right = 0, bottom = 0;

  double width() const { return right - left; }
  double height() const { return bottom - top; }
  double X(const Axis& axis, double value) const { return left + width() * axis.Share(value); }
  double Y(const Axis& axis, double value) const { return bottom - height() * axis.Share(value); }
};

enum class Anchor : uint8_t { kStart, kMiddle, kEnd };

// "c0" to "c6": colours for parts and lines that people with red-green colour blindness can tell
// apart.
inline constexpr size_t kColours = 7;
std::string ColourClass(size_t i);
// A legend of `parts` with the colours from `first` on, starting again after the last part.
std::vector<LegendEntry> LegendOf(const std::vector<std::string>& parts, size_t first = 0);

class Svg {
 public:
  // `label`: the text for screen readers.
  Svg(double width, double height, std::string_view label);

  // Classes name colours and strokes. A `title` shows under the pointer; "": none. `data` becomes
  // attributes: {"data-bytes", "123"}.
  using Data = std::vector<std::pair<std::string_view, std::string>>;
  void Rect(const Box& box, std::string_view css_class, std::string_view title = "",
            const Data& data = {});
  void Line(double x0, double y0, double x1, double y1, std::string_view css_class);
  void Circle(double x, double y, double radius, std::string_view css_class,
              std::string_view title = "", const Data& data = {});
  // `d`: the attribute of SVG's path element.
  void Path(const std::string& d, std::string_view css_class, std::string_view title = "");
  void Text(double x, double y, std::string_view text, Anchor anchor = Anchor::kStart,
            std::string_view css_class = "t");
  // Moves the text so that it stays within [least, most] of x. `font`: the size of its class.
  void TextWithin(double x, double y, std::string_view text, double least, double most,
                  std::string_view css_class = "t", double font = kLabelFont);

  // Draws lines across `box` with labels left of it, or below it and within the picture.
  void VerticalAxis(const Box& box, const Axis& axis);
  void HorizontalAxis(const Box& box, const Axis& axis, bool grid);

  std::string Finish() &&;

 private:
  double width_;
  std::string text_;
};

// The width of a vertical axis's labels, gap to the picture included.
double LabelRoom(const Axis& axis);

// "M1 2L3 4".
std::string PathThrough(std::span<const std::pair<double, double>> points);

// `text` in lines of at most `pixels`, broken at spaces.
std::vector<std::string> BreakLabel(std::string_view text, double pixels, double font_px);

}  // namespace zeroplan
