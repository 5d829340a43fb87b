#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "planner/page/charts.h"
#include "planner/page/svg.h"

namespace zeroplan {
namespace {

constexpr double kBarHeight = 16, kLineHeight = 15, kRowGap = 8;

double Total(const Bar& bar) { return std::accumulate(bar.parts.begin(), bar.parts.end(), 0.0); }

// Where the axis ends: beyond every bar, or where bars are cut, beyond most of them.
double Longest(const BarChart& chart) {
  std::vector<double> totals;
  for (const Bar& bar : chart.bars) totals.push_back(Total(bar));
  std::sort(totals.begin(), totals.end());
  double longest = totals.empty() ? 0 : totals.back();
  if (chart.cut_long && totals.size() >= 3) {
    constexpr double kMuchLonger = 4;  // than the middle one
    const double middle = totals[totals.size() / 2];
    if (middle > 0 && longest > kMuchLonger * middle) {
      // The longest of those that are not much longer.
      longest = *(std::upper_bound(totals.begin(), totals.end(), kMuchLonger * middle) - 1);
    }
  }
  return chart.limit ? std::max(longest, chart.limit->at) : longest;
}

// Where a text of `pixels` that would begin at `left` does so beside an upright line at `x`: right
// of it, where it would lie on it.
double BesideLine(double left, double pixels, double x) {
  constexpr double kGap = 3,
                   kHalo = 3;  // of the text's stroke in the page's colour, and half a line
  const bool crosses = left - kGap < x && x < left + pixels + kGap;
  return crosses ? x + kGap + kHalo : left;
}

// The parts of an upright line from `top` to `bottom` that `words` leave, in order.
std::vector<std::pair<double, double>> Outside(const std::vector<std::pair<double, double>>& words,
                                               double top, double bottom) {
  std::vector<std::pair<double, double>> parts;
  for (const auto& [begin, end] : words) {
    if (begin > top) parts.emplace_back(top, begin);
    top = std::max(top, end);
  }
  if (bottom > top) parts.emplace_back(top, bottom);
  return parts;
}

struct Row {
  std::vector<std::string> label;
  double height = 0;
};

}  // namespace

bool CutsBars(const BarChart& chart) {
  const double longest = Longest(chart);
  return std::any_of(chart.bars.begin(), chart.bars.end(),
                     [&](const Bar& bar) { return Total(bar) > longest * (1 + 1e-9); });
}

std::string DrawBars(const BarChart& chart, int width) {
  const bool beside = width >= 600;  // labels beside the bars, else above them
  double label_room = 0, tail_room = 0;
  for (const Bar& bar : chart.bars) {
    label_room = std::max(label_room, TextPixels(bar.label, kLabelFont));
    tail_room = std::max(tail_room, TextPixels(bar.tail, kLabelFont));
  }
  label_room = beside ? std::min(label_room, 0.36 * width) : width - 8;  // 4 on each side
  std::vector<Row> rows;
  double height = 0;
  for (const Bar& bar : chart.bars) {
    Row row{BreakLabel(bar.label, label_room, kLabelFont), 0};
    const double lines = kLineHeight * static_cast<double>(row.label.size());
    row.height = (beside ? std::max(lines, kBarHeight) : lines + 2 + kBarHeight) + kRowGap;
    height += row.height;
    rows.push_back(std::move(row));
  }
  const double top = chart.limit ? 24 : 4;
  const Box box{beside ? label_room + 10 : 4, top, width - std::max(tail_room + 10, 26.0),
                top + height};
  const double longest = Longest(chart);
  const Axis axis = AxisFromZero(longest, chart.quantity, box.width(), /*vertical=*/false);
  Svg svg(width, box.bottom + 24, chart.name);
  svg.HorizontalAxis(box, axis, /*grid=*/true);
  double y = top;
  std::vector<Box> places;  // of the bars; right: where the figure stands
  for (size_t b = 0; b < chart.bars.size(); ++b) {
    const Bar& bar = chart.bars[b];
    const double lines = kLineHeight * static_cast<double>(rows[b].label.size());
    const double bar_top = beside ? y + (rows[b].height - kRowGap - kBarHeight) / 2 : y + lines + 2;
    const double total = Total(bar);
    double begin = 0;
    for (size_t p = 0; p < bar.parts.size(); ++p) {
      const double value = bar.parts[p], end = begin + value;
      const Box part{box.X(axis, std::min(begin, axis.end)), bar_top,
                     box.X(axis, std::min(end, axis.end)), bar_top + kBarHeight};
      begin = end;
      if (value <= 0) continue;
      svg.Rect(part, fmt::format("part {}{}", ColourClass(p), bar.faint ? " faint" : ""),
               fmt::format("{}: {} {} ({:.1f} %)", bar.label, chart.parts[p],
                           FormatQuantity(value, chart.quantity), 100 * value / total),
               {{"data-bar", std::to_string(b)},
                {"data-part", chart.parts[p]},
                {"data-value", fmt::format("{}", value)}});
    }
    Box place{4, bar_top, box.X(axis, std::min(total, axis.end)) + 5, y};
    if (total > axis.end * (1 + 1e-9)) {
      // Cut: the arrow says that it goes on.
      svg.Path(fmt::format("M{:.1f} {:.1f}l6 8l-6 8z", box.right + 1, bar_top), "arrow");
      place.right = box.right + 10;
    }
    places.push_back(place);
    y += rows[b].height;
  }
  if (chart.limit) {
    const double x = box.X(axis, chart.limit->at);
    std::vector<std::pair<double, double>> words;  // above bars, where the line would cross them
    for (size_t b = 0; b < chart.bars.size(); ++b) {
      Box& place = places[b];
      place.right = BesideLine(place.right, TextPixels(chart.bars[b].tail, kLabelFont), x);
      double label_top = place.bottom;
      for (const std::string& line : rows[b].label) {
        if (!beside && BesideLine(place.left, TextPixels(line, kLabelFont), x) != place.left) {
          words.emplace_back(label_top, label_top + kLineHeight);
        }
        label_top += kLineHeight;
      }
    }
    for (const auto& [begin, end] : Outside(words, box.top - 4, box.bottom)) {
      svg.Line(x, begin, x, end, "limit");
    }
    svg.TextWithin(x, box.top - 9, chart.limit->label, 2, width - 2, "t strong");
  }
  // Words last: lines pass behind them.
  for (size_t b = 0; b < chart.bars.size(); ++b) {
    const Bar& bar = chart.bars[b];
    double label_y = places[b].bottom + 12.5;
    for (const std::string& line : rows[b].label) {
      svg.Text(beside ? box.left - 10 : places[b].left, label_y, line,
               beside ? Anchor::kEnd : Anchor::kStart, bar.faint ? "t halo dim" : "t halo");
      label_y += kLineHeight;
    }
    svg.Text(places[b].right, places[b].top + 12.5, bar.tail, Anchor::kStart, "t halo");
  }
  return std::move(svg).Finish();
}

}  // namespace zeroplan
