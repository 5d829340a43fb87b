#include "text/documents/document_source.h"

#include <array>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/base/strings.h"
#include "text/files/token_file.h"

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;
using Kind = RecordFormat::Kind;

constexpr const char* kForms =
    "a record is {\"text\": \"...\"}, {\"prompt\": \"...\", \"completion\": \"...\"} or "
    "{\"messages\": [{\"role\": \"user\", \"content\": \"...\"}, ...]}; ⟦text_field⟧ names another "
    "member that holds the text";

Json Parse(std::string_view line, std::string_view where) {
  Json record;
  try {
    record = Json::parse(line.begin(), line.end());
  } catch (const Json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 9: syntax error ..."
    std::string_view reason = error.what();
    if (const size_t column = reason.find("column "); column != std::string_view::npos) {
      reason = reason.substr(column);
    }
    ThrowUsage("{}: is not one whole JSON value: {}; write one record a line", where,
               PrintableText(reason, 160));
  }
  if (!record.is_object()) {
    ThrowUsage("{}: is a JSON {}, no object; {}", where, record.type_name(),
               record.is_array() && where.ends_with(":1")
                   ? "write the elements of the list one a line, as jq -c '.[]' does"
                   : "write one record a line");
  }
  return record;
}

bool Has(const Json& record, const char* key) {
  const auto at = record.find(key);
  return at != record.end() && !at->is_null();
}

const Json& Member(const Json& object, const std::string& key, std::string_view where,
                   std::string_view path) {
  const auto at = object.find(key);
  if (at == object.end()) {
    ThrowUsage("{}: {}{} is missing, which the file's first record has; {}", where, path, key,
               "all records of a file have the same form");
  }
  return *at;
}

std::string String(const Json& value, std::string_view where, const std::string& path) {
  if (!value.is_string()) {
    ThrowUsage("{}: {}: is {}, must be a text", where, path, value.type_name());
  }
  return value.get<std::string>();
}

// A text, or a list of such parts: {"type": "text", "text": "..."}.
std::string Content(const Json& value, std::string_view where, const std::string& path) {
  if (!value.is_array()) return String(value, where, path);
  std::string text;
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string part = fmt::format("{}[{}]", path, i);
    if (!value[i].is_object() || !value[i].contains("text") ||
        (value[i].contains("type") && value[i]["type"] != "text")) {
      ThrowUsage(
          "{}: {}: only parts of the form {{\"type\": \"text\", \"text\": \"...\"}} can be "
          "trained on; remove the others",
          where, part);
    }
    text += String(value[i]["text"], where, part + ".text");
  }
  return text;
}

ChatMessage Message(const Json& value, std::string_view where, const std::string& path) {
  if (!value.is_object()) {
    ThrowUsage("{}: {}: is {}, must be {{\"role\": \"...\", \"content\": \"...\"}}", where, path,
               value.type_name());
  }
  ChatMessage message;
  for (const char* key : {"role", "content"}) {
    if (!Has(value, key)) {
      ThrowUsage("{}: {}.{}: is missing; a message is {{\"role\": \"...\", \"content\": \"...\"}}",
                 where, path, key);
    }
  }
  for (const auto& [key, member] : value.items()) {
    const std::string member_path = fmt::format("{}.{}", path, key);
    if (key == "role") {
      message.role = String(member, where, member_path);
    } else if (key == "content") {
      message.content = Content(member, where, member_path);
    } else if (member.is_string()) {
      message.others.emplace_back(key, member.get<std::string>());
    } else if (!member.is_null() && !(member.is_structured() && member.empty())) {
      ThrowUsage(
          "{}: {}: {} cannot be trained on; remove it, or render the conversations with "
          "transformers' apply_chat_template into lines with a \"text\" field",
          where, member_path, member.type_name());
    }
  }
  return message;
}

void AddMessages(const Json& list, std::string_view where, const std::string& path,
                 std::vector<ChatMessage>* messages) {
  if (!list.is_array() || list.empty()) {
    ThrowUsage("{}: {}: must be a list of messages, at least one", where, path);
  }
  for (size_t i = 0; i < list.size(); ++i) {
    messages->push_back(Message(list[i], where, fmt::format("{}[{}]", path, i)));
  }
}

void RefuseTools(const Json& record, std::string_view where) {
  for (const char* key : {"tools", "documents", "chat_template_kwargs"}) {
    if (!Has(record, key) || record[key].empty()) continue;
    ThrowUsage(
        "{}: {}: is not supported; render the conversations with transformers' "
        "apply_chat_template into lines with a \"text\" field",
        where, key);
  }
}

}  // namespace

RecordFormat RecognizeRecord(std::string_view line, std::string_view where,
                             std::string_view text_field) {
  const Json record = Parse(line, where);
  RecordFormat format;
  if (!text_field.empty()) {
    format.field = text_field;
    if (!record.contains(text_field)) {
      ThrowUsage("{}: has no member {}, which ⟦text_field⟧ names", where, text_field);
    }
    return format;
  }
  const bool chat = Has(record, "messages");
  const bool completion = Has(record, "prompt") && Has(record, "completion");
  const bool text = Has(record, "text");
  if (!chat && !completion && !text) {
    std::string keys;
    for (const auto& [key, value] : record.items()) keys += (keys.empty() ? "" : ", ") + key;
    ThrowUsage("{}: has none of the members that can be trained on ({}); {}", where,
               keys.empty() ? "it is empty" : "it has " + PrintableText(keys, 120), kForms);
  }
  if (int{chat} + int{completion} + int{text} > 1) {
    ThrowUsage(
        "{}: has {}{}{}: which is meant? ⟦text_field⟧ text takes the text; else remove all but one",
        where, chat ? "messages" : "prompt and completion",
        chat && completion ? ", prompt and completion" : "", text ? ", text" : "");
  }
  if (chat) format.kind = Kind::kChat;
  if (completion) {
    format.kind = record["prompt"].is_array() ? Kind::kChatCompletion : Kind::kCompletion;
  }
  return format;
}

Record ReadRecord(std::string_view line, const RecordFormat& format, std::string_view where) {
  const Json json = Parse(line, where);
  Record record;
  switch (format.kind) {
    case Kind::kText:
      record.text = String(Member(json, format.field, where, ""), where, format.field);
      break;
    case Kind::kCompletion:
      record.text = String(Member(json, "prompt", where, ""), where, "prompt");
      record.completion = String(Member(json, "completion", where, ""), where, "completion");
      break;
    case Kind::kChat:
      RefuseTools(json, where);
      AddMessages(Member(json, "messages", where, ""), where, "messages", &record.messages);
      break;
    case Kind::kChatCompletion:
      RefuseTools(json, where);
      AddMessages(Member(json, "prompt", where, ""), where, "prompt", &record.messages);
      record.first_counted = record.messages.size();
      AddMessages(Member(json, "completion", where, ""), where, "completion", &record.messages);
      break;
  }
  return record;
}

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
