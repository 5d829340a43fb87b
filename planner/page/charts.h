// Kinds of pictures, each drawn for a width in pixels. They show plain numbers with names; nothing
// here knows what a choice or a run is.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "planner/page/svg.h"

namespace zeroplan {

// A line that a value is held against.
struct Limit {
  double at = 0;
  std::string label;  // "41.7 GB may be taken"
};

// ---- bars, one below the other, each of parts ----

struct Bar {
  std::string label;
  std::vector<double> parts;  // as many as the chart's, at least 0
  bool faint = false;         // of what cannot be had
  std::string tail;           // beside its end: "38.4 GB"
};

struct BarChart {
  std::string name;
  Quantity quantity = Quantity::kBytes;
  std::vector<std::string> parts;  // names; the i-th has ColourClass(i)
  std::vector<Bar> bars;
  std::optional<Limit> limit;
  // Bars much longer than most are cut at the picture's edge, where an arrow says so.
  bool cut_long = false;
};
// Each part is a rect with data-part (its name) and data-value (its value).
std::string DrawBars(const BarChart& chart, int width);
// Whether DrawBars cuts any.
bool CutsBars(const BarChart& chart);

// ---- parts on top of each other, over something that goes on ----

struct AreaColumn {
  double begin = 0, end = 0;
  std::vector<double> parts;
  std::string title;  // under the pointer
};

struct AreaChart {
  std::string name;
  Quantity x = Quantity::kSeconds, y = Quantity::kBytes;
  std::vector<std::string> parts;  // lowest first
  // Colour of the lowest part; the others take the next ones, and begin again after `parts`.
  size_t first_colour = 0;
  std::vector<AreaColumn> columns;  // in order, each beginning where the one before ends
  std::optional<Limit> limit;
  std::optional<size_t> peak;  // the column that is pointed at
  std::string peak_label;
  // Where something else begins, and what: "forward". Drawn above, as far as there is room.
  std::vector<std::pair<double, std::string>> parts_of_x;
};
std::string DrawArea(const AreaChart& chart, int width);

// ---- dots ----

struct Dot {
  double x = 0, y = 0;
  std::string title;
  enum class Kind : uint8_t {
    kChosen,  // a large ring around a dot
    kFront,   // filled, and joined with the other ones
    kOther,   // small and filled
    kNoFit    // hollow
  } kind = Kind::kOther;
};

struct DotChart {
  std::string name, x_name, y_name;
  Quantity x = Quantity::kBytes, y = Quantity::kTokenRate;
  std::vector<Dot> dots;
  std::optional<Limit> limit;  // of x
};
// Each dot is a circle with data-x and data-y.
std::string DrawDots(const DotChart& chart, int width);

// ---- lines over steps ----

struct LineSeries {
  std::string name;
  size_t colour = 0;
  std::vector<std::pair<double, double>> points;  // by rising x
  bool dots = false;                              // far apart: a dot at each
};

struct LineChart {
  std::string name, x_name;
  Quantity x = Quantity::kCount, y = Quantity::kNumber;
  std::vector<LineSeries> series;
  std::optional<Limit> limit;  // of y
  bool from_zero = true;
};
std::string DrawLines(const LineChart& chart, int width);

// ---- an axis that is parted where an answer changes ----

struct Band {
  double begin = 0, end = 0;  // within the axis
  std::string letter;         // the row of the table that says what holds here
  std::string title;
  bool present = false;  // holds now
};

struct BandChart {
  std::string name;
  Quantity quantity = Quantity::kBytes;
  std::vector<Band> bands;  // in order, each beginning where the one before ends
  double now = 0;
  std::string now_label;
};
// Several, one below the other.
std::string DrawBands(const std::vector<BandChart>& charts, int width);

}  // namespace zeroplan
