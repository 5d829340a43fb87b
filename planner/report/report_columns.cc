#include "planner/report/report_columns.h"

#include <fmt/format.h>

#include <algorithm>

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

size_t ReportColumns::Add(std::string_view title, size_t width, bool left) {
  columns_.push_back({std::string(title), width, left});
  ZEROPLAN_CHECK(!groups_.empty());
  return columns_.size() - 1;
}

size_t ReportColumns::WidthOf(size_t first, size_t end) const {
  size_t width = 0;
  for (size_t i = first; i < end; ++i) {
    if (!columns_[i].left_out) width += columns_[i].width + (width > 0 ? 1 : 0);
  }
  return width;
}

size_t ReportColumns::EndOf(size_t group) const {
  return group + 1 < groups_.size() ? groups_[group + 1].first : columns_.size();
}

std::string ReportColumns::LeaveOut(const std::vector<size_t>& order, size_t columns) {
  std::vector<size_t> left_out;
  for (const size_t column : order) {
    if (WidthOf(0, columns_.size()) <= columns) break;
    columns_[column].left_out = true;
    left_out.push_back(column);
  }
  std::string names;
  for (const size_t column : left_out) {
    const std::string& title = columns_[column].title;
    const bool twice = std::any_of(columns_.begin(), columns_.end(), [&](const Column& other) {
      return &other != &columns_[column] && other.title == title;
    });
    std::string heading;
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (column >= groups_[g].first && column < EndOf(g)) heading = groups_[g].heading;
    }
    names += fmt::format("{}{}{}", names.empty() ? "" : ", ", twice ? heading + " " : "", title);
  }
  return names;
}

std::string ReportColumns::Header(const Paints& paints) const {
  std::string headings;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const size_t first = groups_[g].first, end = EndOf(g);
    const size_t width = WidthOf(first, end);
    if (width == 0) continue;
    const std::string& heading = groups_[g].heading;
    const bool whole = std::none_of(columns_.begin() + static_cast<ptrdiff_t>(first),
                                    columns_.begin() + static_cast<ptrdiff_t>(end),
                                    [](const Column& column) { return column.left_out; });
    ZEROPLAN_CHECK(!whole || heading.size() <= width, "{}", heading);
    if (!headings.empty()) headings += ' ';
    if (heading.empty() || heading.size() > width) {
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
  std::string row = Row(titles);
  row.erase(row.find_last_not_of(' ') + 1);
  return fmt::format("{}\n{}{}{}\n", headings, paints.bold, row, paints.reset);
}

std::string ReportColumns::Row(const std::vector<std::string>& cells) const {
  ZEROPLAN_CHECK(cells.size() == columns_.size());
  std::string line;
  for (size_t i = 0; i < columns_.size(); ++i) {
    if (columns_[i].left_out) continue;
    if (!line.empty()) line += ' ';
    line += columns_[i].left ? fmt::format("{:<{}}", cells[i], columns_[i].width)
                             : fmt::format("{:>{}}", cells[i], columns_[i].width);
  }
  return line;
}

}  // namespace zeroplan
