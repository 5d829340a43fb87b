#include "text/documents/chat_template.h"

#include <algorithm>
#include <array>
#include <ctime>

#include "core/base/error.h"
#include "core/base/json_section.h"
#include "text/jinja/evaluate.h"
#include "text/jinja/parser.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWayOut =
    "render the conversations with transformers' apply_chat_template, and train on the result as "
    "lines with a \"text\" field";
constexpr std::array kDateFormats = {"%d %b %Y",  "%Y-%m-%d",      "%d %B %Y", "%B %d, %Y",
                                     "%b %d, %Y", "%A, %B %d, %Y", "%Y"};

// Names of special tokens, as transformers has them in special_tokens_map.
constexpr std::array kSpecialNames = {"bos_token", "eos_token", "unk_token", "sep_token",
                                      "pad_token", "cls_token", "mask_token"};

struct Date {
  int year = 2024;
  int month = 7;
  int day = 26;
};

jinja::Dict DateTexts(const Date& date) {
  std::tm day{};
  day.tm_year = date.year - 1900;
  day.tm_mon = date.month - 1;
  day.tm_mday = date.day;
  day.tm_hour = 12;
  timegm(&day);  // finds the day of the week
  jinja::Dict texts;
  for (const char* format : kDateFormats) {
    std::array<char, 64> text{};
    strftime(text.data(), text.size(), format, &day);
    texts.push_back({std::string("strftime_now ") + format, jinja::Value::Of(text.data())});
  }
  return texts;
}

jinja::Value AsValue(const ChatMessage& message, int index) {
  const bool is_assistant = message.role == "assistant";
  const auto said = [&](const std::string& bytes) {
    jinja::Text text = {bytes, {}};
    if (is_assistant) text.marks.push_back({0, bytes.size(), index});
    return text;
  };
  jinja::Dict dict;
  dict.push_back({"role", jinja::Value::Of(message.role)});
  dict.push_back({"content", said(message.content)});
  for (const auto& [name, text] : message.others) {
    jinja::Set(&dict, name, name == "name" ? jinja::Value::Of(text) : jinja::Value(said(text)));
  }
  return dict;
}

// The marks of each message as one span, as far as no other message lies between. Where a message
// says something, marks of nothing do not count.
std::vector<TextSpan> SpansOf(const std::vector<jinja::Mark>& marks, size_t first_counted) {
  std::vector<jinja::Mark> sorted = marks;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.begin < b.begin; });
  std::vector<jinja::Mark> merged;
  for (const jinja::Mark& mark : sorted) {
    if (static_cast<size_t>(mark.message) < first_counted) continue;
    if (merged.empty() || merged.back().message != mark.message) {
      merged.push_back(mark);
    } else if (merged.back().begin == merged.back().end) {
      merged.back() = mark;
    } else if (mark.begin < mark.end) {
      merged.back().end = std::max(merged.back().end, mark.end);
    }
  }
  std::vector<TextSpan> spans;
  for (const jinja::Mark& mark : merged) spans.push_back({mark.begin, mark.end});
  return spans;
}

size_t SpaceEnd(std::string_view text, size_t from) {
  return from + jinja::WithoutSpace(text.substr(from), 1).begin;
}

}  // namespace

struct ChatTemplate::Parts {
  std::string source, text;
  jinja::Block block;
  SpecialTexts specials;
  Date date;
  std::optional<std::string> end_of_turn;
  std::optional<int32_t> end_of_turn_id;

  jinja::Rendering Run(std::span<const ChatMessage> messages, bool generation_prompt) const {
    jinja::Dict variables = DateTexts(date);
    jinja::List list;
    for (const ChatMessage& message : messages) {
      list.push_back(AsValue(message, static_cast<int>(list.size())));
    }
    variables.push_back({"messages", std::move(list)});
    variables.push_back({"add_generation_prompt", generation_prompt});
    for (const char* name : {"tools", "documents"}) variables.push_back({name, jinja::None()});
    for (const char* name : {"raise_exception", "strftime_now"}) {
      variables.push_back({name, jinja::Function{name}});
    }
    for (const auto& [name, special] : specials) {
      jinja::Set(&variables, name, jinja::Value::Of(special));
    }
    return jinja::Render(block, variables);
  }

  void FindEndOfTurn(const Tokenizer& tokenizer);
  std::optional<std::pair<size_t, int32_t>> TokenAt(std::string_view rest,
                                                    const Tokenizer& tokenizer) const;
};

// The token that follows what the assistant says, with nothing but white space between.
void ChatTemplate::Parts::FindEndOfTurn(const Tokenizer& tokenizer) {
  const std::vector<ChatMessage> probe = {{"user", "question", {}}, {"assistant", "answer", {}}};
  jinja::Rendering rendering;
  try {
    rendering = Run(probe, false);
  } catch (const jinja::Refusal&) {
    return;  // not for these roles
  }
  const std::string& all = rendering.text.bytes;
  const std::vector<TextSpan> spans = SpansOf(rendering.text.marks, 0);
  if (spans.empty()) return;
  // Several may follow one another: all of them, of which the last ends the turn.
  const size_t begin = SpaceEnd(all, spans.back().end);
  size_t end = begin;
  while (const std::optional<std::pair<size_t, int32_t>> token =
             TokenAt(std::string_view(all).substr(end), tokenizer)) {
    end += token->first;
    end_of_turn_id = token->second;
  }
  if (end > begin) end_of_turn = all.substr(begin, end - begin);
}

// Bytes and id of the special text that `rest` starts with.
std::optional<std::pair<size_t, int32_t>> ChatTemplate::Parts::TokenAt(
    std::string_view rest, const Tokenizer& tokenizer) const {
  std::optional<std::pair<size_t, int32_t>> found;
  for (const AddedToken& token : tokenizer.added_tokens()) {
    if (rest.starts_with(token.content) && (!found || token.content.size() > found->first)) {
      found = {token.content.size(), token.id};
    }
  }
  if (found) return found;
  for (const auto& [name, special] : specials) {
    if (name != "eos_token" || special.empty() || !rest.starts_with(special)) continue;
    if (const std::optional<int32_t> id = tokenizer.TokenId(special))
      return {{special.size(), *id}};
  }
  return std::nullopt;
}

ChatTemplate ChatTemplate::FromText(std::string_view text, const std::string& source,
                                    const SpecialTexts& specials, const Tokenizer& tokenizer) {
  auto parts = std::make_shared<Parts>();
  parts->source = source;
  parts->text = text;
  parts->specials = specials;
  try {
    parts->block = jinja::Parse(text);
    parts->FindEndOfTurn(tokenizer);
  } catch (const jinja::TemplateError& error) {
    ThrowUsage("{}: chat template, line {}: {}; {}", source, error.line(), error.what(), kWayOut);
  }
  return ChatTemplate(std::move(parts));
}

std::optional<ChatTemplate> ChatTemplate::FromFolder(const fs::path& folder,
                                                     const Tokenizer& tokenizer) {
  std::error_code ignored;
  const fs::path jinja_file = folder / "chat_template.jinja";
  const fs::path config_file = folder / "tokenizer_config.json";
  std::optional<std::string> text;
  std::string source;
  if (fs::exists(jinja_file, ignored)) {
    text = ReadTextFile(jinja_file);
    source = jinja_file.string();
  }
  SpecialTexts specials;
  if (fs::exists(config_file, ignored)) {
    const JsonNode document = ParseJsonText(ReadTextFile(config_file), config_file.string());
    JsonSection section(&document, "", config_file.string());
    for (const char* name : kSpecialNames) {
      const JsonNode* token = section.Raw(name);
      if (token != nullptr && token->is_object()) token = token->Find("content");
      if (token != nullptr && token->is_string()) {
        specials.emplace_back(name, token->scalar.text());
      }
    }
    const JsonNode* node = section.Raw("chat_template");
    if (!text && node != nullptr && !node->is_null()) {
      source = config_file.string();
      if (node->is_string()) text = node->scalar.text();
      if (node->is_array()) {
        for (const JsonNode& named : node->elements) {
          const JsonNode* name = named.Find("name");
          const JsonNode* content = named.Find("template");
          if (name != nullptr && name->is_string() && name->scalar.text() == "default" &&
              content != nullptr && content->is_string()) {
            text = content->scalar.text();
          }
        }
      }
      if (!text) section.FailValue("chat_template", "a text, or a list with one named default");
    }
  }
  if (!text) return std::nullopt;
  return FromText(*text, source, specials, tokenizer);
}

ChatTemplate::Rendered ChatTemplate::Render(std::span<const ChatMessage> messages,
                                            bool generation_prompt, std::string_view where,
                                            size_t first_counted) const {
  jinja::Rendering rendering;
  try {
    rendering = parts_->Run(messages, generation_prompt);
  } catch (const jinja::Refusal& refusal) {
    ThrowUsage("{}: the chat template of {} refuses this conversation: {}", where, source(),
               refusal.what());
  } catch (const jinja::TemplateError& error) {
    ThrowUsage(
        "{}: the chat template of {} cannot be rendered for this conversation: line {}: {}; {}",
        where, source(), error.line(), error.what(), kWayOut);
  }
  Rendered out;
  out.text = std::move(rendering.text.bytes);
  if (!rendering.generations.empty()) {
    const auto counted = std::count_if(
        messages.begin(),
        messages.begin() + static_cast<ptrdiff_t>(std::min(first_counted, messages.size())),
        [](const ChatMessage& m) { return m.role == "assistant"; });
    for (size_t i = static_cast<size_t>(counted); i < rendering.generations.size(); ++i) {
      out.generated.push_back({rendering.generations[i].first, rendering.generations[i].second});
    }
    return out;
  }
  out.generated = SpansOf(rendering.text.marks, first_counted);
  if (!end_of_turn()) return out;
  for (size_t i = 0; i < out.generated.size(); ++i) {
    TextSpan& span = out.generated[i];
    const size_t next = i + 1 < out.generated.size() ? out.generated[i + 1].begin : out.text.size();
    const size_t end = SpaceEnd(out.text, span.end);
    if (end + end_of_turn()->size() <= next &&
        std::string_view(out.text).substr(end).starts_with(*end_of_turn())) {
      span.end = end + end_of_turn()->size();
    }
  }
  return out;
}

const std::optional<std::string>& ChatTemplate::end_of_turn() const { return parts_->end_of_turn; }

std::optional<int32_t> ChatTemplate::end_of_turn_id() const { return parts_->end_of_turn_id; }

bool ChatTemplate::prints_date() const {
  return parts_->text.find("strftime_now") != std::string::npos;
}

void ChatTemplate::SetDate(int year, int month, int day) {
  auto parts = std::make_shared<Parts>(*parts_);
  parts->date = {year, month, day};
  parts_ = std::move(parts);
}

Sha256Digest ChatTemplate::digest() const {
  const Date& date = parts_->date;
  std::string all = fmt::format("{}:{} {} {} {} {}", parts_->text.size(), parts_->text, date.year,
                                date.month, date.day, parts_->end_of_turn.value_or(""));
  for (const auto& [name, special] : parts_->specials) {
    all += fmt::format(" {} {}:{}", name, special.size(), special);
  }
  return Sha256(all);
}

const std::string& ChatTemplate::source() const { return parts_->source; }

}  // namespace zeroplan
