#include "text/documents/document_source.h"

#include <span>
#include <utility>

#include "core/base/error.h"
#include "core/base/strings.h"
#include "text/files/data_files.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

uint64_t SizeOf(const fs::path& path) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  return error ? 0 : size;  // opening it says what is wrong
}

}  // namespace

DocumentSource::DocumentSource(std::vector<fs::path> files, RecordNames names)
    : files_(std::move(files)), names_(std::move(names)), members_(RecordMembers(names_)) {
  for (const fs::path& file : files_) size_ += SizeOf(file);
}

bool DocumentSource::Next(RawDocument* document) {
  for (;;) {
    *document = {};
    read_ = false;
    if (records_ != nullptr) {
      if (records_->Next(&document->bytes)) {
        document->where = records_->where();
        CheckText(document);
        read_ = true;
        if (!format_) format_ = RecognizeRecord(document->bytes, document->where, names_);
        document->format = format_;
        return true;
      }
      CheckFile();
      records_.reset();
      before_ += SizeOf(files_[next_ - 1]);
    }
    if (next_ == files_.size()) return false;
    const fs::path& path = files_[next_++];
    format_.reset();
    switch (FileKindOf(path)) {
      case FileKind::kTokens:
        if (CompressionOf(path) == Compression::kNone) {
          ThrowUsage("{}: is a token file already, not text", path.string());
        }
        ThrowUsage("{}: is a compressed token file; decompress it", path.string());
      case FileKind::kRecords:
        records_ = RecordReader::Open(path, members_);
        check_ = {};
        break;
      case FileKind::kText:
        if (OpenText(path, document)) return true;
        break;
    }
  }
}

void DocumentSource::CheckText(RawDocument* document) {
  const uint64_t before = check_.broken();
  check_.Add(document->bytes);
  document->broken = check_.broken() - before;
  if (document->broken > 0) document->bytes = ReplaceInvalidUtf8(document->bytes);
  checked_ += document->bytes.size();
  if (checked_ >= kTextBytes) CheckFile();
}

void DocumentSource::CheckFile() {
  checked_ = 0;
  // It is the file that is wrong, not one of its records: nothing goes on behind it.
  std::unique_ptr<RecordReader> records = std::move(records_);
  check_.Refuse(files_[next_ - 1].string());
  records_ = std::move(records);
}

bool DocumentSource::OpenText(const fs::path& path, RawDocument* document) {
  document->where = path.string();
  document->more = ByteSource::Open(path);
  if (!document->more->ReadMore(kTextBytes, &document->bytes)) document->more.reset();
  before_ += SizeOf(path);
  return !document->bytes.empty();
}

uint64_t DocumentSource::position() const {
  return before_ + (records_ != nullptr ? records_->position() : 0);
}

}  // namespace zeroplan
