// A table of the report: columns with titles. A group of columns can share a heading.
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
  // Begins a group, which the next columns join. Its heading is printed over its columns with '-'
  // on both sides. Nothing is printed for an empty heading, and for one that is wider than the
  // columns that LeaveOut left. REQUIRES: a heading is no longer than its columns.
  void BeginGroup(std::string_view heading);
  // Returns the column's number.
  size_t Add(std::string_view title, size_t width, bool left = false);
  size_t count() const { return columns_.size(); }
  // The width of a row.
  size_t width() const { return WidthOf(0, columns_.size()); }

  // Removes columns in the order of `order` until a row has at most `columns` characters. Returns
  // their names, "pcie, exposed comm"; "" if there is room for all.
  std::string LeaveOut(const std::vector<size_t>& order, size_t columns);

  // The table's header, two lines.
  std::string Header(const Paints& paints) const;
  // One line. A cell wider than its column shifts the rest to the right. REQUIRES: a cell for each
  // column, including those that are left out.
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
  // Width of the columns that are shown, with the spaces between them; 0: none is shown.
  size_t WidthOf(size_t first, size_t end) const;
  size_t EndOf(size_t group) const;

  std::vector<Column> columns_;
  std::vector<Group> groups_;
};

}  // namespace zeroplan
