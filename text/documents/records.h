// Records of training data: lines of JSON that hold a text, a prompt and its completion, or a
// conversation.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/documents/chat_template.h"

namespace zeroplan {

// What the records of a file hold.
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

}  // namespace zeroplan
