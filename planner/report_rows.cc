#include "planner/report_rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/units.h"

namespace zeroplan {

ByteUnit CommonUnit(const Estimate& estimate) {
  uint64_t largest = 0;
  for (const ChoiceEstimate& choice : estimate.choices) {
    largest = std::max(largest, choice.gpu_total_bytes - choice.runtime_bytes);
  }
  // Below a gigabyte most columns would read 0.00.
  if (largest < 1'000'000'000) return {"MB", 1e6};
  return {"GB", 1e9};
}

std::string ByteCell(uint64_t bytes, const ByteUnit& unit) {
  if (bytes == 0) return "-";
  const double value = static_cast<double>(bytes) / unit.bytes;
  if (value < 9.995) return fmt::format("{:.2f}", value);
  if (value < 99.95) return fmt::format("{:.1f}", value);
  if (value < 99999.5) return fmt::format("{:.0f}", value);
  return FormatCount(static_cast<uint64_t>(value));
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
