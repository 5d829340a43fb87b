// Documents of training data in order: text files, and records.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/documents/records.h"
#include "text/files/byte_source.h"
#include "text/files/data_files.h"
#include "text/files/record_reader.h"

namespace zeroplan {

// One document as read.
struct RawDocument {
  std::string where;                   // "chats.jsonl:7", "t.parquet: row 7"; a text file's path
  std::optional<RecordFormat> format;  // a record's; nullopt: text
  std::string bytes;                   // a record, or the text, or its first part
  uint64_t broken = 0;                 // a record's bytes that were not UTF-8, replaced by U+FFFD
  std::unique_ptr<ByteSource> more;    // the rest of a text that is not in `bytes`
};

class DocumentSource {
 public:
  // Bytes of a text file that are read at once: the encoder reads the rest.
  static constexpr size_t kTextBytes = size_t{8} << 20;

  // Opens files as it reaches them. `names` as for RecognizeRecord.
  DocumentSource(std::vector<std::filesystem::path> files, RecordNames names);

  // False: there are no more. Skips empty text files and blank lines. Throws Error(kUsage) naming
  // file, or file and line, if reading fails; also for token files, and for files of records with
  // too many bytes that are not UTF-8 (TextCheck). After an error in one record the next call
  // continues with the record behind it, if can_go_on().
  bool Next(RawDocument* document);
  // Whether the place of the next record is known, after an error.
  bool can_go_on() const { return read_ || (records_ != nullptr && records_->can_go_on()); }

  // Bytes of all files on disk: read so far, and total.
  uint64_t position() const;
  uint64_t size() const { return size_; }

 private:
  void CheckText(RawDocument* document);
  void CheckFile();
  bool OpenText(const std::filesystem::path& path, RawDocument* document);

  std::vector<std::filesystem::path> files_;
  RecordNames names_;
  std::vector<std::string> members_;
  size_t next_ = 0;
  uint64_t before_ = 0;  // size of the files before the present one
  uint64_t size_ = 0;
  std::unique_ptr<RecordReader> records_;  // reader of the file before next_
  std::optional<RecordFormat> format_;
  TextCheck check_;       // covers the records so far
  uint64_t checked_ = 0;  // bytes of records since CheckFile
  bool read_ = false;     // a record was read, and then its processing failed
};

}  // namespace zeroplan
