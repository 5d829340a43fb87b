#include <fmt/format.h>

#include <cmath>

#include "planner/page/charts.h"
#include "planner/page/svg.h"

namespace zeroplan {
namespace {

constexpr double kBold = 1.1 * kLabelFont;  // as wide as bold letters are

}  // namespace

std::string DrawBands(const std::vector<BandChart>& charts, int width) {
  constexpr double kEach = 95, kLine = 15, kBandTop = 31, kBandHeight = 26;
  std::string names;
  double height = 0;
  for (const BandChart& chart : charts) {
    names += fmt::format("{}{}", names.empty() ? "" : "; ", chart.name);
    height += kEach + kLine * static_cast<double>(BreakLabel(chart.name, width - 20, kBold).size());
  }
  Svg svg(width, height, names);
  double top = 0;
  for (const BandChart& chart : charts) {
    for (const std::string& line : BreakLabel(chart.name, width - 20, kBold)) {
      svg.Text(2, top + 14, line, Anchor::kStart, "t strong");
      top += kLine;
    }
    const Box box{24, top + kBandTop, width - 24.0, top + kBandTop + kBandHeight};
    const Axis axis =
        LogAxis(chart.bands.front().begin, chart.bands.back().end, chart.quantity, box.width());
    for (const Band& band : chart.bands) {
      const Box part{box.X(axis, band.begin), box.top, box.X(axis, band.end), box.bottom};
      svg.Rect(part, band.present ? "band present" : "band", band.title,
               {{"data-letter", band.letter},
                {"data-begin", fmt::format("{}", band.begin)},
                {"data-end", fmt::format("{}", band.end)}});
      if (part.width() >= TextPixels(band.letter, kLabelFont) + 6) {
        double middle = (part.left + part.right) / 2;
        const double now = box.X(axis, chart.now);
        // Not under the line.
        if (std::abs(now - middle) < 14) middle = (part.left + now) / 2;
        svg.Text(middle, box.top + 17, band.letter, Anchor::kMiddle,
                 band.present ? "t onpresent" : "t");
      }
    }
    svg.HorizontalAxis(box, axis, /*grid=*/false);
    const double now = box.X(axis, chart.now);
    svg.Line(now, box.top - 8, now, box.bottom, "limit");
    svg.TextWithin(now, box.top - 12, chart.now_label, 2, width - 2);
    top += kEach;
  }
  return std::move(svg).Finish();
}

}  // namespace zeroplan
