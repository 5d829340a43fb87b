#include "planner/report/report_columns.h"

#include <fmt/format.h>

#include "core/base/error.h"

namespace zeroplan {

Paints::Paints(bool colour) {
  if (!colour) return;
  red = "\x1b[31m";
  green = "\x1b[32m";
  bold = "\x1b[1m";
  dim = "\x1b[2m";
  reset = "\x1b[0m";
}

void ReportColumns::BeginGroup(std::string_view heading) {
  groups_.push_back({std::string(heading), columns_.size()});
}

void ReportColumns::Add(std::string_view title, size_t width, bool left) {
  columns_.push_back({std::string(title), width, left});
}

size_t ReportColumns::WidthOf(size_t first, size_t end) const {
  size_t width = end - first - 1;  // the spaces between them
  for (size_t i = first; i < end; ++i) width += columns_[i].width;
  return width;
}

std::string ReportColumns::Header(const Paints& paints) const {
  std::string headings;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const size_t end = g + 1 < groups_.size() ? groups_[g + 1].first : columns_.size();
    const size_t width = WidthOf(groups_[g].first, end);
    const std::string& heading = groups_[g].heading;
    ZEROPLAN_CHECK(heading.size() <= width, "{}", heading);
    if (g > 0) headings += ' ';
    if (heading.empty()) {
      headings += std::string(width, ' ');
    } else if (heading.size() + 2 <= width) {
      headings += fmt::format("{:-^{}}", " " + heading + " ", width);
    } else {
      headings += fmt::format("{:^{}}", heading, width);
    }
  }
  headings.erase(headings.find_last_not_of(' ') + 1);
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  return fmt::format("{}\n{}{}{}\n", headings, paints.bold, Row(titles), paints.reset);
}

std::string ReportColumns::Row(const std::vector<std::string>& cells) const {
  ZEROPLAN_CHECK(cells.size() == columns_.size());
  std::string line;
  for (size_t i = 0; i < columns_.size(); ++i) {
    if (i > 0) line += ' ';
    line += columns_[i].left ? fmt::format("{:<{}}", cells[i], columns_[i].width)
                             : fmt::format("{:>{}}", cells[i], columns_[i].width);
  }
  return line;
}

}  // namespace zeroplan
