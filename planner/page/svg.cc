#include "planner/page/svg.h"

#include <fmt/format.h>

#include <algorithm>

#include "planner/page/html.h"

namespace zeroplan {
namespace {

std::string Attributes(const Svg::Data& data) {
  std::string text;
  for (const auto& [name, value] : data) {
    text += fmt::format(" {}=\"{}\"", name, EscapeHtml(value));
  }
  return text;
}

// The element's end, with its title in it where it has one.
std::string Close(std::string_view element, std::string_view title) {
  if (title.empty()) return "/>\n";
  return fmt::format("><title>{}</title></{}>\n", EscapeHtml(title), element);
}

}  // namespace

std::string ColourClass(size_t i) { return fmt::format("c{}", i % kColours); }

Svg::Svg(double width, double height, std::string_view label)
    : text_(fmt::format("<svg role=\"img\" aria-label=\"{}\" width=\"{:.0f}\" height=\"{:.0f}\" "
                        "viewBox=\"0 0 {:.0f} {:.0f}\">\n",
                        EscapeHtml(label), width, height, width, height)) {}

void Svg::Rect(const Box& box, std::string_view css_class, std::string_view title,
               const Data& data) {
  text_ += fmt::format(
      "<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"{}",
      css_class, box.left, box.top, std::max(0.0, box.width()), std::max(0.0, box.height()),
      Attributes(data));
  text_ += Close("rect", title);
}

void Svg::Line(double x0, double y0, double x1, double y1, std::string_view css_class) {
  text_ +=
      fmt::format("<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                  css_class, x0, y0, x1, y1);
}

void Svg::Circle(double x, double y, double radius, std::string_view css_class,
                 std::string_view title, const Data& data) {
  text_ += fmt::format("<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\"{}", css_class,
                       x, y, radius, Attributes(data));
  text_ += Close("circle", title);
}

void Svg::Path(const std::string& d, std::string_view css_class, std::string_view title) {
  text_ += fmt::format("<path class=\"{}\" d=\"{}\"", css_class, d);
  text_ += Close("path", title);
}

void Svg::Text(double x, double y, std::string_view text, Anchor anchor,
               std::string_view css_class) {
  const char* side = anchor == Anchor::kStart    ? ""
                     : anchor == Anchor::kMiddle ? " text-anchor=\"middle\""
                                                 : " text-anchor=\"end\"";
  text_ += fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\"{}>{}</text>\n", css_class, x,
                       y, side, EscapeHtml(text));
}

void Svg::TextWithin(double x, double y, std::string_view text, double least, double most,
                     std::string_view css_class) {
  const double half = TextPixels(text, kLabelFont) / 2;
  const double middle = std::clamp(x, std::min(least + half, most - half), most - half);
  Text(middle, y, text, Anchor::kMiddle, css_class);
}

void Svg::VerticalAxis(const Box& box, const Axis& axis) {
  for (const Tick& tick : axis.ticks) {
    const double y = box.Y(axis, tick.at);
    Line(box.left, y, box.right, y, "grid");
    Text(box.left - 6, y + 4, tick.label, Anchor::kEnd, "t tick");
  }
}

void Svg::HorizontalAxis(const Box& box, const Axis& axis, bool grid) {
  for (const Tick& tick : axis.ticks) {
    const double x = box.X(axis, tick.at);
    Line(x, grid ? box.top : box.bottom, x, box.bottom + 4, "grid");
    Text(x, box.bottom + 16, tick.label, Anchor::kMiddle, "t tick");
  }
  Line(box.left, box.bottom, box.right, box.bottom, "base");
}

std::string Svg::Finish() && { return std::move(text_) + "</svg>"; }

double LabelRoom(const Axis& axis) {
  double widest = 0;
  for (const Tick& tick : axis.ticks) widest = std::max(widest, TextPixels(tick.label, kTickFont));
  return widest + 8;
}

std::string PathThrough(std::span<const std::pair<double, double>> points) {
  std::string d;
  for (const auto& [x, y] : points) {
    d += fmt::format("{}{:.1f} {:.1f}", d.empty() ? 'M' : 'L', x, y);
  }
  return d;
}

std::vector<std::string> BreakLabel(std::string_view text, double pixels, double font_px) {
  std::vector<std::string> lines;
  std::string line;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    const std::string longer = line.empty() ? std::string(word) : fmt::format("{} {}", line, word);
    if (!line.empty() && TextPixels(longer, font_px) > pixels) {
      lines.push_back(std::move(line));
      line = word;
    } else {
      line = longer;
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  if (!line.empty() || lines.empty()) lines.push_back(std::move(line));
  return lines;
}

}  // namespace zeroplan
