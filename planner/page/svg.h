// What pictures are drawn with: shapes in CSS pixels, whose colours are the page's (html.cc).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "planner/page/html.h"

namespace zeroplan {

// Axes with round numbers, and what numbers are called beside a picture.

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

struct Box {
  double left = 0, top = 0, right = 0, bottom = 0;

  double width() const { return right - left; }
  double height() const { return bottom - top; }
  double X(const Axis& axis, double value) const { return left + width() * axis.Share(value); }
  double Y(const Axis& axis, double value) const { return bottom - height() * axis.Share(value); }
};

enum class Anchor : uint8_t { kStart, kMiddle, kEnd };

// "c0" to "c6": colours that people who see no red and green tell apart, for parts and lines.
inline constexpr size_t kColours = 7;
std::string ColourClass(size_t i);
// Parts that have the colours from `first` on, which begin again after as many as there are.
std::vector<LegendEntry> LegendOf(const std::vector<std::string>& parts, size_t first = 0);

class Svg {
 public:
  // `label`: what a screen reader says.
  Svg(double width, double height, std::string_view label);

  // Classes name colours and strokes. A `title` shows under the pointer; "": none. `data` becomes
  // an attribute: {"data-bytes", "123"}.
  using Data = std::vector<std::pair<std::string_view, std::string>>;
  void Rect(const Box& box, std::string_view css_class, std::string_view title = "",
            const Data& data = {});
  void Line(double x0, double y0, double x1, double y1, std::string_view css_class);
  void Circle(double x, double y, double radius, std::string_view css_class,
              std::string_view title = "", const Data& data = {});
  // `d`: of SVG's path element.
  void Path(const std::string& d, std::string_view css_class, std::string_view title = "");
  void Text(double x, double y, std::string_view text, Anchor anchor = Anchor::kStart,
            std::string_view css_class = "t");
  // Moved so that it ends within [least, most] of x. `font`: its class's.
  void TextWithin(double x, double y, std::string_view text, double least, double most,
                  std::string_view css_class = "t", double font = kLabelFont);

  // Lines across `box` with labels left of it, or below it and within the picture.
  void VerticalAxis(const Box& box, const Axis& axis);
  void HorizontalAxis(const Box& box, const Axis& axis, bool grid);

  std::string Finish() &&;

 private:
  double width_;
  std::string text_;
};

// Room that the labels of a vertical axis take, gap to the picture included.
double LabelRoom(const Axis& axis);

// "M1 2L3 4".
std::string PathThrough(std::span<const std::pair<double, double>> points);

// `text` in lines of at most `pixels`, broken at spaces.
std::vector<std::string> BreakLabel(std::string_view text, double pixels, double font_px);

}  // namespace zeroplan
