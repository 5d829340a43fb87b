#include "planner/page/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "core/base/units.h"
#include "planner/advice/advice.h"
#include "planner/report/report_text.h"

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

struct Unit {
  double size;
  std::string_view name;  // with the space before it, if there is one
};

constexpr std::array kByteUnits = {Unit{1, " B"}, Unit{1e3, " KB"}, Unit{1e6, " MB"},
                                   Unit{1e9, " GB"}, Unit{1e12, " TB"}};
constexpr std::array kSecondUnits = {Unit{1e-6, " us"}, Unit{1e-3, " ms"}, Unit{1, " s"},
                                     Unit{3600, " h"}};
constexpr std::array kCountUnits = {Unit{1, ""}, Unit{1e3, "K"}, Unit{1e6, "M"}, Unit{1e9, "B"},
                                    Unit{1e12, "T"}};
constexpr std::array kBitUnits = {Unit{1e3 / 8, " Kb/s"}, Unit{1e6 / 8, " Mb/s"},
                                  Unit{1e9 / 8, " Gb/s"}, Unit{1e12 / 8, " Tb/s"}};
constexpr std::array kLinkUnits = {Unit{1e3, " KB/s"}, Unit{1e6, " MB/s"}, Unit{1e9, " GB/s"},
                                   Unit{1e12, " TB/s"}};
constexpr std::array kWattUnits = {Unit{1, " W"}, Unit{1e3, " kW"}, Unit{1e6, " MW"}};
constexpr std::array kEnergyUnit = {Unit{1, " kWh"}};
constexpr std::array kPlainUnit = {Unit{1, ""}};

std::span<const Unit> UnitsOf(Quantity quantity) {
  switch (quantity) {
    case Quantity::kBytes:
      return kByteUnits;
    case Quantity::kSeconds:
      return kSecondUnits;
    case Quantity::kTokenRate:
    case Quantity::kCount:
      return kCountUnits;
    case Quantity::kNetworkRate:
      return kBitUnits;
    case Quantity::kLinkRate:
      return kLinkUnits;
    case Quantity::kWatts:
      return kWattUnits;
    case Quantity::kEnergy:
      return kEnergyUnit;
    case Quantity::kMoney:
    case Quantity::kNumber:
      return kPlainUnit;
  }
  return kPlainUnit;
}

// In which a number of this size is written.
Unit UnitFor(double value, Quantity quantity) {
  const std::span<const Unit> units = UnitsOf(quantity);
  Unit found = units.front();
  for (const Unit& unit : units) {
    // Minutes are written in seconds.
    const double least = unit.size == 3600 ? 10 * unit.size : unit.size;
    if (std::abs(value) >= least * (1 - 1e-9)) found = unit;
  }
  return found;
}

// `value` in `unit` with as many decimals as steps of `step` need.
std::string TickLabel(double value, double step, const Unit& unit) {
  if (value == 0) return "0";
  const double in_unit = value / unit.size;
  int decimals = 0;
  for (double s = step / unit.size; decimals < 12 && std::abs(s - std::round(s)) > 1e-6 * s;
       s *= 10)
    ++decimals;
  return fmt::format("{:.{}f}{}", in_unit, decimals, unit.name);
}

// 1, 2 or 5 times a power of ten that is the next at or above `step`.
double RoundStep(double step) {
  const double power = std::pow(10.0, std::floor(std::log10(step) + 1e-12));
  for (const double m : {1.0, 2.0, 5.0, 10.0}) {
    if (m * power >= step * (1 - 1e-9)) return m * power;
  }
  return 10 * power;
}

constexpr double kTickGap = 14;  // between labels side by side

Axis Linear(double least, double most, Quantity quantity, double length_px, bool vertical) {
  Axis axis;
  const Unit unit = UnitFor(std::max(std::abs(least), std::abs(most)), quantity);
  // There is no half of a step or a byte.
  const bool is_whole = quantity == Quantity::kCount || quantity == Quantity::kBytes;
  const double whole = is_whole ? 1 : 0;
  for (double ticks = vertical ? length_px / 34 : length_px / 60;; ticks *= 0.7) {
    const double step = std::max(whole, unit.size * RoundStep((most - least) / unit.size /
                                                              std::max(1.0, std::floor(ticks))));
    axis.begin = step * std::floor(least / step + 1e-9);
    axis.end = step * std::ceil(most / step - 1e-9);
    if (axis.end <= axis.begin) axis.end = axis.begin + step;
    axis.ticks.clear();
    double widest = 0;
    const auto count = std::llround((axis.end - axis.begin) / step);
    for (int64_t i = 0; i <= count; ++i) {
      const double at = axis.begin + step * static_cast<double>(i);
      axis.ticks.push_back({at, TickLabel(std::abs(at) < 1e-9 * step ? 0 : at, step, unit)});
      widest = std::max(widest, TextPixels(axis.ticks.back().label, kTickFont));
    }
    const double room = length_px * step / (axis.end - axis.begin);
    if (vertical || room >= widest + kTickGap || axis.ticks.size() <= 2 || ticks < 1) return axis;
  }
}

// Leaves out what would touch the label before it.
void DropCrowded(const Axis& axis, double length_px, std::vector<Tick>& ticks) {
  double last_end = -1e9;
  std::erase_if(ticks, [&](const Tick& tick) {
    const double half = TextPixels(tick.label, kTickFont) / 2;
    const double middle = axis.Share(tick.at) * length_px;
    if (middle - half < last_end + kTickGap) return true;
    last_end = middle + half;
    return false;
  });
}

}  // namespace

std::string ColourClass(size_t i) { return fmt::format("c{}", i % kColours); }

std::vector<LegendEntry> LegendOf(const std::vector<std::string>& parts, size_t first) {
  std::vector<LegendEntry> legend;
  for (size_t i = 0; i < parts.size(); ++i) {
    legend.push_back({ColourClass((i + first) % parts.size()), parts[i]});
  }
  return legend;
}

Svg::Svg(double width, double height, std::string_view label)
    : width_(width),
      text_(fmt::format("<svg role=\"img\" aria-label=\"{}\" width=\"{:.0f}\" height=\"{:.0f}\" "
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
                     std::string_view css_class, double font) {
  const double half = TextPixels(text, font) / 2;
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
    TextWithin(x, box.bottom + 16, tick.label, 0, width_, "t tick", kTickFont);
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

std::string MoneyText(double amount) {
  if (amount < 999.5) return FineCell(amount);
  std::string text = fmt::format("{:.0f}", amount);
  for (size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

std::string FormatQuantity(double value, Quantity quantity) {
  switch (quantity) {
    case Quantity::kBytes:
      return FormatBytes(static_cast<uint64_t>(std::llround(value)));
    case Quantity::kSeconds:
      return FormatSeconds(value);
    case Quantity::kTokenRate:
      return FormatRate(value) + " tokens/s";
    case Quantity::kNetworkRate:
      return FormatBandwidth(value, /*bits=*/true);
    case Quantity::kLinkRate:
      return FormatBandwidth(value, /*bits=*/false);
    case Quantity::kCount:
      return std::to_string(std::llround(value));
    case Quantity::kWatts:
      return fmt::format("{:.0f} W", value);
    case Quantity::kMoney:
      return MoneyText(value);
    case Quantity::kEnergy:
      return FineCell(value) + " kWh";
    case Quantity::kNumber:
      return fmt::format("{:.4f}", value);
  }
  return "?";
}

double Axis::Share(double value) const {
  if (log) return std::log(value / begin) / std::log(end / begin);
  return (value - begin) / (end - begin);
}

double TextPixels(std::string_view text, double font_px) {
  double em = 0;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0xC0) == 0x80) continue;  // goes on with a character
    if (static_cast<unsigned char>(c) >= 0x80) {
      em += 1;
    } else if (std::string_view("mwMW%@").find(c) != std::string_view::npos) {
      em += 1;
    } else if (std::string_view("+=<>#~&").find(c) != std::string_view::npos) {
      em += 0.84;
    } else if (std::string_view("ijl.,:;'|!()[] /-tfr").find(c) != std::string_view::npos) {
      em += 0.42;
    } else {
      em += c >= 'A' && c <= 'Z' ? 0.78 : 0.64;
    }
  }
  return em * font_px;
}

Axis AxisFromZero(double most, Quantity quantity, double length_px, bool vertical) {
  return Linear(0, most > 0 ? most : 1, quantity, length_px, vertical);
}

Axis AxisAround(double least, double most, Quantity quantity, double length_px, bool vertical) {
  if (most <= least) {
    const double room = std::max(std::abs(least) * 0.01, 1e-9);
    return Linear(least - room, most + room, quantity, length_px, vertical);
  }
  return Linear(least, most, quantity, length_px, vertical);
}

Axis LogAxis(double least, double most, Quantity quantity, double length_px) {
  Axis axis{least, most, true, {}};
  std::vector<Tick> powers;
  const double base = UnitFor(least, quantity).size;
  for (double power = base * std::pow(10.0, std::floor(std::log10(least / base) + 1e-9));
       power <= most * (1 + 1e-9); power *= 10) {
    for (const double m : {1.0, 2.0, 5.0}) {
      const double at = m * power;
      if (at < least * (1 - 1e-9) || at > most * (1 + 1e-9)) continue;
      axis.ticks.push_back({at, TickLabel(at, at, UnitFor(at, quantity))});
      if (m == 1) powers.push_back(axis.ticks.back());
    }
  }
  std::vector<Tick> fitting = axis.ticks;
  DropCrowded(axis, length_px, fitting);
  if (fitting.size() < axis.ticks.size() && powers.size() >= 2) {
    DropCrowded(axis, length_px, powers);
    axis.ticks = powers;
  } else {
    axis.ticks = fitting;
  }
  return axis;
}

}  // namespace zeroplan
