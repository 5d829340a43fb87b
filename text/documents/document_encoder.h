// Documents as tokens, and which of these count in the loss.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "text/documents/chat_template.h"
#include "text/documents/document_source.h"
#include "text/tokenizer/tokenizer.h"

namespace zeroplan {

struct EncodedDocument {
  std::vector<int32_t> ids;
  std::vector<uint8_t> counted;  // one an id, 1: counts; empty: all do
};

// What counts:
//
//   text                    all
//   prompt and completion   the completion, and the end of the text
//   conversation            contents of the assistant's messages, with the tokens that end its
//                           turns; of a prompt and completion of messages, those of the completion
//
// A token that lies across a border counts. Text, and prompt with completion, end with
// `end_of_text`, which is added unless it is there; a conversation is what the template makes of
// it. No other tokens are added.
class DocumentEncoder {
 public:
  // `end_of_text`: REQUIRED for what is no conversation; `chat` for conversations. `train_on_all`:
  // all tokens count.
  DocumentEncoder(Tokenizer tokenizer, std::optional<int32_t> end_of_text,
                  std::optional<ChatTemplate> chat, bool train_on_all);

  // Thread-safe. Throws Error(kUsage) starting with where the document is from.
  EncodedDocument Encode(const RawDocument& document) const;

 private:
  EncodedDocument EncodeText(std::string_view text) const;
  EncodedDocument EncodeCompletion(const Record& record) const;
  EncodedDocument EncodeChat(const Record& record, std::string_view where) const;
  void End(EncodedDocument* document) const;

  Tokenizer tokenizer_;
  std::optional<int32_t> end_of_text_;
  std::optional<ChatTemplate> chat_;
  bool train_on_all_;
};

}  // namespace zeroplan
