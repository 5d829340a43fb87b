#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "planner/page/charts.h"
#include "planner/page/svg.h"

namespace zeroplan {
namespace {

double Total(const AreaColumn& column) {
  return std::accumulate(column.parts.begin(), column.parts.end(), 0.0);
}

// A column of pixels shows one moment of what lies in it, the one with the most: peaks stay.
std::vector<AreaColumn> Thinned(const AreaChart& chart, const Box& box, const Axis& axis) {
  std::vector<AreaColumn> thin;
  for (const AreaColumn& column : chart.columns) {
    if (!thin.empty() && box.X(axis, column.begin) - box.X(axis, thin.back().begin) < 2) {
      const double begin = thin.back().begin;
      if (Total(column) > Total(thin.back())) thin.back() = column;
      thin.back().begin = begin;
      thin.back().end = column.end;
    } else {
      thin.push_back(column);
    }
  }
  return thin;
}

}  // namespace

std::string DrawArea(const AreaChart& chart, int width) {
  double most = chart.limit ? chart.limit->at : 0, end = 0;
  for (const AreaColumn& column : chart.columns) {
    most = std::max(most, Total(column));
    end = std::max(end, column.end);
  }
  const double height = width >= 600 ? 260 : 220;
  Box box{0, 58, width - 14.0, 58 + height};
  const Axis y = AxisFromZero(most, chart.y, box.height(), /*vertical=*/true);
  box.left = LabelRoom(y);
  Axis x = AxisFromZero(end, chart.x, box.width(), /*vertical=*/false);
  x.end = std::max(end, 1e-12);  // what comes after the end is no part of it
  std::erase_if(x.ticks, [&](const Tick& tick) { return tick.at > x.end * (1 + 1e-9); });
  Svg svg(width, box.bottom + 24, chart.name);
  svg.VerticalAxis(box, y);
  const std::vector<AreaColumn> columns = Thinned(chart, box, x);
  std::vector<double> below(columns.size(), 0);
  for (size_t p = 0; p < chart.parts.size(); ++p) {
    std::vector<std::pair<double, double>> upper, lower;
    for (size_t i = 0; i < columns.size(); ++i) {
      const double top = below[i] + columns[i].parts[p];
      for (const double at : {columns[i].begin, columns[i].end}) {
        upper.emplace_back(box.X(x, at), box.Y(y, top));
        lower.emplace_back(box.X(x, at), box.Y(y, below[i]));
      }
      below[i] = top;
    }
    upper.insert(upper.end(), lower.rbegin(), lower.rend());
    svg.Path(PathThrough(upper) + "Z",
             fmt::format("area {}", ColourClass((p + chart.first_colour) % chart.parts.size())));
  }
  for (const AreaColumn& column : columns) {
    svg.Rect({box.X(x, column.begin), box.top, box.X(x, column.end), box.bottom}, "over",
             column.title);
  }
  svg.HorizontalAxis(box, x, /*grid=*/false);
  if (chart.limit) {
    const double at = box.Y(y, chart.limit->at);
    svg.Line(box.left, at, box.right, at, "limit");
    svg.Text(box.right, 14, chart.limit->label, Anchor::kEnd, "t strong");
  }
  if (chart.peak) {
    const AreaColumn& peak = chart.columns[*chart.peak];
    const double at_x = box.X(x, (peak.begin + peak.end) / 2), at_y = box.Y(y, Total(peak));
    svg.Circle(at_x, at_y, 4, "peak", chart.peak_label);
    svg.TextWithin(at_x, 32, chart.peak_label, 2, width - 2);
    svg.Line(at_x, 36, at_x, at_y - 4, "pointer");
  }
  double last = -1e9;
  for (size_t i = 0; i < chart.parts_of_x.size(); ++i) {
    const auto& [at, name] = chart.parts_of_x[i];
    const double begin = box.X(x, at);
    svg.Line(begin, box.top - 12, begin, box.bottom, "divider");
    const double next = i + 1 < chart.parts_of_x.size() ? box.X(x, chart.parts_of_x[i + 1].first)
                                                        : static_cast<double>(width);
    const double room = TextPixels(name, kLabelFont);
    if (begin < last || begin + 3 + room > next) continue;
    svg.Text(begin + 3, box.top - 4, name, Anchor::kStart, "t halo");
    last = begin + room + 8;
  }
  return std::move(svg).Finish();
}

}  // namespace zeroplan
