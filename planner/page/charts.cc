#include "planner/page/charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

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

constexpr double kBold = 1.1 * kLabelFont;  // as wide as bold letters are

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

// The parts of bar `b`, one behind the other, from `top` down.
void DrawParts(const BarChart& chart, size_t b, const Box& box, const Axis& axis, double top,
               Svg& svg) {
  const Bar& bar = chart.bars[b];
  double begin = 0;
  for (size_t p = 0; p < bar.parts.size(); ++p) {
    const double value = bar.parts[p], end = begin + value;
    const Box part{box.X(axis, std::min(begin, axis.end)), top,
                   box.X(axis, std::min(end, axis.end)), top + kBarHeight};
    begin = end;
    if (value <= 0) continue;
    svg.Rect(part, fmt::format("part {}{}", ColourClass(p), bar.faint ? " faint" : ""),
             fmt::format("{}: {} {} ({:.1f} %)", bar.label, chart.parts[p],
                         FormatQuantity(value, chart.quantity), 100 * value / Total(bar)),
             {{"data-bar", std::to_string(b)},
              {"data-part", chart.parts[p]},
              {"data-value", fmt::format("{}", value)}});
  }
}

struct Row {
  std::vector<std::string> label;
  double height = 0;
};

// Places names of dots inside the picture, on nothing else that is drawn.
class NamePlaces {
 public:
  NamePlaces(const DotChart& chart, const Box& box, const Axis& x, const Axis& y) : box_(box) {
    for (const Dot& dot : chart.dots) {
      const double px = box.X(x, dot.x), py = box.Y(y, dot.y);
      const double r = dot.kind == Dot::Kind::kChosen ? 9 : 4;
      taken_.push_back({px - r, py - r, px + r, py + r});
    }
    if (chart.limit) {
      const double at = box.X(x, chart.limit->at);
      taken_.push_back({at - 2, box.top - 4, at + 2, box.bottom});
    }
    if (chart.limit_y) {
      const double at = box.Y(y, chart.limit_y->at);
      taken_.push_back({box.left, at - 2, box.right, at + 2});
    }
  }

  void Take(const Box& place) { taken_.push_back(place); }

  // The place of the name of a dot at (x, y): right of it, above, below or left; of one that a
  // falling stair leaves to the right, there last. Takes it. None: there is no room.
  std::optional<Box> Find(double x, double y, const std::string& name, bool on_stair) {
    constexpr double kGap = 10, kHeight = 16;
    const double wide = TextPixels(name, kLabelFont) + 4;
    const auto at = [&](double left, double top) {
      return Box{left, top, left + wide, top + kHeight};
    };
    const double above = y - kGap - kHeight, below = y + kGap;
    std::array places = {at(x + kGap, y - kHeight / 2),
                         at(x, above),
                         at(x - wide, above),
                         at(x - wide / 2, above),
                         at(x, below),
                         at(x - wide / 2, below),
                         at(x - wide, below),
                         at(x - kGap - wide, y - kHeight / 2)};
    if (on_stair) std::reverse(places.begin(), places.end());
    for (const Box& place : places) {
      if (place.left < box_.left || place.right > box_.right || place.top < box_.top ||
          place.bottom > box_.bottom) {
        continue;
      }
      const bool free = std::none_of(taken_.begin(), taken_.end(), [&](const Box& of) {
        return place.left < of.right && of.left < place.right && place.top < of.bottom &&
               of.top < place.bottom;
      });
      if (!free) continue;
      taken_.push_back(place);
      return place;
    }
    return std::nullopt;
  }

 private:
  Box box_;
  std::vector<Box> taken_;
};

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
    DrawParts(chart, b, box, axis, bar_top, svg);
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
    svg.TextWithin(x, box.top - 9, chart.limit->label, 2, width - 2, "t strong", kBold);
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

std::string DrawDots(const DotChart& chart, int width) {
  double most_x = chart.limit ? chart.limit->at : 0;
  double most_y = chart.limit_y ? chart.limit_y->at : 0;
  for (const Dot& dot : chart.dots) {
    most_x = std::max(most_x, dot.x);
    most_y = std::max(most_y, dot.y);
  }
  if (std::any_of(chart.dots.begin(), chart.dots.end(),
                  [](const Dot& dot) { return !dot.name.empty(); })) {
    constexpr double kRoom = 1.05;  // for names at the edges
    most_x *= kRoom;
    most_y *= kRoom;
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
    svg.TextWithin(at, box.top - 9, chart.limit->label, 2, width - 2, "t strong", kBold);
  }
  NamePlaces places(chart, box, x, y);
  if (chart.limit_y) {
    const double at = box.Y(y, chart.limit_y->at);
    svg.Line(box.left, at, box.right, at, "limit");
    // At the line's end, before an upright one that would cross the words.
    const double wide = TextPixels(chart.limit_y->label, kBold);
    const double crossing = chart.limit ? box.X(x, chart.limit->at) : box.right + wide;
    const bool crosses = crossing > box.right - wide - 6 && crossing <= box.right + 6;
    const double right = crosses ? crossing - 6 : box.right;
    const double text_y = at - box.top > 12 ? at - 5 : at + 14;
    svg.Text(right, text_y, chart.limit_y->label, Anchor::kEnd, "t strong halo");
    places.Take({right - wide, text_y - 11, right, text_y + 3});
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
    // Chosen, and not on the front.
    if (!stair.empty() && (chart.falls ? py < stair.back().second : py > stair.back().second)) {
      continue;
    }
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
  for (const bool chosen : {true, false}) {
    for (const Dot& dot : chart.dots) {
      if (dot.name.empty() || (dot.kind == Dot::Kind::kChosen) != chosen) continue;
      const bool on_stair =
          chart.falls && (chosen || dot.kind == Dot::Kind::kFront) && stair.size() > 1;
      const auto place = places.Find(box.X(x, dot.x), box.Y(y, dot.y), dot.name, on_stair);
      if (!place) continue;
      svg.Text(place->left + 2, place->bottom - 4, dot.name, Anchor::kStart,
               dot.kind == Dot::Kind::kNoFit ? "t halo dim" : "t halo");
    }
  }
  return std::move(svg).Finish();
}

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
