#include "text/documents/document_source.h"

#include <array>

#include "core/base/error.h"
#include "text/files/token_file.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

uint64_t SizeOf(const fs::path& path) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  return error ? 0 : size;  // opening it says what is wrong
}

std::string AllOf(const fs::path& path) {
  const std::unique_ptr<ByteSource> bytes = ByteSource::Open(path);
  std::string text;
  std::vector<char> block(size_t{1} << 20);
  while (const size_t got = bytes->Read(block)) text.append(block.data(), got);
  return text;
}

}  // namespace

FileKind FileKindOf(const fs::path& path) {
  const fs::path name = CompressionOf(path) == Compression::kNone ? path : path.stem();
  const fs::path extension = name.extension();
  for (const char* of_records : {".jsonl", ".ndjson", ".json"}) {
    if (extension == of_records) return FileKind::kRecords;
  }
  if (extension == ".parquet") return FileKind::kParquet;
  return IsTokenFile(name) ? FileKind::kTokens : FileKind::kText;
}

std::string_view RawDocument::bytes() const {
  if (file.size() == 0) return line;
  return {reinterpret_cast<const char*>(file.bytes().data()), file.size()};
}

DocumentSource::DocumentSource(std::vector<fs::path> files, std::string text_field)
    : files_(std::move(files)), text_field_(std::move(text_field)) {
  for (const fs::path& file : files_) size_ += SizeOf(file);
}

bool DocumentSource::Next(RawDocument* document) {
  for (;;) {
    *document = {};
    if (lines_ != nullptr || table_ != nullptr) {
      if (lines_ != nullptr ? NextLine(document) : NextRow(document)) return true;
      lines_.reset();
      table_.reset();
      before_ += SizeOf(files_[next_ - 1]);
    }
    if (next_ == files_.size()) return false;
    const fs::path& path = files_[next_++];
    switch (FileKindOf(path)) {
      case FileKind::kTokens:
        if (CompressionOf(path) == Compression::kNone) {
          ThrowUsage("{}: is a token file already, not text", path.string());
        }
        ThrowUsage("{}: is a compressed token file; decompress it", path.string());
      case FileKind::kParquet:
        table_ = TableReader::Open(path, text_field_);
        format_.reset();
        break;
      case FileKind::kRecords:
        lines_ = std::make_unique<LineReader>(path);
        format_.reset();
        break;
      case FileKind::kText:
        if (OpenText(path, document)) return true;
        break;
    }
  }
}

bool DocumentSource::OpenText(const fs::path& path, RawDocument* document) {
  document->where = path.string();
  if (CompressionOf(path) == Compression::kNone) {
    document->file = MappedFile::Open(path);
  } else {
    document->line = AllOf(path);
  }
  before_ += SizeOf(path);
  return !document->bytes().empty();
}

bool DocumentSource::NextLine(RawDocument* document) {
  const fs::path& path = files_[next_ - 1];
  while (lines_->Next(&document->line)) {
    std::string& line = document->line;
    if (lines_->number() == 1 && line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    Settle(fmt::format("{}:{}", path.string(), lines_->number()), document);
    return true;
  }
  return false;
}

bool DocumentSource::NextRow(RawDocument* document) {
  if (!table_->Next(&document->line)) return false;
  Settle(fmt::format("{}: row {}", files_[next_ - 1].string(), table_->number()), document);
  return true;
}

void DocumentSource::Settle(std::string where, RawDocument* document) {
  if (!format_) format_ = RecognizeRecord(document->line, where, text_field_);
  document->where = std::move(where);
  document->format = format_;
}

uint64_t DocumentSource::position() const {
  return before_ + (lines_ != nullptr ? lines_->position() : 0);
}

}  // namespace zeroplan
