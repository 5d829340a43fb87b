// Kinds of charts, each drawn for a width in pixels. They show plain numbers with names, and know
// nothing of choices or runs.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "planner/page/svg.h"

namespace zeroplan {

// A line that marks a limit of a value.
struct Limit {
  double at = 0;
  std::string label;  // "41.7 GB may be taken"
};

// ---- bars, one below the other, each of parts ----

struct Bar {
  std::string label;
  std::vector<double> parts;  // as many as the chart's, at least 0
  bool faint = false;         // the bar is of a choice that cannot run
  std::string tail;           // text next to its end: "38.4 GB"
};

struct BarChart {
  std::string name;
  Quantity quantity = Quantity::kBytes;
  std::vector<std::string> parts;  // names; the i-th has ColourClass(i)
  std::vector<Bar> bars;
  std::optional<Limit> limit;
  // Bars much longer than most are cut at the picture's edge, marked by an arrow.
  bool cut_long = false;
};
// Each part is a rect with data-part (its name) and data-value (its value).
std::string DrawBars(const BarChart& chart, int width);
// Whether DrawBars cuts any bar.
bool CutsBars(const BarChart& chart);

// ---- stacked areas over a running quantity ----

struct AreaColumn {
  double begin = 0, end = 0;
  std::vector<double> parts;
  std::string title;  // shown under the pointer
};

struct AreaChart {
  std::string name;
  Quantity x = Quantity::kSeconds, y = Quantity::kBytes;
  std::vector<std::string> parts;  // lowest first
  // Index of the lowest part's colour; the others use the next colours, starting again after
  // `parts`.
  size_t first_colour = 0;
  std::vector<AreaColumn> columns;  // in order, each beginning where the one before ends
  std::optional<Limit> limit;
  std::optional<size_t> peak;  // the column that is marked
  std::string peak_label;
  // Positions at which another part of x begins, and its name: "forward". Drawn above, as far as
  // there is room.
  std::vector<std::pair<double, std::string>> parts_of_x;
};
std::string DrawArea(const AreaChart& chart, int width);

// ---- dots ----

struct Dot {
  double x = 0, y = 0;
  std::string title;  // shown under the pointer
  enum class Kind : uint8_t {
    kChosen,  // a large ring around a dot
    kFront,   // filled, and joined with the other ones
    kOther,   // small and filled
    kNoFit    // hollow
  } kind = Kind::kOther;
  std::string name = {};  // drawn next to the dot, if there is room for it; "": none
};

struct DotChart {
  std::string name, x_name, y_name;
  Quantity x = Quantity::kBytes, y = Quantity::kTokenRate;
  std::vector<Dot> dots;
  std::optional<Limit> limit;    // a limit of x
  std::optional<Limit> limit_y;  // a limit of y
  // The front falls: less of both is better. Else it rises: less of x and more of y is better.
  bool falls = false;
};
// Each dot is a circle with data-x and data-y. Names touch neither each other, dots, nor limits; of
// two that cannot both be drawn the one of the earlier dot is, the chosen one's before all.
std::string DrawDots(const DotChart& chart, int width);

// ---- lines over steps ----

struct LineSeries {
  std::string name;
  size_t colour = 0;
  std::vector<std::pair<double, double>> points;  // by rising x
  bool dots = false;                              // points are far apart: draws a dot at each
};

struct LineChart {
  std::string name, x_name;
  Quantity x = Quantity::kCount, y = Quantity::kNumber;
  std::vector<LineSeries> series;
  std::optional<Limit> limit;  // a limit of y
  bool from_zero = true;
};
std::string DrawLines(const LineChart& chart, int width);

// ---- an axis divided where an answer changes ----

struct Band {
  double begin = 0, end = 0;  // within the axis
  std::string letter;         // the row of the table that describes it
  std::string title;
  bool present = false;  // the band that holds now
};

struct BandChart {
  std::string name;
  Quantity quantity = Quantity::kBytes;
  std::vector<Band> bands;  // in order, each beginning where the one before ends
  double now = 0;
  std::string now_label;
};
// Draws several charts, one below the other.
std::string DrawBands(const std::vector<BandChart>& charts, int width);

}  // namespace zeroplan
