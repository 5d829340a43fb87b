#include "text/documents/records.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/strings.h"
#include "text/documents/record_json.h"
#include "text/documents/record_messages.h"

namespace zeroplan {
namespace {

using Json = RecordJson;
using Kind = RecordFormat::Kind;

constexpr const char* kForms =
    "a record is {\"text\": \"...\"}, {\"prompt\": \"...\", \"completion\": \"...\"}, "
    "{\"messages\": [{\"role\": \"user\", \"content\": \"...\"}, ...]}, {\"conversations\": "
    "[{\"from\": \"human\", \"value\": \"...\"}, ...]}, {\"instruction\": \"...\", \"input\": "
    "\"...\", \"output\": \"...\"} or {\"question\": \"...\", \"answer\": \"...\"}; ⟦map⟧ says "
    "which "
    "members are meant, as prompt=query,completion=response or text=content";

// What the text of Alpaca's prompts is, for models without a chat template (Taori et al. 2023,
// github.com/tatsu-lab/stanford_alpaca).
constexpr const char* kAlpacaInput =
    "Below is an instruction that describes a task, paired with an input that provides further "
    "context. Write a response that appropriately completes the request.\n\n### "
    "Instruction:\n{}\n\n"
    "### Input:\n{}\n\n### Response:\n";
constexpr const char* kAlpaca =
    "Below is an instruction that describes a task. Write a response that appropriately completes "
    "the request.\n\n### Instruction:\n{}\n\n### Response:\n";

// A form: the members that it must have, and those that it may have.
struct Form {
  Kind kind;
  std::vector<std::string> needs, may_have;
};
const std::vector<Form>& Forms() {
  static const std::vector<Form> forms = {
      {Kind::kChat,
       {"messages"},
       {"tools", "functions", "documents", "chat_template_kwargs", "system", "loss_mask"}},
      {Kind::kChat,
       {"conversations"},
       {"tools", "functions", "documents", "chat_template_kwargs", "system", "loss_mask"}},
      {Kind::kCompletion,
       {"prompt", "completion"},
       {"tools", "functions", "documents", "chat_template_kwargs"}},
      {Kind::kInstruction, {"instruction", "output"}, {"input", "system", "history"}},
      {Kind::kQuestion, {"question", "answer"}, {"system"}},
      {Kind::kText, {"text"}, {}}};
  return forms;
}

Json ParseObject(std::string_view line, std::string_view where) {
  Json record = ParseRecord(line, where);
  if (!record.is_object()) {
    ThrowUsage("{}: is a JSON {}, no object; {}", where, JsonKind(record), kForms);
  }
  return record;
}

std::string MembersOf(const Json& record) {
  std::string keys;
  for (const auto& [key, value] : record.items()) keys += (keys.empty() ? "" : ", ") + key;
  return keys.empty() ? "it is empty" : "it has " + PrintableText(keys, 120);
}

void ReadInstruction(const Json& json, const RecordFormat& format, std::string_view where,
                     Record* record) {
  const std::string key = format.NameOf("instruction");
  const std::string answer = format.NameOf("output");
  const std::string instruction = TextOf(MemberOf(json, key, where), where, key);
  const std::string input_key = format.NameOf("input");
  const std::string input =
      HasMember(json, input_key) ? TextOf(json[input_key], where, input_key) : "";
  record->completion = TextOf(MemberOf(json, answer, where), where, answer);
  record->text = input.empty() ? fmt::format(fmt::runtime(kAlpaca), instruction)
                               : fmt::format(fmt::runtime(kAlpacaInput), instruction, input);
  std::vector<ChatMessage>& messages = record->chat.messages;
  const std::string history = format.NameOf("history");
  if (HasMember(json, history)) {
    if (!json[history].is_array()) {
      ThrowUsage("{}: {}: must be a list of pairs of texts", where, history);
    }
    for (const Json& pair : json[history]) {
      if (!pair.is_array() || pair.size() != 2) {
        ThrowUsage("{}: {}: must be a list of pairs of texts", where, history);
      }
      messages.push_back({"user", TextOf(pair[0], where, history), {}});
      messages.push_back({"assistant", TextOf(pair[1], where, history), {}});
    }
  }
  messages.push_back({"user", input.empty() ? instruction : instruction + "\n" + input, {}});
  messages.push_back({"assistant", record->completion, {}});
  AddSystem(json, format, where, &messages);
}

// The form that the members of `names` are of; nullptr: of none.
const Form* FormOf(const RecordNames& names) {
  const auto has = [&](const std::string& member) {
    return std::any_of(names.begin(), names.end(),
                       [&](const auto& n) { return n.first == member; });
  };
  for (const Form& form : Forms()) {
    if (!std::all_of(form.needs.begin(), form.needs.end(), has)) continue;
    const bool all = std::all_of(names.begin(), names.end(), [&](const auto& name) {
      return std::find(form.needs.begin(), form.needs.end(), name.first) != form.needs.end() ||
             std::find(form.may_have.begin(), form.may_have.end(), name.first) !=
                 form.may_have.end();
    });
    if (all) return &form;
  }
  return nullptr;
}

}  // namespace

std::string RecordFormat::NameOf(std::string_view member) const {
  for (const auto& [name, in_file] : names) {
    if (name == member) return in_file;
  }
  return std::string(member);
}

bool RecordFormat::Uses(std::string_view key) const {
  const Kind form_kind = kind == Kind::kChatCompletion ? Kind::kCompletion : kind;
  const auto form = std::find_if(Forms().begin(), Forms().end(),
                                 [&](const Form& known) { return known.kind == form_kind; });
  const auto is_key = [&](const std::string& member) { return NameOf(member) == key; };
  if (std::any_of(form->needs.begin(), form->needs.end(), is_key)) return true;
  return kind != Kind::kCompletion &&
         std::any_of(form->may_have.begin(), form->may_have.end(), is_key);
}

std::string RecordFormat::Description() const {
  switch (kind) {
    case Kind::kText:
      return fmt::format("texts ({})", NameOf("text"));
    case Kind::kCompletion:
      return fmt::format("prompts and completions ({}, {})", NameOf("prompt"),
                         NameOf("completion"));
    case Kind::kChat:
      return fmt::format("conversations ({})", NameOf("messages"));
    case Kind::kChatCompletion:
      return fmt::format("conversations and their completions ({}, {})", NameOf("prompt"),
                         NameOf("completion"));
    case Kind::kInstruction:
      return fmt::format("instructions and outputs ({}, {}, {})", NameOf("instruction"),
                         NameOf("input"), NameOf("output"));
    case Kind::kQuestion:
      return fmt::format("questions and answers ({}, {})", NameOf("question"), NameOf("answer"));
  }
  return "";
}

void CheckRecordNames(const RecordNames& names) {
  if (names.empty() || FormOf(names) != nullptr) return;
  std::string given;
  for (const auto& [member, in_file] : names) given += (given.empty() ? "" : ", ") + member;
  ThrowUsage(
      "⟦map⟧: {} make no record; name the members of one: text; prompt, completion; messages; "
      "instruction, input, output; question, answer; as in prompt=query,completion=response",
      given);
}

std::vector<std::string> RecordMembers(const RecordNames& names) {
  std::vector<std::string> members;
  for (const Form& form : Forms()) {
    members.insert(members.end(), form.needs.begin(), form.needs.end());
    members.insert(members.end(), form.may_have.begin(), form.may_have.end());
  }
  members.insert(members.end(), MembersThatMark().begin(), MembersThatMark().end());
  for (const auto& [member, in_file] : names) members.push_back(in_file);
  std::sort(members.begin(), members.end());
  members.erase(std::unique(members.begin(), members.end()), members.end());
  return members;
}

RecordFormat RecognizeRecord(std::string_view line, std::string_view where,
                             const RecordNames& names) {
  const Json record = ParseObject(line, where);
  const Form* form = nullptr;
  RecordFormat format;
  if (!names.empty()) {
    form = FormOf(names);
    ZEROPLAN_CHECK(form != nullptr);
    for (const auto& [member, in_file] : names) {
      if (!record.contains(in_file)) {
        ThrowUsage("{}: has no member {}, which ⟦map⟧ names ({})", where, in_file,
                   MembersOf(record));
      }
    }
    format.names = names;
  } else {
    for (const Form& known : Forms()) {
      if (!std::all_of(known.needs.begin(), known.needs.end(),
                       [&](const std::string& key) { return HasMember(record, key); })) {
        continue;
      }
      if (form != nullptr) {
        std::string map;
        for (const std::string& need : form->needs) {
          map += fmt::format("{}{}={}", map.empty() ? "" : ",", need, need);
        }
        ThrowUsage("{}: has {}, and also {}: which is meant? ⟦map⟧ says it, as {}", where,
                   fmt::join(form->needs, " and "), fmt::join(known.needs, " and "), map);
      }
      form = &known;
    }
    if (form == nullptr) {
      ThrowUsage("{}: has none of the members that can be trained on ({}); {}", where,
                 MembersOf(record), kForms);
    }
  }
  format.kind = form->kind;
  if (form->needs[0] == "conversations") {
    format.names.emplace_back("messages", format.NameOf("conversations"));
  }
  if (format.kind == Kind::kCompletion && record[format.NameOf("prompt")].is_array()) {
    format.kind = Kind::kChatCompletion;
  }
  return format;
}

Record ReadRecord(std::string_view line, const RecordFormat& format, std::string_view where) {
  const Json json = ParseObject(line, where);
  RefuseUnsupported(json, format, where);
  Record record;
  const auto text = [&](const char* member) {
    const std::string key = format.NameOf(member);
    return TextOf(MemberOf(json, key, where), where, key);
  };
  const auto messages = [&](const char* member, std::vector<ChatMessage>* all) {
    const std::string key = format.NameOf(member);
    AddMessages(MemberOf(json, key, where), where, key, all, &record.unused);
  };
  for (const auto& [key, value] : json.items()) {
    if (!format.Uses(key)) record.unused.push_back(key);
  }
  Conversation& chat = record.chat;
  switch (format.kind) {
    case Kind::kText:
      record.text = text("text");
      break;
    case Kind::kCompletion:
      record.text = text("prompt");
      record.completion = text("completion");
      break;
    case Kind::kChat:
      messages("messages", &chat.messages);
      RefuseOpenEnd(json, where, chat.messages);
      ApplyLossMask(json, format, where, &chat.messages);
      AddSystem(json, format, where, &chat.messages);
      AddSurroundings(json, format, where, &chat);
      break;
    case Kind::kChatCompletion:
      messages("prompt", &chat.messages);
      chat.first_counted = chat.messages.size();
      messages("completion", &chat.messages);
      AddSurroundings(json, format, where, &chat);
      break;
    case Kind::kInstruction:
      ReadInstruction(json, format, where, &record);
      break;
    case Kind::kQuestion:
      chat.messages = {{"user", text("question"), {}}, {"assistant", text("answer"), {}}};
      AddSystem(json, format, where, &chat.messages);
      break;
  }
  return record;
}

}  // namespace zeroplan
