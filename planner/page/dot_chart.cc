#include <fmt/format.h>

#include <algorithm>

#include "planner/page/charts.h"
#include "planner/page/svg.h"

namespace zeroplan {

std::string DrawDots(const DotChart& chart, int width) {
  double most_x = chart.limit ? chart.limit->at : 0, most_y = 0;
  for (const Dot& dot : chart.dots) {
    most_x = std::max(most_x, dot.x);
    most_y = std::max(most_y, dot.y);
  }
  const double height = width >= 600 ? 320 : 260;
  Box box{0, 44, width - 24.0, 44 + height};
  const Axis y = AxisFromZero(most_y, chart.y, box.height(), /*vertical=*/true);
  box.left = LabelRoom(y);
  const Axis x = AxisFromZero(most_x, chart.x, box.width(), /*vertical=*/false);
  Svg svg(width, box.bottom + 40, chart.name);
  svg.VerticalAxis(box, y);
  svg.HorizontalAxis(box, x, /*grid=*/true);
  svg.Text(2, 12, chart.y_name);
  svg.Text(box.right, box.bottom + 34, chart.x_name, Anchor::kEnd);
  if (chart.limit) {
    const double at = box.X(x, chart.limit->at);
    svg.Line(at, box.top - 4, at, box.bottom, "limit");
    svg.TextWithin(at, box.top - 9, chart.limit->label, 2, width - 2, "t strong");
  }
  // The front is a stair: with so much memory, so fast is possible.
  std::vector<std::pair<double, double>> front;
  for (const Dot& dot : chart.dots) {
    if (dot.kind != Dot::Kind::kFront && dot.kind != Dot::Kind::kChosen) continue;
    front.emplace_back(box.X(x, dot.x), box.Y(y, dot.y));
  }
  std::sort(front.begin(), front.end());
  std::vector<std::pair<double, double>> stair;
  for (const auto& [px, py] : front) {
    if (!stair.empty() && py > stair.back().second) continue;  // chosen, and not on the front
    if (!stair.empty()) stair.emplace_back(px, stair.back().second);
    stair.emplace_back(px, py);
  }
  if (stair.size() > 1) svg.Path(PathThrough(stair), "front");
  for (const Dot::Kind kind :
       {Dot::Kind::kNoFit, Dot::Kind::kOther, Dot::Kind::kFront, Dot::Kind::kChosen}) {
    for (const Dot& dot : chart.dots) {
      if (dot.kind != kind) continue;
      const double px = box.X(x, dot.x), py = box.Y(y, dot.y);
      if (kind == Dot::Kind::kChosen) svg.Circle(px, py, 9, "ring");
      const auto [css_class, radius] = kind == Dot::Kind::kNoFit   ? std::pair("hollow", 3.5)
                                       : kind == Dot::Kind::kOther ? std::pair("c4", 3.5)
                                                                   : std::pair("c0", 5.0);
      svg.Circle(px, py, radius, css_class, dot.title,
                 {{"data-x", fmt::format("{}", dot.x)}, {"data-y", fmt::format("{}", dot.y)}});
    }
  }
  return std::move(svg).Finish();
}

}  // namespace zeroplan
