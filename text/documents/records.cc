#include "text/documents/records.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/base/limits.h"
#include "core/base/strings.h"

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;
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
      {Kind::kChat, {"messages"}, {"tools", "documents", "chat_template_kwargs", "system"}},
      {Kind::kChat, {"conversations"}, {"tools", "documents", "chat_template_kwargs", "system"}},
      {Kind::kCompletion, {"prompt", "completion"}, {"tools", "documents", "chat_template_kwargs"}},
      {Kind::kInstruction, {"instruction", "output"}, {"input", "system", "history"}},
      {Kind::kQuestion, {"question", "answer"}, {"system"}},
      {Kind::kText, {"text"}, {}}};
  return forms;
}

Json Parse(std::string_view line, std::string_view where) {
  CheckJsonBounds(line, where);
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
    ThrowUsage("{}: is a JSON {}, no object; {}", where, record.type_name(), kForms);
  }
  return record;
}

bool Has(const Json& record, const std::string& key) {
  const auto at = record.find(key);
  return at != record.end() && !at->is_null();
}

std::string MembersOf(const Json& record) {
  std::string keys;
  for (const auto& [key, value] : record.items()) keys += (keys.empty() ? "" : ", ") + key;
  return keys.empty() ? "it is empty" : "it has " + PrintableText(keys, 120);
}

const Json& Member(const Json& object, const std::string& key, std::string_view where) {
  const auto at = object.find(key);
  if (at == object.end()) {
    ThrowUsage("{}: {} is missing, which the file's first record has; {}", where, key,
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

// A member that may be missing.
std::string OptionalString(const Json& record, const std::string& key, std::string_view where) {
  return Has(record, key) ? String(record[key], where, key) : "";
}

jinja::Value AsTemplateValue(const Json& value, std::string_view where, const std::string& path,
                             int depth = 0) {
  if (depth > kMostJsonDepth) ThrowUsage("{}: {}: is nested too deep", where, path);
  if (value.is_string()) return jinja::Value::Of(value.get_ref<const std::string&>());
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_array()) {
    jinja::List list;
    for (const Json& element : value) {
      list.push_back(AsTemplateValue(element, where, path, depth + 1));
    }
    return list;
  }
  if (value.is_object()) {
    jinja::Dict dict;
    for (const auto& [key, member] : value.items()) {
      dict.Set(key, AsTemplateValue(member, where, path, depth + 1));
    }
    return dict;
  }
  if (value.is_number_integer()) return jinja::Value::Integer(value.dump());
  if (value.is_number()) return value.get<double>();
  return jinja::None();
}

// A text, or a list of such parts: {"type": "text", "text": "..."}.
void ReadContent(const Json& value, std::string_view where, const std::string& path,
                 ChatMessage* message) {
  if (!value.is_array()) {
    message->content = String(value, where, path);
    return;
  }
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
    message->parts.push_back(String(value[i]["text"], where, part + ".text"));
    text += message->parts.back();
  }
  message->content = std::move(text);
}

// Whether a message is to be learned: "train" and "training" are true or false, "weight" 1 or 0.
bool Counts(const std::string& key, const Json& value, std::string_view where,
            const std::string& path) {
  if (key != "weight" && value.is_boolean()) return value.get<bool>();
  if (key == "weight" && value.is_number() && (value == 0 || value == 1)) return value == 1;
  ThrowUsage("{}: {}: is {}, must be {}", where, path, value.dump(),
             key == "weight" ? "1 or 0: other weights are not supported" : "true or false");
}

// The roles of ShareGPT's "from".
struct FromRole {
  const char* from;
  const char* role;
};
constexpr std::array kFromRoles = {FromRole{"human", "user"},
                                   FromRole{"user", "user"},
                                   FromRole{"gpt", "assistant"},
                                   FromRole{"assistant", "assistant"},
                                   FromRole{"chatgpt", "assistant"},
                                   FromRole{"bard", "assistant"},
                                   FromRole{"bing", "assistant"},
                                   FromRole{"model", "assistant"},
                                   FromRole{"system", "system"},
                                   FromRole{"tool", "tool"},
                                   FromRole{"observation", "tool"},
                                   FromRole{"function_response", "tool"},
                                   FromRole{"function_call", "assistant"}};

// {"from": "human", "value": "..."} as {"role": "user", "content": "..."}.
Json FromShareGpt(const Json& value, std::string_view where, const std::string& path) {
  const std::string from = String(value["from"], where, path + ".from");
  const auto* role = std::find_if(kFromRoles.begin(), kFromRoles.end(),
                                  [&](const FromRole& known) { return from == known.from; });
  if (role == kFromRoles.end()) {
    ThrowUsage("{}: {}.from: {} is not known; use human, gpt, system, tool or function_call", where,
               path, PrintableText(from, 40));
  }
  Json message = {{"role", role->role}};
  if (from == "function_call") {
    const std::string call = String(Member(value, "value", where), where, path + ".value");
    CheckJsonBounds(call, fmt::format("{}: {}.value", where, path));
    const Json function = Json::parse(call, nullptr, false);
    if (!function.is_object() || !function.contains("name")) {
      ThrowUsage("{}: {}.value: a function_call is {{\"name\": \"...\", \"arguments\": {{...}}}}",
                 where, path);
    }
    message["tool_calls"] = {{{"type", "function"}, {"function", function}}};
  }
  for (const auto& [key, member] : value.items()) {
    if (key == "from" || (key == "value" && from == "function_call")) continue;
    message[key == "value" ? "content" : key] = member;
  }
  return message;
}

ChatMessage Message(const Json& given, std::string_view where, const std::string& path) {
  if (!given.is_object()) {
    ThrowUsage("{}: {}: is {}, must be {{\"role\": \"...\", \"content\": \"...\"}}", where, path,
               given.type_name());
  }
  const bool is_share_gpt = Has(given, "from") && !Has(given, "role");
  const Json converted = is_share_gpt ? FromShareGpt(given, where, path) : Json();
  const Json& value = is_share_gpt ? converted : given;
  ChatMessage message;
  if (!Has(value, "role")) {
    ThrowUsage("{}: {}.role: is missing; a message is {{\"role\": \"...\", \"content\": \"...\"}}",
               where, path);
  }
  message.role = String(value["role"], where, path + ".role");
  for (const auto& [key, member] : value.items()) {
    const std::string member_path = fmt::format("{}.{}", path, key);
    if (key == "role" || member.is_null()) continue;
    if (key == "content") {
      ReadContent(member, where, member_path, &message);
    } else if (key == "train" || key == "training" || key == "weight") {
      message.counts = Counts(key, member, where, member_path);
      if (message.role != "assistant" && message.counts && key != "weight") {
        ThrowUsage("{}: {}: only what the assistant says can count; ⟦train_on⟧ all takes all",
                   where, member_path);
      }
    } else {
      message.others.emplace_back(key, AsTemplateValue(member, where, member_path));
    }
  }
  if (!message.content && message.others.empty()) {
    ThrowUsage(
        "{}: {}.content: is missing; a message is {{\"role\": \"...\", \"content\": \"...\"}}",
        where, path);
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

// Lists and mappings are often kept as texts of JSON where tables have no columns for them.
Json Structure(const Json& record, const std::string& key, std::string_view where) {
  if (!record[key].is_string()) return record[key];
  const std::string& text = record[key].get_ref<const std::string&>();
  CheckJsonBounds(text, fmt::format("{}: {}", where, key));
  Json value = Json::parse(text, nullptr, false);
  if (value.is_discarded()) {
    ThrowUsage("{}: {}: is a text that is no JSON; write the list itself", where, key);
  }
  return value;
}

// What a conversation has beside its messages.
void AddSurroundings(const Json& record, const RecordFormat& format, std::string_view where,
                     Conversation* chat) {
  for (const char* name : {"tools", "documents"}) {
    const std::string key = format.NameOf(name);
    if (!Has(record, key) || record[key].empty()) continue;
    const Json list = Structure(record, key, where);
    if (!list.is_array()) {
      ThrowUsage("{}: {}: is {}, must be a list", where, key, list.type_name());
    }
    (key == format.NameOf("tools") ? chat->tools : chat->documents) =
        AsTemplateValue(list, where, key);
  }
  const std::string kwargs = format.NameOf("chat_template_kwargs");
  if (Has(record, kwargs) && !record[kwargs].empty()) {
    const Json variables = Structure(record, kwargs, where);
    if (!variables.is_object()) {
      ThrowUsage("{}: {}: is {}, must be an object", where, kwargs, variables.type_name());
    }
    for (const auto& [key, value] : variables.items()) {
      chat->variables.Set(key, AsTemplateValue(value, where, fmt::format("{}.{}", kwargs, key)));
    }
  }
}

// A "system" beside the messages is the first of them.
void AddSystem(const Json& record, const RecordFormat& format, std::string_view where,
               std::vector<ChatMessage>* messages) {
  const std::string system = OptionalString(record, format.NameOf("system"), where);
  if (system.empty()) return;
  if (!messages->empty() && messages->front().role == "system") {
    ThrowUsage("{}: {}: the first message is the system's already; remove one of both", where,
               format.NameOf("system"));
  }
  messages->insert(messages->begin(), ChatMessage{"system", system, {}});
}

void ReadInstruction(const Json& json, const RecordFormat& format, std::string_view where,
                     Record* record) {
  const std::string key = format.NameOf("instruction");
  const std::string answer = format.NameOf("output");
  const std::string instruction = String(Member(json, key, where), where, key);
  const std::string input = OptionalString(json, format.NameOf("input"), where);
  record->completion = String(Member(json, answer, where), where, answer);
  record->text = input.empty() ? fmt::format(fmt::runtime(kAlpaca), instruction)
                               : fmt::format(fmt::runtime(kAlpacaInput), instruction, input);
  std::vector<ChatMessage>& messages = record->chat.messages;
  const std::string history = format.NameOf("history");
  if (Has(json, history)) {
    if (!json[history].is_array()) {
      ThrowUsage("{}: {}: must be a list of pairs of texts", where, history);
    }
    for (const Json& pair : json[history]) {
      if (!pair.is_array() || pair.size() != 2) {
        ThrowUsage("{}: {}: must be a list of pairs of texts", where, history);
      }
      messages.push_back({"user", String(pair[0], where, history), {}});
      messages.push_back({"assistant", String(pair[1], where, history), {}});
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
  for (const auto& [member, in_file] : names) members.push_back(in_file);
  std::sort(members.begin(), members.end());
  members.erase(std::unique(members.begin(), members.end()), members.end());
  return members;
}

RecordFormat RecognizeRecord(std::string_view line, std::string_view where,
                             const RecordNames& names) {
  const Json record = Parse(line, where);
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
                       [&](const std::string& key) { return Has(record, key); })) {
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
  const Json json = Parse(line, where);
  const auto text = [&](const char* member) {
    const std::string key = format.NameOf(member);
    return String(Member(json, key, where), where, key);
  };
  const auto messages = [&](const char* member, std::vector<ChatMessage>* all) {
    const std::string key = format.NameOf(member);
    AddMessages(Member(json, key, where), where, key, all);
  };
  Record record;
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
