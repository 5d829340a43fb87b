// Records of a file, one after the other, each as a JSON object: lines of JSON, the values of a
// JSON file, the rows of CSV and TSV files, and those of Parquet and Arrow files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace zeroplan {

class RecordReader {
 public:
  // By the file's name, without ".gz" and ".zst": .jsonl, .jsonlines, .ndjson and .json hold JSON,
  // .csv and .tsv rows of texts below a row of names, .parquet and .arrow tables. Of tables the
  // columns `members` are read, and the others are null. Throws Error(kUsage) naming the path if it
  // cannot be read, or if there is no pyarrow to read it, with the way out.
  static std::unique_ptr<RecordReader> Open(const std::filesystem::path& path,
                                            std::span<const std::string> members);
  // As a file of JSON, whatever its name.
  static std::unique_ptr<RecordReader> OpenJson(const std::filesystem::path& path);
  virtual ~RecordReader() = default;

  // The next record as the text of a JSON value, with such bytes as are no UTF-8; false: there is
  // none. Throws as Open, naming the place of what is damaged or too large.
  virtual bool Next(std::string* record) = 0;
  // Whether, after an error, Next goes on with the record behind the one that is wrong.
  virtual bool can_go_on() const { return false; }
  // Where the record is that Next returned: "chats.jsonl:7", "t.parquet: row 7".
  virtual std::string where() const = 0;
  // Bytes of the file that were read, as it lies on disk; 0: not known.
  virtual uint64_t position() const = 0;
};

}  // namespace zeroplan
