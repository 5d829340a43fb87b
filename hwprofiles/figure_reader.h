// Reads figures and tables out of a profile's JSON by path and remembers which paths were read, so
// that what is left over can be refused as unknown.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hwprofiles/fields.h"
#include "hwprofiles/parts.h"
#include "hwprofiles/profile.h"

namespace zeroplan {

// Cells of a table. Bytes, rates and times past these are no measurements, and overflow what is
// made of them.
inline constexpr int64_t kMostWhole = 1'000'000'000;  // of whole numbers, which begin at 1
inline constexpr double kLeastCell = 1e-9, kMostCell = 1e18;

// What surrounds a table's rows, and the rows.
struct TableText {
  std::string path;
  std::vector<std::string_view> columns;
  const ProfileJson* rows;  // of the reader
  size_t row_count;
  double scale;  // of the table's unit
  FigureSource source;
  std::string reference;
};

class FigureReader {
 public:
  // The profile `text` with its parts composed (parts.h). Throws Error(kUsage) if it is not a JSON
  // object. `source` is what errors begin with.
  FigureReader(std::string_view text, std::string_view source);
  ~FigureReader();

  // `path` is dotted ("gpu.peaks.bf16.dense").
  Figure Required(const std::string& path, const FigureRule& rule);
  std::optional<Figure> Optional(const std::string& path, const FigureRule& rule);
  std::string Text(const std::string& path);
  // REQUIRES: Has(path). The rows are read by RowReader.
  TableText Table(const std::string& path, Dimension dimension,
                  const std::vector<std::string_view>& columns);
  bool Flag(const std::string& path);
  bool Has(const std::string& path) const;
  // Entries of an array, as paths ("runtime.0", ...). Throws if it is not a non-empty array.
  std::vector<std::string> Items(const std::string& path);
  int64_t Integer(const std::string& path, int64_t low, int64_t high);
  // Keys of an object; empty if it is absent.
  std::vector<std::string> Keys(const std::string& path) const;

  // Throws for the first key that nothing has read.
  void RefuseUnread() const;
  // Throws Error(kUsage) "SOURCE: PATH: MESSAGE".
  [[noreturn]] void Fail(const std::string& path, const std::string& message) const;

 private:
  const ProfileJson* Find(const std::string& path) const;
  const ProfileJson& Need(const std::string& path) const;
  void RefuseUnread(const ProfileJson& node, const std::string& path) const;
  Figure Read(const std::string& path, const ProfileJson& node, const FigureRule& rule);
  // A member that must be a text; `fix` says what to give.
  std::string Member(const std::string& path, const ProfileJson& node, const char* key,
                     std::string_view fix);
  FigureSource ReadSource(const std::string& path, const ProfileJson& node);
  double ReadUnit(const std::string& path, const ProfileJson& node, Dimension dimension,
                  std::string& unit);

  std::unique_ptr<const ProfileJson> root_;
  std::string source_;
  std::set<std::string> read_;
};

// One row of a table, cell by cell from left to right. Each Take throws Error(kUsage)
// "SOURCE: PATH.rows.I: ..." for a cell that is not what it takes.
class RowReader {
 public:
  // Throws for a row of another length than the columns'. Both must outlive the object.
  RowReader(const FigureReader& reader, const TableText& table, size_t index);

  // Index of the cell's word in `words`.
  size_t TakeWord(const std::vector<std::string_view>& words);
  int64_t TakeWhole();
  double TakeNumber();
  // What was measured, in the base unit.
  double TakeMeasured() { return TakeNumber() * table_.scale; }

 private:
  [[noreturn]] void FailCell(const std::string& fix) const;

  const FigureReader& reader_;
  const TableText& table_;
  const std::string path_;
  const ProfileJson& cells_;
  size_t column_ = 0;
};

}  // namespace zeroplan
