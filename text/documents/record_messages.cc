#include "text/documents/record_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/strings.h"

namespace zeroplan {
namespace {

bool IsEmpty(const RecordJson& value) {
  return value.is_null() || value.empty() || (value.is_string() && value == "");
}

// Adds a name that is not there.
void AddName(const std::string& name, std::vector<std::string>* names) {
  if (std::find(names->begin(), names->end(), name) == names->end()) names->push_back(name);
}

// A text, or a list of such parts: {"type": "text", "text": "..."}.
void ReadContent(const RecordJson& value, std::string_view where, const std::string& path,
                 ChatMessage* message, std::vector<std::string>* unused) {
  if (!value.is_array()) {
    message->content = TextOf(value, where, path);
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
    for (const auto& [key, member] : value[i].items()) {
      if (key != "type" && key != "text" && !IsEmpty(member)) {
        AddName("messages[].content[]." + key, unused);
      }
    }
    message->parts.push_back(TextOf(value[i]["text"], where, part + ".text"));
    text += message->parts.back();
  }
  message->content = std::move(text);
}

// A member by which trainers say whether a message is to be learned.
struct LossMark {
  const char* name;
  bool leaves_out;  // it says what is not
  bool is_weight;   // 1 is what a message has by itself, whoever says it
};
constexpr std::array kLossMarks = {LossMark{"train", false, false},      // axolotl
                                   LossMark{"training", false, false},   // axolotl, before
                                   LossMark{"trainable", false, false},  //
                                   LossMark{"loss", false, false},       // ms-swift
                                   LossMark{"loss_mask", false, false},  //
                                   LossMark{"loss_scale", false, true},  // ms-swift
                                   LossMark{"weight", false, true},      // OpenAI, Mistral
                                   LossMark{"masked", true, false}};     // torchtune
// Marks that say more than that, or not the same everywhere.
constexpr std::array kOtherMarks = {"train_detail", "mask", "label", "kto_tag"};

const LossMark* MarkOf(const std::string& name) {
  const auto* mark = std::find_if(kLossMarks.begin(), kLossMarks.end(),
                                  [&](const LossMark& known) { return name == known.name; });
  return mark == kLossMarks.end() ? nullptr : mark;
}

// true, false, 1 or 0; nullopt: anything else.
std::optional<bool> YesOrNo(const RecordJson& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number() && (value == 0 || value == 1)) return value == 1;
  return std::nullopt;
}

void SetCounts(bool counts, std::string_view where, const std::string& path, bool is_weight,
               ChatMessage* message) {
  if (message->role != "assistant" && counts && !is_weight) {
    ThrowUsage("{}: {}: only what the assistant says can count; ⟦train_on⟧ all takes all", where,
               path);
  }
  message->counts = counts;
}

void ReadMark(const LossMark& mark, const RecordJson& value, std::string_view where,
              const std::string& path, std::optional<bool>* before, ChatMessage* message) {
  const std::optional<bool> says = YesOrNo(value);
  if (!says) {
    ThrowUsage("{}: {}: is {}, must be {}", where, path, PrintableText(value.dump(), 40),
               mark.is_weight ? "1 or 0: other weights are not supported" : "true or false");
  }
  const bool counts = *says != mark.leaves_out;
  if (before->value_or(counts) != counts) {
    ThrowUsage("{}: {}: says the opposite of another mark of the message; remove one", where, path);
  }
  *before = counts;
  SetCounts(counts, where, path, mark.is_weight, message);
}

// The roles of ShareGPT's "from".
struct FromRole {
  const char* from;
  const char* role;
};
constexpr std::array kFromRoles = {
    FromRole{"human", "user"},         FromRole{"user", "user"},
    FromRole{"gpt", "assistant"},      FromRole{"assistant", "assistant"},
    FromRole{"chatgpt", "assistant"},  FromRole{"bard", "assistant"},
    FromRole{"bing", "assistant"},     FromRole{"model", "assistant"},
    FromRole{"system", "system"},      FromRole{"tool", "tool"},
    FromRole{"observation", "tool"},   FromRole{"function_response", "tool"},
    FromRole{"tool_response", "tool"}, FromRole{"function_call", "assistant"},
    FromRole{"tool_call", "assistant"}};

RecordJson ToolCall(const RecordJson& function) {
  return {{"type", "function"}, {"function", function}};
}

// The text of a call, or of a list of calls, as the assistant's calls of tools.
RecordJson CallsOf(const RecordJson& text, std::string_view where, const std::string& path) {
  const std::optional<RecordJson> given = ParseInRecord(TextOf(text, where, path), where);
  RecordJson calls = RecordJson::array();
  if (given && given->is_object()) calls.push_back(ToolCall(*given));
  if (given && given->is_array()) {
    for (const RecordJson& call : *given) calls.push_back(ToolCall(call));
  }
  const bool sound = std::all_of(calls.begin(), calls.end(), [](const RecordJson& call) {
    return call["function"].is_object() && call["function"].contains("name");
  });
  if (calls.empty() || !sound) {
    ThrowUsage("{}: {}: a function_call is {{\"name\": \"...\", \"arguments\": {{...}}}}", where,
               path);
  }
  return calls;
}

// {"from": "human", "value": "..."} as {"role": "user", "content": "..."}.
RecordJson FromShareGpt(const RecordJson& value, std::string_view where, const std::string& path) {
  const std::string from = TextOf(value["from"], where, path + ".from");
  const auto* role = std::find_if(kFromRoles.begin(), kFromRoles.end(),
                                  [&](const FromRole& known) { return from == known.from; });
  if (role == kFromRoles.end()) {
    ThrowUsage("{}: {}.from: {} is not known; use human, gpt, system, tool or function_call", where,
               path, PrintableText(from, 40));
  }
  const bool is_call = from == "function_call" || from == "tool_call";
  RecordJson message = {{"role", role->role}};
  if (is_call) {
    message["tool_calls"] = CallsOf(MemberOf(value, "value", where), where, path + ".value");
  }
  for (const auto& [key, member] : value.items()) {
    if (member.is_null() || key == "from" || (key == "value" && is_call)) continue;
    message[key == "value" ? "content" : key] = member;
  }
  return message;
}

// Calls and results in OpenAI's earlier form ("function_call", and the role function), and in
// ms-swift's (the roles tool_call and tool_response).
bool IsOfOtherForm(const RecordJson& message) {
  const RecordJson& role = message["role"];
  return HasMember(message, "function_call") || role == "function" || role == "tool_call" ||
         role == "tool_response";
}

// As chat templates know them.
void RenewCalls(std::string_view where, const std::string& path, RecordJson* message) {
  const RecordJson role = (*message)["role"];
  if (role == "tool_call") {
    (*message)["tool_calls"] =
        CallsOf(MemberOf(*message, "content", where), where, path + ".content");
    message->erase("content");
    (*message)["role"] = "assistant";
  }
  if (role == "function" || role == "tool_response") (*message)["role"] = "tool";
  if (!HasMember(*message, "function_call")) return;
  const std::string call = path + ".function_call";
  const RecordJson function = (*message)["function_call"];
  if (!function.is_object() || !function.contains("name")) {
    ThrowUsage("{}: {}: a function_call is {{\"name\": \"...\", \"arguments\": \"...\"}}", where,
               call);
  }
  if (HasMember(*message, "tool_calls")) {
    ThrowUsage("{}: {}: the message has tool_calls, too; remove one of both", where, call);
  }
  message->erase("function_call");
  (*message)["tool_calls"] = RecordJson::array({ToolCall(function)});
}

ChatMessage ReadMessage(const RecordJson& given, std::string_view where, const std::string& path,
                        std::vector<std::string>* unused) {
  if (!given.is_object()) {
    ThrowUsage("{}: {}: is {}, must be {{\"role\": \"...\", \"content\": \"...\"}}", where, path,
               JsonKind(given));
  }
  const bool is_share_gpt = HasMember(given, "from") && !HasMember(given, "role");
  if (!is_share_gpt && !HasMember(given, "role")) {
    ThrowUsage("{}: {}.role: is missing; a message is {{\"role\": \"...\", \"content\": \"...\"}}",
               where, path);
  }
  RecordJson converted;
  if (is_share_gpt) converted = FromShareGpt(given, where, path);
  const bool renews = IsOfOtherForm(is_share_gpt ? converted : given);
  if (renews && !is_share_gpt) converted = given;
  if (renews) RenewCalls(where, path, &converted);
  const RecordJson& value = is_share_gpt || renews ? converted : given;
  ChatMessage message;
  message.role = TextOf(value["role"], where, path + ".role");
  std::optional<bool> counts;
  for (const auto& [key, member] : value.items()) {
    const std::string member_path = fmt::format("{}.{}", path, key);
    if (key == "role" || member.is_null()) continue;
    if (key == "content") {
      ReadContent(member, where, member_path, &message, unused);
    } else if (const LossMark* mark = MarkOf(key)) {
      ReadMark(*mark, member, where, member_path, &counts, &message);
    } else if (std::find(kOtherMarks.begin(), kOtherMarks.end(), key) != kOtherMarks.end()) {
      if (IsEmpty(member)) continue;
      ThrowUsage(
          "{}: {}: parts of a message cannot be left out of what is learned; mark whole messages, "
          "with \"train\": false",
          where, member_path);
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

// Lists and mappings are often kept as texts of JSON where tables have no columns for them.
RecordJson Structure(const RecordJson& record, const std::string& key, std::string_view where) {
  if (!record[key].is_string()) return record[key];
  std::optional<RecordJson> value = ParseInRecord(record[key].get_ref<const std::string&>(), where);
  if (!value) ThrowUsage("{}: {}: is a text that is no JSON; write the list itself", where, key);
  return *std::move(value);
}

constexpr std::array kMedia = {"images", "image", "videos", "video", "audios", "audio"};
// Says whether a record's answer is the wanted one.
constexpr std::array kPreferences = {"label", "kto_tag"};

// As YesOrNo, of what may be a text, as in tables of texts.
std::optional<bool> VerdictOf(const RecordJson& value) {
  if (!value.is_string()) return YesOrNo(value);
  const std::string text = LowerAscii(value.get<std::string>());
  if (text == "true" || text == "1" || text == "1.0") return true;
  if (text == "false" || text == "0" || text == "0.0") return false;
  return std::nullopt;
}

}  // namespace

void AddMessages(const RecordJson& list, std::string_view where, const std::string& path,
                 std::vector<ChatMessage>* messages, std::vector<std::string>* unused) {
  const std::string* text = list.is_string() ? &list.get_ref<const std::string&>() : nullptr;
  const size_t first = text != nullptr ? text->find_first_not_of(" \t\r\n") : std::string::npos;
  if (first != std::string::npos && (*text)[first] == '[') {
    ThrowUsage("{}: {}: is a text that holds the list of messages as JSON; write the list itself",
               where, path);
  }
  if (!list.is_array() || list.empty()) {
    ThrowUsage("{}: {}: must be a list of messages, at least one", where, path);
  }
  for (size_t i = 0; i < list.size(); ++i) {
    messages->push_back(ReadMessage(list[i], where, fmt::format("{}[{}]", path, i), unused));
  }
}

void ApplyLossMask(const RecordJson& record, const RecordFormat& format, std::string_view where,
                   std::vector<ChatMessage>* messages) {
  const std::string key = format.NameOf("loss_mask");
  if (!HasMember(record, key)) return;
  const RecordJson& mask = record[key];
  if (!mask.is_array() || mask.size() != messages->size()) {
    ThrowUsage("{}: {}: must be a list of {} numbers, 1 or 0 for each message", where, key,
               messages->size());
  }
  for (size_t i = 0; i < mask.size(); ++i) {
    const std::string path = fmt::format("{}[{}]", key, i);
    const std::optional<bool> counts = YesOrNo(mask[i]);
    if (!counts) {
      ThrowUsage("{}: {}: is {}, must be 1 or 0", where, path, PrintableText(mask[i].dump(), 40));
    }
    ChatMessage& message = (*messages)[i];
    // What a message itself leaves out stays so.
    SetCounts(*counts && message.counts, where, path, false, &message);
  }
}

void RefuseOpenEnd(const RecordJson& record, std::string_view where,
                   const std::vector<ChatMessage>& messages) {
  if (messages.back().role == "assistant" || !HasMember(record, "chosen")) return;
  ThrowUsage(
      "{}: chosen: the answer to the conversation is there (preference data), and it would not be "
      "learned; write it as the last message",
      where);
}

void RefuseUnsupported(const RecordJson& record, const RecordFormat& format,
                       std::string_view where) {
  // Texts have members of any kind beside them.
  if (format.kind == RecordFormat::Kind::kText) return;
  for (const auto& [key, value] : record.items()) {
    if (IsEmpty(value) || format.Uses(key)) continue;
    const auto is_one_of = [&key = key](const auto& names) {
      return std::find(names.begin(), names.end(), key) != names.end();
    };
    if (is_one_of(kMedia)) {
      ThrowUsage(
          "{}: {}: zeroplan trains on text, and the record has images, sound or video there; "
          "remove the member, and the marks of them in the text",
          where, key);
    }
    if (is_one_of(kPreferences) && VerdictOf(value)) {
      ThrowUsage(
          "{}: {}: says whether the answer is wanted (KTO), and all answers would be learned; keep "
          "the records whose answer is, without that member",
          where, key);
    }
    const LossMark* mark = MarkOf(key);
    if (key == "mask" || key == "loss_mask" ||
        (mark != nullptr && VerdictOf(value) == std::optional(mark->leaves_out))) {
      ThrowUsage(
          "{}: {}: a mark of a whole record is not supported; leave out the record, or mark its "
          "messages with \"train\": false",
          where, key);
    }
  }
}

const std::vector<std::string>& MembersThatMark() {
  static const std::vector<std::string> members = [] {
    std::vector<std::string> all(kMedia.begin(), kMedia.end());
    all.insert(all.end(), kPreferences.begin(), kPreferences.end());
    for (const LossMark& mark : kLossMarks) all.emplace_back(mark.name);
    all.insert(all.end(), {"mask", "chosen"});
    return all;
  }();
  return members;
}

void AddSurroundings(const RecordJson& record, const RecordFormat& format, std::string_view where,
                     Conversation* chat) {
  const auto list_of = [&](const std::string& key) {
    RecordJson list = RecordJson::array();
    if (!HasMember(record, key) || record[key].empty()) return list;
    list = Structure(record, key, where);
    if (!list.is_array()) {
      ThrowUsage("{}: {}: is {}, must be a list", where, key, JsonKind(list));
    }
    return list;
  };
  const std::string tools = format.NameOf("tools");
  RecordJson all = list_of(tools);
  // As OpenAI had it before "tools".
  const std::string functions = format.NameOf("functions");
  for (const RecordJson& function : list_of(functions)) {
    if (HasMember(record, tools)) {
      ThrowUsage("{}: {}: the record has {}, too; remove one of both", where, functions, tools);
    }
    all.push_back(ToolCall(function));
  }
  // An empty list takes the template for tools, too, as in transformers.
  const bool given = HasMember(record, tools) && record[tools].is_array();
  if (given || !all.empty()) chat->tools = AsTemplateValue(all, where, tools);
  const std::string documents = format.NameOf("documents");
  if (const RecordJson list = list_of(documents); !list.empty()) {
    chat->documents = AsTemplateValue(list, where, documents);
  }
  const std::string kwargs = format.NameOf("chat_template_kwargs");
  if (HasMember(record, kwargs) && !record[kwargs].empty()) {
    const RecordJson variables = Structure(record, kwargs, where);
    if (!variables.is_object()) {
      ThrowUsage("{}: {}: is {}, must be an object", where, kwargs, JsonKind(variables));
    }
    for (const auto& [key, value] : variables.items()) {
      chat->variables.Set(key, AsTemplateValue(value, where, fmt::format("{}.{}", kwargs, key)));
    }
  }
}

void AddSystem(const RecordJson& record, const RecordFormat& format, std::string_view where,
               std::vector<ChatMessage>* messages) {
  const std::string key = format.NameOf("system");
  const std::string system = HasMember(record, key) ? TextOf(record[key], where, key) : "";
  if (system.empty()) return;
  if (!messages->empty() && messages->front().role == "system") {
    ThrowUsage("{}: {}: the first message is the system's already; remove one of both", where, key);
  }
  messages->insert(messages->begin(), ChatMessage{"system", system, {}});
}

namespace {

// `value` with the member `key` of it, a text of JSON, read.
jinja::Value WithArguments(const jinja::Value& function, std::string_view where,
                           const std::string& path) {
  const jinja::Dict* given = function.dict();
  const jinja::Value* arguments = given == nullptr ? nullptr : given->Find("arguments");
  if (arguments == nullptr || arguments->text() == nullptr) return function;
  const std::string& text = arguments->text()->bytes;
  RecordJson read = RecordJson::object();
  if (text.find_first_not_of(" \t\r\n") != std::string::npos) {
    const std::optional<RecordJson> parsed = ParseInRecord(text, where);
    if (!parsed || !parsed->is_object()) {
      ThrowUsage("{}: {}.arguments: is a text that is no JSON object; write the object itself",
                 where, path);
    }
    read = *parsed;
  }
  jinja::Dict changed = *given;
  changed.Set("arguments", AsTemplateValue(read, where, path + ".arguments"));
  return changed;
}

}  // namespace

void ReadArguments(std::string_view where, Conversation* chat) {
  for (size_t i = 0; i < chat->messages.size(); ++i) {
    for (auto& [name, value] : chat->messages[i].others) {
      if (name != "tool_calls" || value.list() == nullptr) continue;
      jinja::List calls = *value.list();
      for (size_t k = 0; k < calls.size(); ++k) {
        const std::string path = fmt::format("message {}: tool_calls[{}]", i + 1, k);
        const jinja::Dict* call = calls[k].dict();
        const jinja::Value* function = call == nullptr ? nullptr : call->Find("function");
        if (function == nullptr) {
          calls[k] = WithArguments(calls[k], where, path);
          continue;
        }
        jinja::Dict changed = *call;
        changed.Set("function", WithArguments(*function, where, path + ".function"));
        calls[k] = std::move(changed);
      }
      value = std::move(calls);
    }
  }
}

}  // namespace zeroplan
