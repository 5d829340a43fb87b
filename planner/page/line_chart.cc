#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "planner/page/charts.h"
#include "planner/page/svg.h"

namespace zeroplan {

std::string DrawLines(const LineChart& chart, int width) {
  double least_x = std::numeric_limits<double>::infinity(), most_x = -least_x;
  double least_y = chart.limit ? chart.limit->at : least_x, most_y = chart.limit ? least_y : most_x;
  for (const LineSeries& series : chart.series) {
    for (const auto& [x, y] : series.points) {
      least_x = std::min(least_x, x);
      most_x = std::max(most_x, x);
      least_y = std::min(least_y, y);
      most_y = std::max(most_y, y);
    }
  }
  if (!std::isfinite(least_x)) return "";
  const double height = width >= 600 ? 220 : 190;
  const double top = chart.limit ? 26 : 10;
  Box box{0, top, width - 24.0, top + height};
  const Axis y = chart.from_zero
                     ? AxisFromZero(most_y, chart.y, box.height(), /*vertical=*/true)
                     : AxisAround(least_y, most_y, chart.y, box.height(), /*vertical=*/true);
  box.left = LabelRoom(y);
  Axis x = AxisAround(least_x, most_x, chart.x, box.width(), /*vertical=*/false);
  Svg svg(width, box.bottom + 40, chart.name);
  svg.VerticalAxis(box, y);
  svg.HorizontalAxis(box, x, /*grid=*/false);
  svg.Text(box.right, box.bottom + 34, chart.x_name, Anchor::kEnd);
  if (chart.limit) {
    const double at = box.Y(y, chart.limit->at);
    svg.Line(box.left, at, box.right, at, "limit");
    svg.Text(box.right, 14, chart.limit->label, Anchor::kEnd, "t strong");
  }
  for (const LineSeries& series : chart.series) {
    std::vector<std::pair<double, double>> path;
    for (const auto& [px, py] : series.points) path.emplace_back(box.X(x, px), box.Y(y, py));
    const std::string colour = ColourClass(series.colour);
    if (path.size() > 1) svg.Path(PathThrough(path), fmt::format("series l{}", series.colour));
    for (size_t i = 0; i < path.size(); ++i) {
      const bool dot = series.dots || path.size() == 1;
      svg.Circle(path[i].first, path[i].second, dot ? 4 : 5, dot ? colour : std::string("over"),
                 fmt::format("{} at {} {}: {}", series.name, chart.x_name,
                             FormatQuantity(series.points[i].first, chart.x),
                             FormatQuantity(series.points[i].second, chart.y)),
                 {{"data-x", fmt::format("{}", series.points[i].first)},
                  {"data-y", fmt::format("{}", series.points[i].second)}});
    }
  }
  return std::move(svg).Finish();
}

}  // namespace zeroplan
