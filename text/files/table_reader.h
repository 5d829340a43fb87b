// Rows of a Parquet file as lines of JSON. In builds with Arrow (ZEROPLAN_WITH_ARROW).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace zeroplan {

class TableReader {
 public:
  // Reads the columns that records are made of (RecognizeRecord) and `text_field`; the others are
  // null. Throws Error(kUsage) naming the path if it cannot be read, and in a build without Arrow,
  // with the way out.
  static std::unique_ptr<TableReader> Open(const std::filesystem::path& path,
                                           std::string_view text_field);
  virtual ~TableReader() = default;

  // The next row as a JSON object; false: there is none. Some rows at a time are in memory. Throws
  // as Open.
  virtual bool Next(std::string* line) = 0;
  // Number of the row that Next returned; the first is 1.
  virtual int64_t number() const = 0;
};

}  // namespace zeroplan
