// Reads records of a file in order, each as a JSON object: lines of JSON, the values of a JSON
// file, the rows of CSV, TSV, Parquet and Arrow files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace zeroplan {

class RecordReader {
 public:
  // Selects the reader by the file's name, without ".gz" and ".zst": .jsonl, .jsonlines, .ndjson
  // and .json hold JSON, .csv and .tsv rows of texts below a row of names, .parquet and .arrow
  // tables. From tables it reads the columns `members`; the others are null. Throws Error(kUsage)
  // naming the path if it cannot be read, or, with advice, if pyarrow is missing.
  static std::unique_ptr<RecordReader> Open(const std::filesystem::path& path,
                                            std::span<const std::string> members);
  // Reads a file of JSON, whatever its name.
  static std::unique_ptr<RecordReader> OpenJson(const std::filesystem::path& path);
  virtual ~RecordReader() = default;

  // The next record as the text of a JSON value, including bytes that are not UTF-8; false: there
  // is none. Throws as Open, naming the place of a record that is damaged or too large.
  virtual bool Next(std::string* record) = 0;
  // Whether, after an error, Next continues with the record behind the faulty one.
  virtual bool can_go_on() const { return false; }
  // The place of the record that Next returned: "chats.jsonl:7", "t.parquet: row 7".
  virtual std::string where() const = 0;
  // Bytes read of the file on disk; 0: unknown.
  virtual uint64_t position() const = 0;
};

}  // namespace zeroplan
