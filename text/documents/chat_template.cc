#include "text/documents/chat_template.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <ctime>
#include <set>

#include "core/base/error.h"
#include "text/documents/chat_turns.h"
#include "text/jinja/evaluate.h"
#include "text/jinja/lexer.h"
#include "text/jinja/parser.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWayOut =
    "render the conversations with transformers' apply_chat_template, and train on the result as "
    "lines with a \"text\" field";

struct Date {
  int year = 2024;
  int month = 7;
  int day = 26;
};

std::tm NoonOf(const Date& date) {
  std::tm day{};
  day.tm_year = date.year - 1900;
  day.tm_mon = date.month - 1;
  day.tm_mday = date.day;
  day.tm_hour = 12;
  timegm(&day);  // finds the day of the week
  return day;
}

// `value` with all its texts marked as what message `index` says.
jinja::Value Marked(const jinja::Value& value, int index, bool is_name = false) {
  if (const jinja::Text* text = value.text()) {
    return jinja::Text{text->bytes, {{0, text->bytes.size(), is_name ? NameMark(index) : index}}};
  }
  if (const jinja::List* list = value.list()) {
    jinja::List marked;
    for (const jinja::Value& element : *list) marked.push_back(Marked(element, index));
    return marked;
  }
  if (const jinja::Dict* dict = value.dict()) {
    jinja::Dict marked;
    for (const jinja::Member& member : *dict) {
      const bool names = member.key.text() != nullptr && member.key.text()->bytes == "name";
      marked.push_back({member.key, Marked(member.value, index, names), nullptr});
    }
    return marked;
  }
  return value;
}

// `takes_parts`: the template takes contents that are lists of texts.
jinja::Value AsValue(const ChatMessage& message, int index, bool takes_parts) {
  jinja::Dict dict;
  dict.push_back({"role", jinja::Value::Of(message.role)});
  if (takes_parts && !message.parts.empty()) {
    jinja::List parts;
    for (const std::string& text : message.parts) {
      parts.push_back(jinja::Dict{{"type", jinja::Value::Of("text")},
                                  {"text", Marked(jinja::Value::Of(text), index)}});
    }
    dict.push_back({"content", std::move(parts)});
  } else if (message.content) {
    dict.push_back({"content", Marked(jinja::Value::Of(*message.content), index)});
  }
  for (const auto& [name, value] : message.others) {
    jinja::Set(&dict, name, name == "name" ? value : Marked(value, index));
  }
  // As transformers has it: reasoning under any of its names is there under the two that templates
  // ask for.
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const jinja::Value* reasoning = jinja::Find(dict, name);
    if (reasoning == nullptr) continue;
    const jinja::Value found = *reasoning;
    if (jinja::Find(dict, "thinking") == nullptr) jinja::Set(&dict, "thinking", found);
    jinja::Set(&dict, "reasoning_content", found);
    break;
  }
  return dict;
}

size_t SpaceEnd(std::string_view text, size_t from) {
  return from + jinja::WithoutSpace(text.substr(from), 1).begin;
}

// How many bytes both begin with, whole characters.
size_t CommonStart(std::string_view a, std::string_view b) {
  size_t n =
      static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  while (n > 0 && n < a.size() && (static_cast<unsigned char>(a[n]) & 0xC0) == 0x80) --n;
  return n;
}

size_t CommonEnd(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend()).first -
                             a.rbegin());
}

bool Contains(const std::vector<std::string>& all, std::string_view one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

}  // namespace

// How the assistant's turns begin and end, as a short conversation shows it.
struct Turns {
  // What stands between what the user says and what the assistant does ("<|im_end|>\n
  // <|im_start|>assistant\n"); nullopt: the template refuses a question alone.
  std::optional<std::string> opening;
  std::string prompt;                // the end of it that is the generation prompt
  std::vector<std::string> openers;  // special tokens that a turn begins with
  std::vector<std::string> closers;  // that the assistant's turn ends with
  std::optional<std::string> end_of_turn;
  std::optional<int32_t> end_of_turn_id;
  bool takes_parts = false;  // contents may be lists of texts
  bool prints_arguments_as_given = false;
};

struct ChatTemplate::Parts {
  std::string source, text;
  jinja::Block block;
  SpecialTexts specials;
  Date date;
  SpecialTokens tokens;
  Turns turns;
  std::set<std::string, std::less<>> names;  // in its code

  jinja::Rendering Run(const Conversation& conversation, size_t messages,
                       bool generation_prompt) const {
    jinja::Dict variables;
    jinja::List list;
    for (size_t i = 0; i < messages; ++i) {
      list.push_back(AsValue(conversation.messages[i], static_cast<int>(i), turns.takes_parts));
    }
    variables.push_back({"messages", std::move(list)});
    variables.push_back({"add_generation_prompt", generation_prompt});
    variables.push_back({"tools", conversation.tools});
    variables.push_back({"documents", conversation.documents});
    for (const char* name : {"raise_exception", "strftime_now"}) {
      variables.push_back({name, jinja::Function{name}});
    }
    for (const auto& [name, special] : specials) {
      jinja::Set(&variables, name, jinja::Value::Of(special));
    }
    for (const jinja::Member& member : conversation.variables) {
      variables.SetKey(member.key, member.value);
    }
    return jinja::Render(block, variables, NoonOf(date));
  }

  // nullopt: the template refuses it.
  std::optional<jinja::Rendering> Try(const Conversation& conversation, size_t messages,
                                      bool generation_prompt) const {
    try {
      return Run(conversation, messages, generation_prompt);
    } catch (const jinja::LimitReached&) {
      throw;  // another try would cost as much
    } catch (const jinja::TemplateError&) {
      return std::nullopt;
    }
  }

  void FindTurns(const std::vector<std::string>& stop_tokens);
  std::vector<SpecialTokens::Found> Closing(std::string_view all, size_t from, size_t to,
                                            const std::vector<std::string>* only) const;
  std::optional<std::string> OpeningOf(const Conversation& conversation, size_t message,
                                       const Said* before, size_t* budget) const;
  size_t TurnBegin(std::string_view all, size_t from, size_t begin,
                   const std::optional<std::string>& opening) const;
  size_t TurnEnd(std::string_view all, size_t end, size_t limit, bool calls) const;
};

// The special tokens that follow `from` with nothing but white space between, up to one that a turn
// begins with; where `only` is given, of these.
std::vector<SpecialTokens::Found> ChatTemplate::Parts::Closing(
    std::string_view all, size_t from, size_t to, const std::vector<std::string>* only) const {
  std::vector<SpecialTokens::Found> found;
  for (size_t at = SpaceEnd(all, from); at < to; at = SpaceEnd(all, found.back().end())) {
    std::optional<SpecialTokens::Found> token = tokens.At(all, at);
    if (!token || token->end() > to) break;
    if (only != nullptr ? !Contains(*only, token->text) : Contains(turns.openers, token->text)) {
      break;
    }
    found.push_back(*std::move(token));
  }
  return found;
}

void ChatTemplate::Parts::FindTurns(const std::vector<std::string>& stop_tokens) {
  const auto says = [](const char* role, const char* content) {
    return ChatMessage{role, content, {}};
  };
  const Conversation probe = {{says("user", "question"), says("assistant", "answer"),
                               says("user", "another"), says("assistant", "reply")}};
  // Whether a list of one text is printed as that text, or, for some templates, only then.
  Conversation listed = {{says("user", "question")}};
  listed.messages[0].parts = {"question"};
  turns.takes_parts = true;
  const auto in_parts = Try(listed, 1, false);
  const auto question = Try(probe, 1, false);
  turns.takes_parts = in_parts && in_parts->text.bytes.find("question") != std::string::npos &&
                      (!question || question->text.bytes.find("question") == std::string::npos ||
                       in_parts->text.bytes == question->text.bytes);
  constexpr std::string_view kArguments = R"({"name": "value"})";
  Conversation calling = {{says("user", "question"), says("assistant", "")}};
  calling.messages[1].others.emplace_back(
      "tool_calls", jinja::List{jinja::Dict{
                        {"type", jinja::Value::Of("function")},
                        {"function", jinja::Dict{{"name", jinja::Value::Of("tool")},
                                                 {"arguments", jinja::Value::Of(kArguments)}}}}});
  const auto called = Try(calling, 2, false);
  turns.prints_arguments_as_given =
      called && called->text.bytes.find(kArguments) != std::string::npos;
  const auto asked = Try(probe, 1, true);
  const auto first = Try(probe, 2, false);
  const auto second = Try(probe, 4, false);
  if (asked) {
    const std::vector<Said> said = WhatIsSaid(asked->text, turns.openers);
    if (!said.empty()) turns.opening = asked->text.bytes.substr(said.back().end);
    if (question) {
      turns.prompt = asked->text.bytes.substr(CommonStart(asked->text.bytes, question->text.bytes));
    }
  }
  const auto add_opener = [&](const std::optional<SpecialTokens::Found>& token) {
    if (token && !Contains(turns.openers, token->text)) turns.openers.push_back(token->text);
  };
  const auto close = [&](std::string_view all, size_t from, size_t to) {
    std::string closing;
    for (const SpecialTokens::Found& token : Closing(all, from, to, nullptr)) {
      closing += token.text;
      if (!Contains(turns.closers, token.text)) turns.closers.push_back(token.text);
      turns.end_of_turn_id = token.id;
      turns.end_of_turn = closing;
    }
  };
  const std::vector<Said> said =
      second ? WhatIsSaid(second->text, turns.openers) : std::vector<Said>();
  if (said.size() == 4) {
    // A turn begins with the special token before a role's name; where none is followed by a word,
    // with the generation prompt, and with what stands before each of the user's messages.
    const std::string_view all = second->text.bytes;
    const std::string_view before = all.substr(0, said[0].begin);
    const std::string_view between = all.substr(said[1].end, said[2].begin - said[1].end);
    for (size_t at = 0; at < between.size(); ++at) {
      const std::optional<SpecialTokens::Found> token = tokens.At(between, at);
      const bool named = token && token->end() < between.size() &&
                         std::isalpha(static_cast<unsigned char>(between[token->end()])) != 0;
      if (named && before.find(token->text) != std::string_view::npos) add_opener(token);
      if (token) at = token->end() - 1;
    }
    if (turns.openers.empty()) {
      add_opener(tokens.Next(turns.prompt, 0, turns.prompt.size()));
      const size_t same = CommonEnd(before, between);
      const std::string_view header = between.substr(between.size() - same);
      add_opener(tokens.Next(header, 0, header.size()));
    }
    close(all, said[1].end, said[2].begin);
    close(all, said[3].end, all.size());
  } else if (first) {
    add_opener(tokens.Next(turns.prompt, 0, turns.prompt.size()));
    const std::vector<Said> one = WhatIsSaid(first->text, turns.openers);
    if (!one.empty()) close(first->text.bytes, one.back().end, first->text.bytes.size());
  }
  for (const std::string& token : stop_tokens) {
    if (!Contains(turns.closers, token)) turns.closers.push_back(token);
  }
}

// What stands between message `message` and the one before it, which says `before`, if the
// assistant is to go on there. `budget`: bytes that may be printed to find out.
std::optional<std::string> ChatTemplate::Parts::OpeningOf(const Conversation& conversation,
                                                          size_t message, const Said* before,
                                                          size_t* budget) const {
  if (*budget == 0) return std::nullopt;
  const std::optional<jinja::Rendering> asked = Try(conversation, message, true);
  if (!asked) return std::nullopt;
  *budget -= std::min(*budget, asked->text.bytes.size());
  size_t end = 0;
  if (before != nullptr) {
    const std::vector<Said> said = WhatIsSaid(asked->text, turns.openers);
    if (said.empty()) return std::nullopt;
    end = said.back().end;
  }
  return asked->text.bytes.substr(end);
}

// Where the assistant's turn begins of which it says something from `begin` on; what is said before
// ends at `from`.
size_t ChatTemplate::Parts::TurnBegin(std::string_view all, size_t from, size_t begin,
                                      const std::optional<std::string>& opening) const {
  const std::string_view between = all.substr(from, begin - from);
  // Whether a turn may begin at `at`: no header of a turn follows, and nothing else that stands in
  // the opening. Where the template has no generation prompt, no words do: they are its header.
  const auto trusted = [&](size_t at) {
    bool words = false;
    for (size_t next = SpaceEnd(all, at); next < begin; next = SpaceEnd(all, next)) {
      const std::optional<SpecialTokens::Found> token = tokens.At(all, next);
      if (token &&
          (Contains(turns.openers, token->text) ||
           (at < from + opening->size() && opening->find(token->text) != std::string::npos))) {
        return false;
      }
      words = words || !token;
      next = token ? token->end() : next + 1;
    }
    return !words || !turns.prompt.empty();
  };
  if (opening) {
    // What the message says may begin with the end of the prompt, as a thought with its tag.
    if (all.substr(from).starts_with(*opening) &&
        trusted(std::min(begin, from + opening->size()))) {
      return from + opening->size();
    }
    // The rest of a prompt may be left out in a turn, as that of a thought.
    const size_t same = CommonStart(between, *opening);
    if ((same > 0 || opening->empty()) && trusted(from + same)) return from + same;
  }
  const size_t prompt = turns.prompt.empty() ? std::string_view::npos : between.rfind(turns.prompt);
  return prompt == std::string_view::npos ? begin : from + prompt + turns.prompt.size();
}

// Where the assistant's turn ends of which it says something until `end`, if the next message says
// something from `limit` on. `calls`: the turn calls tools, of which the template prints more than
// the message says.
size_t ChatTemplate::Parts::TurnEnd(std::string_view all, size_t end, size_t limit,
                                    bool calls) const {
  std::optional<SpecialTokens::Found> first;
  for (size_t at = end; at < limit; ++at) {
    first = tokens.At(all, at);
    if (first && (Contains(turns.closers, first->text) || Contains(turns.openers, first->text))) {
      break;
    }
    if (first) at = first->end() - 1;
    first.reset();
  }
  if (first && Contains(turns.closers, first->text)) {
    const std::vector<SpecialTokens::Found> closing =
        Closing(all, first->begin, limit, &turns.closers);
    return closing.empty() ? first->end() : closing.back().end();
  }
  if (!calls) return end;
  // Nothing ends the turn: of a call of tools it is what is printed up to the next turn.
  const std::string_view rest = all.substr(end, (first ? first->begin : limit) - end);
  return end + jinja::WithoutSpace(rest, 2).end;
}

ChatTemplate ChatTemplate::FromText(std::string_view text, const std::string& source,
                                    const SpecialTexts& specials, const Tokenizer& tokenizer,
                                    const std::vector<std::string>& stop_tokens) {
  auto parts = std::make_shared<Parts>(Parts{.source = source,
                                             .text = std::string(text),
                                             .block = {},
                                             .specials = specials,
                                             .date = {},
                                             .tokens = SpecialTokens(tokenizer, specials),
                                             .turns = {},
                                             .names = {}});
  try {
    parts->block = jinja::Parse(text);
    for (const jinja::Part& part : jinja::Cut(text)) {
      for (const jinja::Token& token : part.tokens) {
        if (token.kind == jinja::Token::Kind::kName || token.kind == jinja::Token::Kind::kText) {
          parts->names.insert(token.text);
        }
      }
    }
    parts->FindTurns(stop_tokens);
  } catch (const jinja::TemplateError& error) {
    ThrowUsage("{}: chat template, line {}: {}; {}", source, error.line(), error.what(), kWayOut);
  }
  return ChatTemplate(std::move(parts));
}

const ChatTemplate::Parts& ChatTemplate::For(const Conversation& conversation,
                                             std::string_view where) const {
  if (conversation.tools.is_none()) {
    if (!only_tools_) return *parts_;
    ThrowUsage(
        "{}: has no tools, and {} has a template for conversations with tools alone (tool_use); "
        "add one named default",
        where, source());
  }
  if (!tool_error_.empty()) ThrowUsage("{}: has tools: {}", where, tool_error_);
  return tool_parts_ ? *tool_parts_ : *parts_;
}

ChatTemplate::Rendered ChatTemplate::Render(const Conversation& conversation,
                                            bool generation_prompt, std::string_view where) const {
  const std::vector<ChatMessage>& messages = conversation.messages;
  const Parts& parts = For(conversation, where);
  jinja::Rendering rendering;
  try {
    rendering = parts.Run(conversation, messages.size(), generation_prompt);
  } catch (const jinja::Refusal& refusal) {
    ThrowUsage("{}: the chat template of {} refuses this conversation: {}", where, parts.source,
               refusal.what());
  } catch (const jinja::TemplateError& error) {
    ThrowUsage(
        "{}: the chat template of {} cannot be rendered for this conversation: line {}: {}; {}",
        where, parts.source, error.line(), error.what(), kWayOut);
  }
  const std::vector<Said> said = WhatIsSaid(rendering.text, parts.turns.openers);
  Rendered out;
  std::vector<bool> printed(messages.size());
  for (const jinja::Mark& mark : rendering.text.marks) {
    if (mark.message >= 0 && mark.begin < mark.end) {
      printed[static_cast<size_t>(mark.message)] = true;
    }
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::optional<std::string>& content = messages[i].content;
    if (!printed[i] && content && SpaceEnd(*content, 0) < content->size()) {
      out.unprinted.push_back(i);
    }
  }
  out.text = std::move(rendering.text.bytes);
  const auto is_counted = [&](size_t message) {
    return messages[message].role == "assistant" && message >= conversation.first_counted &&
           messages[message].counts;
  };
  if (!rendering.generations.empty()) {
    // Each is what the message says that prints something in it; of one that says nothing, the
    // next that is the assistant's.
    size_t message = 0;
    size_t next = 0;
    for (const auto& [begin, end] : rendering.generations) {
      while (next < said.size() && said[next].end < begin) ++next;
      if (next < said.size() && said[next].begin <= end &&
          messages[static_cast<size_t>(said[next].message)].role == "assistant") {
        message = static_cast<size_t>(said[next].message);
      }
      while (message < messages.size() && messages[message].role != "assistant") ++message;
      if (message == messages.size() || is_counted(message)) out.generated.push_back({begin, end});
      if (message < messages.size()) ++message;
    }
    return out;
  }
  // What may be printed again to find where turns begin: a small multiple of the text.
  size_t budget = (out.text.size() + 4096) * 16;
  for (size_t i = 0; i < said.size(); ++i) {
    const auto message = static_cast<size_t>(said[i].message);
    if (!is_counted(message)) continue;
    const Said* before = i > 0 ? &said[i - 1] : nullptr;
    const size_t from = before != nullptr ? before->end : 0;
    std::optional<std::string> opening;
    const bool plain = conversation.variables.empty() && before != nullptr &&
                       messages[static_cast<size_t>(before->message)].role == "user";
    if (plain && parts.turns.opening &&
        std::string_view(out.text).substr(from).starts_with(*parts.turns.opening)) {
      opening = parts.turns.opening;
    } else {
      opening = parts.OpeningOf(conversation, message, before, &budget);
    }
    const size_t limit = i + 1 < said.size() ? said[i + 1].begin : out.text.size();
    TextSpan span;
    span.begin = parts.TurnBegin(out.text, from, said[i].begin, opening);
    const auto& others = messages[message].others;
    const bool calls = std::any_of(others.begin(), others.end(),
                                   [](const auto& other) { return other.first == "tool_calls"; });
    span.end = parts.TurnEnd(out.text, said[i].end, limit, calls);
    if (!out.generated.empty() && span.begin < out.generated.back().end) {
      span.begin = out.generated.back().end;
    }
    if (span.begin < span.end) out.generated.push_back(span);
  }
  return out;
}

bool ChatTemplate::AsksFor(std::string_view name, const Conversation& conversation) const {
  const auto& names = For(conversation, "").names;
  // As AsValue has it, reasoning is there under the names that templates ask for.
  if (name == "thinking" || name == "reasoning" || name == "reasoning_content") {
    return names.contains("thinking") || names.contains("reasoning_content") ||
           names.contains(name);
  }
  return names.contains(name);
}

bool ChatTemplate::PrintsArgumentsAsGiven(const Conversation& conversation,
                                          std::string_view where) const {
  return For(conversation, where).turns.prints_arguments_as_given;
}

const std::optional<std::string>& ChatTemplate::end_of_turn() const {
  return parts_->turns.end_of_turn;
}

std::optional<int32_t> ChatTemplate::end_of_turn_id() const { return parts_->turns.end_of_turn_id; }

bool ChatTemplate::prints_date() const {
  const auto does = [](const Parts& parts) {
    return parts.text.find("strftime_now") != std::string::npos;
  };
  return does(*parts_) || (tool_parts_ && does(*tool_parts_));
}

void ChatTemplate::SetDate(int year, int month, int day) {
  for (std::shared_ptr<const Parts>* each : {&parts_, &tool_parts_}) {
    if (!*each) continue;
    auto parts = std::make_shared<Parts>(**each);
    parts->date = {year, month, day};
    *each = std::move(parts);
  }
}

Sha256Digest ChatTemplate::digest() const {
  const Date& date = parts_->date;
  std::string all = fmt::format("{}:{} {} {} {} {}", parts_->text.size(), parts_->text, date.year,
                                date.month, date.day, fmt::join(parts_->turns.closers, ""));
  if (tool_parts_) {
    all += fmt::format(" tool_use {}:{} {}", tool_parts_->text.size(), tool_parts_->text,
                       fmt::join(tool_parts_->turns.closers, ""));
  }
  if (only_tools_ || !tool_error_.empty()) all += fmt::format(" {} {}", only_tools_, tool_error_);
  for (const auto& [name, special] : parts_->specials) {
    all += fmt::format(" {} {}:{}", name, special.size(), special);
  }
  return Sha256(all);
}

const std::string& ChatTemplate::source() const { return parts_->source; }

}  // namespace zeroplan
