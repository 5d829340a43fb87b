// Documents of training data, one after the other: text files, and records.
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

// One document as it was found.
struct RawDocument {
  std::string where;                   // "chats.jsonl:7", "t.parquet: row 7"; a text file's path
  std::optional<RecordFormat> format;  // of a record; nullopt: text
  std::string bytes;                   // of a record, or the text, or its first part
  uint64_t broken = 0;                 // of a record: bytes that were no UTF-8 and are U+FFFD now
  std::unique_ptr<ByteSource> more;    // of a text: what is not in `bytes`
};

class DocumentSource {
 public:
  // So much of a text file is read at once: the rest is left to whoever encodes it.
  static constexpr size_t kTextBytes = size_t{8} << 20;

  // Files are opened as they are reached. `names` as for RecognizeRecord.
  DocumentSource(std::vector<std::filesystem::path> files, RecordNames names);

  // False: there are no more. Empty text files and blank lines are skipped. Throws Error(kUsage)
  // naming file, or file and line, of what cannot be read; also for token files, and for files of
  // records of which too much is no UTF-8 (TextCheck). After an error in
  // one record the next call goes on with the record behind it, if can_go_on().
  bool Next(RawDocument* document);
  // Whether the place of the next record is known, after an error.
  bool can_go_on() const { return read_ || (records_ != nullptr && records_->can_go_on()); }

  // Bytes of all files as they lie on disk: read so far, and all.
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
  uint64_t before_ = 0;  // bytes of files that are done
  uint64_t size_ = 0;
  std::unique_ptr<RecordReader> records_;  // of the file before next_
  std::optional<RecordFormat> format_;
  TextCheck check_;       // of the records so far
  uint64_t checked_ = 0;  // bytes of records since CheckFile
  bool read_ = false;     // a record was read, and what came after it went wrong
};

}  // namespace zeroplan
