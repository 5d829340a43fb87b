#include "planner/report/report_rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/units.h"

namespace zeroplan {

ByteUnit CommonUnit(const Estimate& estimate) {
  uint64_t largest = 0;
  for (const ChoiceEstimate& choice : estimate.choices) {
    largest = std::max(largest, choice.footprint.gpu_arena_bytes());
  }
  // Below a gigabyte most columns would read 0.00.
  if (largest < 1'000'000'000) return {"MB", 1e6};
  return {"GB", 1e9};
}

TimeUnit CommonTimeUnit(const Estimate& estimate) {
  for (const ChoiceEstimate& choice : estimate.choices) {
    if (choice.time.total_seconds.value_or(0) >= 0.9995) return {"s", 1};
  }
  return {"ms", 1e-3};
}

namespace {

// Three significant digits, at most two of them behind the point; 5 characters.
std::string Cell(double value) {
  if (value < 9.995) return fmt::format("{:.2f}", value);
  if (value < 99.95) return fmt::format("{:.1f}", value);
  if (value < 99999.5) return fmt::format("{:.0f}", value);
  return FormatCount(static_cast<uint64_t>(value));
}

}  // namespace

std::string ByteCell(uint64_t bytes, const ByteUnit& unit) {
  return bytes == 0 ? "-" : Cell(static_cast<double>(bytes) / unit.bytes);
}

std::string SecondsCell(const std::optional<double>& seconds, const TimeUnit& unit) {
  if (!seconds) return "?";
  const double value = *seconds / unit.seconds;
  if (value == 0) return "-";
  return value < 0.9995 ? fmt::format("{:.3f}", value) : Cell(value);
}

std::string FormatSeconds(double seconds) {
  if (seconds == 0) return "0 s";
  const struct {
    double seconds;
    const char* name;
  } units[] = {{3600, "h"}, {1, "s"}, {1e-3, "ms"}, {1e-6, "us"}};
  for (const auto& unit : units) {
    const double value = seconds / unit.seconds;
    // Hours from ten on; the others where three digits round to 1.
    if (value >= (unit.seconds == 3600 ? 9.995 : 0.9995)) {
      return fmt::format("{} {}", Cell(value), unit.name);
    }
  }
  return fmt::format("{:.2f} us", seconds * 1e6);
}

std::string Wrap(const std::string& text, size_t indent) {
  const size_t lead = std::min(text.find_first_not_of(' '), text.size());
  std::string out(lead, ' ');
  size_t column = lead;
  for (size_t begin = lead; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const size_t word = end - begin;
    if (begin > lead && column + 1 + word > kReportColumns) {
      out += '\n' + std::string(indent, ' ');
      column = indent;
    } else if (begin > lead) {
      out += ' ';
      ++column;
    }
    out.append(text, begin, word);
    column += word;
    begin = end + 1;
  }
  return out + '\n';
}

}  // namespace zeroplan
