// What pictures are drawn with: shapes in CSS pixels, whose colours are the page's (page_style.h).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "planner/page/scale.h"

namespace zeroplan {

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
  // Moved so that it ends within [least, most] of x. Of kLabelFont.
  void TextWithin(double x, double y, std::string_view text, double least, double most,
                  std::string_view css_class = "t");

  // Lines across `box` with labels left of it, or below it.
  void VerticalAxis(const Box& box, const Axis& axis);
  void HorizontalAxis(const Box& box, const Axis& axis, bool grid);

  std::string Finish() &&;

 private:
  std::string text_;
};

// Room that the labels of a vertical axis take, gap to the picture included.
double LabelRoom(const Axis& axis);

// "M1 2L3 4".
std::string PathThrough(std::span<const std::pair<double, double>> points);

// `text` in lines of at most `pixels`, broken at spaces.
std::vector<std::string> BreakLabel(std::string_view text, double pixels, double font_px);

}  // namespace zeroplan
