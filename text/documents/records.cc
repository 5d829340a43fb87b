#include "text/documents/records.h"

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/base/strings.h"

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;
using Kind = RecordFormat::Kind;

constexpr const char* kForms =
    "a record is {\"text\": \"...\"}, {\"prompt\": \"...\", \"completion\": \"...\"} or "
    "{\"messages\": [{\"role\": \"user\", \"content\": \"...\"}, ...]}; --text-field names another "
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
    const std::string member_path = path + "." + key;
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
      ThrowUsage("{}: has no member {}, which --text-field names", where, text_field);
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
        "{}: has {}{}{}: which is meant? --text-field text takes the text; else remove all but one",
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

}  // namespace zeroplan
