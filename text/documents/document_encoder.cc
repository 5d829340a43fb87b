#include "text/documents/document_encoder.h"

#include <utility>

#include "core/base/error.h"

namespace zeroplan {

DocumentEncoder::DocumentEncoder(Tokenizer tokenizer, std::optional<int32_t> end_of_text,
                                 std::optional<ChatTemplate> chat, bool train_on_all)
    : tokenizer_(std::move(tokenizer)),
      end_of_text_(end_of_text),
      chat_(std::move(chat)),
      train_on_all_(train_on_all) {}

EncodedDocument DocumentEncoder::Encode(const RawDocument& document) const {
  if (!document.format) return EncodeText(document.bytes());
  const Record record = ReadRecord(document.bytes(), *document.format, document.where);
  EncodedDocument encoded;
  switch (document.format->kind) {
    case RecordFormat::Kind::kText:
      return record.text.empty() ? EncodedDocument() : EncodeText(record.text);
    case RecordFormat::Kind::kCompletion:
      encoded = EncodeCompletion(record);
      break;
    case RecordFormat::Kind::kChat:
    case RecordFormat::Kind::kChatCompletion:
      encoded = EncodeChat(record, document.where);
      break;
  }
  if (train_on_all_) encoded.counted.clear();
  return encoded;
}

EncodedDocument DocumentEncoder::EncodeText(std::string_view text) const {
  EncodedDocument encoded;
  encoded.ids = tokenizer_.Encode(text, false);
  End(&encoded);
  return encoded;
}

EncodedDocument DocumentEncoder::EncodeCompletion(const Record& record) const {
  EncodedDocument encoded;
  const std::string text = record.text + record.completion;
  const TextSpan completion = {record.text.size(), text.size()};
  encoded.ids = tokenizer_.EncodeMarked(text, {&completion, 1}, &encoded.counted);
  End(&encoded);
  encoded.counted.resize(encoded.ids.size(), 1);
  return encoded;
}

EncodedDocument DocumentEncoder::EncodeChat(const Record& record, std::string_view where) const {
  ZEROPLAN_CHECK(chat_.has_value());
  EncodedDocument encoded;
  const ChatTemplate::Rendered rendered =
      chat_->Render(record.messages, false, where, record.first_counted);
  encoded.ids = tokenizer_.EncodeMarked(rendered.text, rendered.generated, &encoded.counted);
  return encoded;
}

void DocumentEncoder::End(EncodedDocument* document) const {
  ZEROPLAN_CHECK(end_of_text_.has_value());
  if (document->ids.empty() || document->ids.back() != *end_of_text_) {
    document->ids.push_back(*end_of_text_);
  }
}

}  // namespace zeroplan
