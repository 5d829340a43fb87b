// Records of training data: the form of a JSON object's members, and their contents.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/documents/chat_template.h"

namespace zeroplan {

// The forms of records, by the members that identify them.
//
//   kText            {"text": "..."}
//   kCompletion      {"prompt": "...", "completion": "..."}
//   kChat            {"messages": [{"role": "user", "content": "..."}, ...]}; "conversations" is
//                    the same, and messages may be {"from": "human", "value": "..."} (ShareGPT)
//   kChatCompletion  {"prompt": [{...}], "completion": [{...}]}
//   kInstruction     {"instruction": "...", "input": "...", "output": "..."}: "input" is optional
//                    (Alpaca); also "system", and "history" as a list of pairs
//   kQuestion        {"question": "...", "answer": "..."}
//
// Conversations may also have "tools", "documents" and "chat_template_kwargs", as in TRL,
// "functions" (OpenAI's name before "tools"), "system", which becomes the first message, and
// "loss_mask", a list that sets for each message whether it counts.
struct RecordFormat {
  enum class Kind { kText, kCompletion, kChat, kChatCompletion, kInstruction, kQuestion };
  Kind kind = Kind::kText;
  // Members of the form with other names in this file: (form's name, file's name).
  std::vector<std::pair<std::string, std::string>> names;

  // Whether records become conversations if the model has a chat template: required for all such
  // forms, optional for kInstruction.
  bool is_chat() const { return kind != Kind::kText && kind != Kind::kCompletion; }
  // Whether they cannot be trained on without a chat template.
  bool needs_template() const { return is_chat() && kind != Kind::kInstruction; }
  // The file's name of a member of the form.
  std::string NameOf(std::string_view member) const;
  // Whether records of the form have that member, by the file's name of it.
  bool Uses(std::string_view key) const;
  // "a text (member text)", "a conversation (messages)": for messages.
  std::string Description() const;
};

// The names of record members: the form's and the file's ("prompt", "question"). Empty: taken from
// the members of the file's first record.
using RecordNames = std::vector<std::pair<std::string, std::string>>;
// Throws Error(kUsage) naming ⟦map⟧ unless the members are those of one form.
void CheckRecordNames(const RecordNames& names);
// All members that records may have, including those of `names`.
std::vector<std::string> RecordMembers(const RecordNames& names);

// Texts are well-formed UTF-8.
struct Record {
  std::string text;        // kText; kCompletion: the prompt, kInstruction: Alpaca's prompt
  std::string completion;  // kCompletion, kInstruction
  Conversation chat;       // set if the form is_chat()
  // Members that are not used, such as "id"; excludes members of messages that a template may read.
  std::vector<std::string> unused;
};

// The form of a file's records, from its first line. Throws Error(kUsage) starting with `where`
// ("chats.jsonl:1") if it is no JSON object, has none of these members, or members of several
// forms.
RecordFormat RecognizeRecord(std::string_view line, std::string_view where,
                             const RecordNames& names);

// Throws Error(kUsage) starting with `where` and naming the member if the line is no such record,
// or sets something about training that is not supported.
Record ReadRecord(std::string_view line, const RecordFormat& format, std::string_view where);

// Parses arguments of calls that are a JSON text, as OpenAI writes them, because templates print
// arguments as JSON and would escape the text again. Throws as ReadRecord.
void ReadArguments(std::string_view where, Conversation* chat);

}  // namespace zeroplan
