// Records of training data: what the members of a JSON object are, and what they say.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/documents/chat_template.h"

namespace zeroplan {

// The forms that records have, by the members that make them.
//
//   kText            {"text": "..."}
//   kCompletion      {"prompt": "...", "completion": "..."}
//   kChat            {"messages": [{"role": "user", "content": "..."}, ...]}; "conversations" is
//                    the same, and messages may be {"from": "human", "value": "..."} (ShareGPT)
//   kChatCompletion  {"prompt": [{...}], "completion": [{...}]}
//   kInstruction     {"instruction": "...", "input": "...", "output": "..."}: "input" may be
//   missing
//                    (Alpaca); also "system", and "history" as a list of pairs
//   kQuestion        {"question": "...", "answer": "..."}
//
// Conversations may have "tools", "documents" and "chat_template_kwargs" beside them, as in TRL,
// "functions" (OpenAI's tools before these), "system", which becomes the first message, and
// "loss_mask", a list that says of each message whether it counts.
struct RecordFormat {
  enum class Kind { kText, kCompletion, kChat, kChatCompletion, kInstruction, kQuestion };
  Kind kind = Kind::kText;
  // What members of the form are called in this file, where they have other names: (of the form,
  // in the file).
  std::vector<std::pair<std::string, std::string>> names;

  // Whether records become conversations where the model has a chat template: all of them, or
  // (kInstruction) only those of such a model.
  bool is_chat() const { return kind != Kind::kText && kind != Kind::kCompletion; }
  // Whether they can be trained on without a chat template.
  bool needs_template() const { return is_chat() && kind != Kind::kInstruction; }
  // The file's name of a member of the form.
  std::string NameOf(std::string_view member) const;
  // Whether records of the form have that member, by the file's name of it.
  bool Uses(std::string_view key) const;
  // "a text (member text)", "a conversation (messages)": for messages.
  std::string Description() const;
};

// How the members of records are called: the form's member and the file's ("prompt", "question").
// Empty: the file's first record says it by the members it has.
using RecordNames = std::vector<std::pair<std::string, std::string>>;
// Throws Error(kUsage) naming ⟦map⟧ unless the members are those of one form.
void CheckRecordNames(const RecordNames& names);
// All members that records are made of, with those of `names`.
std::vector<std::string> RecordMembers(const RecordNames& names);

// Texts are well-formed UTF-8.
struct Record {
  std::string text;        // kText; kCompletion: the prompt, kInstruction: that of Alpaca
  std::string completion;  // kCompletion, kInstruction
  Conversation chat;       // where the form is_chat()
  // Members that nothing was made of, as "id"; those of messages that a template may ask for are
  // not among them.
  std::vector<std::string> unused;
};

// What the file of this line holds, as its first record says. Throws Error(kUsage) starting with
// `where` ("chats.jsonl:1") if it is no JSON object, has none of these members, or several that
// could be meant.
RecordFormat RecognizeRecord(std::string_view line, std::string_view where,
                             const RecordNames& names);

// Throws Error(kUsage) starting with `where` and naming the member if the line is no such record,
// or says something of how it is to be trained on that is not supported.
Record ReadRecord(std::string_view line, const RecordFormat& format, std::string_view where);

// Reads arguments of calls that are a text of JSON, as OpenAI has them: templates print them as
// JSON, which would escape the text again. Throws as ReadRecord.
void ReadArguments(std::string_view where, Conversation* chat);

}  // namespace zeroplan
