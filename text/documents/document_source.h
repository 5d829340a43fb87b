// Documents of training data, one after the other: text files, the lines of files of records, and
// the rows of tables.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/documents/chat_template.h"
#include "text/files/byte_source.h"
#include "text/files/mapped_file.h"
#include "text/files/table_reader.h"

namespace zeroplan {

// What the records of a file hold: lines of JSON with a text, a prompt and its completion, or a
// conversation.
struct RecordFormat {
  enum class Kind {
    kText,           // {"text": "..."}, or another member of that kind
    kCompletion,     // {"prompt": "...", "completion": "..."}
    kChat,           // {"messages": [{"role": "user", "content": "..."}, ...]}
    kChatCompletion  // {"prompt": [{...}], "completion": [{...}]}
  };
  Kind kind = Kind::kText;
  std::string field = "text";  // kText

  bool is_chat() const { return kind == Kind::kChat || kind == Kind::kChatCompletion; }
};

// Texts are well-formed UTF-8.
struct Record {
  std::string text;                   // kText; kCompletion: the prompt
  std::string completion;             // kCompletion
  std::vector<ChatMessage> messages;  // of chats
  size_t first_counted = 0;           // of the messages: those before are the prompt
};

// What the file of this line holds, as its first line says. `text_field`: the member that holds the
// text; "": what there is. Throws Error(kUsage) starting with `where` ("chats.jsonl:1") if it is no
// JSON object, has none of these members, or several that could be meant.
RecordFormat RecognizeRecord(std::string_view line, std::string_view where,
                             std::string_view text_field);

// Throws Error(kUsage) starting with `where` and naming the member if the line is no such record.
Record ReadRecord(std::string_view line, const RecordFormat& format, std::string_view where);

enum class FileKind { kText, kRecords, kParquet, kTokens };
// The kind of a file by its name: .jsonl, .ndjson and .json hold records, .parquet tables, .bin,
// .u16 and .u32 tokens, all others text. What .gz and .zst stand behind counts.
FileKind FileKindOf(const std::filesystem::path& path);

// One document as it was found.
struct RawDocument {
  std::string where;                   // "chats.jsonl:7", "t.parquet: row 7"; a text file's path
  std::optional<RecordFormat> format;  // of a record; nullopt: text
  std::string line;                    // a record, or the text of a compressed file
  MappedFile file;                     // a text file

  std::string_view bytes() const;
};

class DocumentSource {
 public:
  // Files are opened as they are reached. `text_field` as for RecognizeRecord.
  DocumentSource(std::vector<std::filesystem::path> files, std::string text_field);

  // False: there are no more. Empty text files and blank lines are skipped. One line, or one text
  // file, is in memory; of a compressed text file all of its text. Throws Error(kUsage) naming
  // file, or file and line, of what cannot be read; also for token files.
  bool Next(RawDocument* document);

  // Bytes of all files as they lie on disk: read so far, and all.
  uint64_t position() const;
  uint64_t size() const { return size_; }

 private:
  bool OpenText(const std::filesystem::path& path, RawDocument* document);
  bool NextLine(RawDocument* document);
  bool NextRow(RawDocument* document);
  // Where the record is from, and what form the file has.
  void Settle(std::string where, RawDocument* document);

  std::vector<std::filesystem::path> files_;
  std::string text_field_;
  size_t next_ = 0;
  uint64_t before_ = 0;  // bytes of files that are done
  uint64_t size_ = 0;
  std::unique_ptr<LineReader> lines_;  // of the file before next_, or
  std::unique_ptr<TableReader> table_;
  std::optional<RecordFormat> format_;
};

}  // namespace zeroplan
