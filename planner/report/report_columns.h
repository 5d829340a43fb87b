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
  // out with '-' on both sides; an empty one over nothing, and so does one that is wider than what
  // LeaveOut left of its columns. REQUIRES: a heading is no longer than its columns.
  void BeginGroup(std::string_view heading);
  // Returns the column's number.
  size_t Add(std::string_view title, size_t width, bool left = false);
  size_t count() const { return columns_.size(); }
  // Width of a row.
  size_t width() const { return WidthOf(0, columns_.size()); }

  // Leaves columns out, the first of `order` first, until a row takes `columns` at most. Returns
  // which, "pcie, exposed comm"; "" if there is room for all.
  std::string LeaveOut(const std::vector<size_t>& order, size_t columns);

  // Two lines.
  std::string Header(const Paints& paints) const;
  // One line. A cell wider than its column pushes the rest aside. REQUIRES: a cell a column, those
  // that are left out included.
  std::string Row(const std::vector<std::string>& cells) const;

 private:
  struct Column {
    std::string title;
    size_t width;
    bool left;
    bool left_out = false;
  };
  struct Group {
    std::string heading;
    size_t first;
  };
  // Width of the columns that are shown, with the spaces between them; 0: none is.
  size_t WidthOf(size_t first, size_t end) const;
  size_t EndOf(size_t group) const;

  std::vector<Column> columns_;
  std::vector<Group> groups_;
};

}  // namespace zeroplan
