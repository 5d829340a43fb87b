// Files of texts and records. The first byte says what the file is called. Reading throws Error or
// gives documents; a record's texts are well-formed, whatever form it is read as.
#include <array>
#include <string>

#include "core/base/strings.h"
#include "tests/fuzz/need.h"
#include "tests/fuzz/scratch_files.h"
#include "text/documents/document_source.h"

namespace zeroplan {
namespace {

void Use(const RawDocument& document) {
  Need(!document.where.empty());
  if (!document.format) return;
  using Kind = RecordFormat::Kind;
  for (const Kind kind : {document.format->kind, Kind::kText, Kind::kCompletion, Kind::kChat,
                          Kind::kChatCompletion, Kind::kInstruction, Kind::kQuestion}) {
    Record record;
    const RecordFormat format = {kind, document.format->names};
    if (!Accepts([&] { record = ReadRecord(document.bytes, format, document.where); })) continue;
    Need(IsValidUtf8(record.text) && IsValidUtf8(record.completion));
    Conversation& chat = record.chat;
    Need(format.is_chat() == !chat.messages.empty());
    Need(chat.first_counted <= chat.messages.size());
    for (const ChatMessage& message : chat.messages) {
      Need(IsValidUtf8(message.role) && IsValidUtf8(message.content.value_or("")));
      for (const auto& [name, value] : message.others) {
        Need(IsValidUtf8(name));
        if (value.text() != nullptr) Need(IsValidUtf8(value.text()->bytes));
      }
    }
    Accepts([&] { ReadArguments(document.where, &chat); });
  }
}

}  // namespace
}  // namespace zeroplan

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace zeroplan;
  static const ScratchFiles files;
  if (size == 0) return 0;
  constexpr std::array kNames = {"in.jsonl", "in.json.gz", "in.ndjson.zst", "in.txt",   "in.gz",
                                 "in.zst",   "in.json",    "in.csv",        "in.tsv.gz"};
  const auto path = files.Write(kNames[data[0] % kNames.size()],
                                {reinterpret_cast<const char*>(data) + 1, size - 1});
  Accepts([&] {
    const RecordNames names = {{"text", "body"}};
    DocumentSource source({path}, data[0] >= 128 ? names : RecordNames());
    for (RawDocument document; source.Next(&document);) Use(document);
  });
  return 0;
}
