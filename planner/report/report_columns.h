// A table of the report: columns with titles, under headings that groups of columns share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zeroplan {

// Terminal codes; all empty without colour.
struct Paints {
  explicit Paints(bool colour);
  std::string_view red, green, bold, dim, reset;
};

class ReportColumns {
 public:
  // Columns join the group that was begun last. A group's heading stands over its columns, drawn
  // out with '-' on both sides; an empty one over nothing. REQUIRES: a heading is no longer than
  // its columns.
  void BeginGroup(std::string_view heading);
  void Add(std::string_view title, size_t width, bool left = false);

  // Two lines.
  std::string Header(const Paints& paints) const;
  // One line. A cell wider than its column pushes the rest aside. REQUIRES: a cell a column.
  std::string Row(const std::vector<std::string>& cells) const;

 private:
  struct Column {
    std::string title;
    size_t width;
    bool left;
  };
  struct Group {
    std::string heading;
    size_t first;
  };
  size_t WidthOf(size_t first, size_t end) const;

  std::vector<Column> columns_;
  std::vector<Group> groups_;
};

}  // namespace zeroplan
