#include "text/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/strings.h"
#include "text/jinja/lexer.h"

namespace zeroplan::jinja {

void Text::Append(const Text& other) {
  const size_t before = bytes.size();
  bytes += other.bytes;
  for (const Mark& mark : other.marks) {
    marks.push_back({mark.begin + before, mark.end + before, mark.message});
  }
}

Text Text::Part(size_t begin, size_t end) const {
  Text part;
  part.bytes = bytes.substr(begin, end - begin);
  for (const Mark& mark : marks) {
    const size_t from = std::max(mark.begin, begin);
    const size_t to = std::min(mark.end, end);
    if (from <= to) part.marks.push_back({from - begin, to - begin, mark.message});
  }
  return part;
}

Value::Value(List list) : depth_(1) {
  for (const Value& element : list) depth_ = std::max(depth_, element.depth_ + 1);
  value_ = std::make_shared<const List>(std::move(list));
}

Value::Value(Dict dict) : depth_(1) {
  for (const Member& member : dict) depth_ = std::max(depth_, member.value.depth_ + 1);
  value_ = std::make_shared<const Dict>(std::move(dict));
}

std::optional<int64_t> Value::number() const {
  if (const auto* number = std::get_if<int64_t>(&value_)) return *number;
  if (flag() != nullptr) return *flag() ? 1 : 0;
  return std::nullopt;
}

bool Value::IsTrue() const {
  if (is_undefined() || is_none()) return false;
  if (const std::optional<int64_t> value = number()) return *value != 0;
  if (text() != nullptr) return !text()->bytes.empty();
  if (list() != nullptr) return !list()->empty();
  if (dict() != nullptr) return !dict()->empty();
  return true;
}

std::string_view Value::KindName() const {
  if (is_undefined()) return "undefined";
  if (is_none()) return "none";
  if (flag() != nullptr) return "true or false";
  if (is_plain_number()) return "a number";
  if (text() != nullptr) return "a text";
  if (list() != nullptr) return "a list";
  if (dict() != nullptr) return "a mapping";
  if (space() != nullptr) return "a namespace";
  return "a function";
}

bool operator==(const Value& a, const Value& b) {
  if (a.number() && b.number()) return *a.number() == *b.number();
  if (a.text() != nullptr && b.text() != nullptr) return a.text()->bytes == b.text()->bytes;
  if (a.list() != nullptr && b.list() != nullptr) return *a.list() == *b.list();
  if (a.dict() != nullptr && b.dict() != nullptr) {
    return a.dict()->size() == b.dict()->size() &&
           std::all_of(a.dict()->begin(), a.dict()->end(), [&](const Member& member) {
             const Value* other = Find(*b.dict(), member.key);
             return other != nullptr && *other == member.value;
           });
  }
  if (a.space() != nullptr && b.space() != nullptr) {
    return a.space()->members == b.space()->members;
  }
  if (a.function() != nullptr && b.function() != nullptr) {
    return a.function()->name == b.function()->name;
  }
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

const Value* Find(const Dict& dict, std::string_view key) {
  for (const Member& member : dict) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

void Set(Dict* dict, std::string_view key, Value value) {
  for (Member& member : *dict) {
    if (member.key == key) {
      member.value = std::move(value);
      return;
    }
  }
  dict->push_back({std::string(key), std::move(value)});
}

namespace {

// The bytes behind the first `count` characters.
size_t BytesOf(std::string_view text, int64_t count) {
  size_t at = 0;
  for (; count > 0 && at < text.size(); --count) NextCodePoint(text, &at);
  return at;
}

// Which characters strip("...") takes away.
Text Stripped(const Text& text, int sides, const Text* characters) {
  if (characters == nullptr) {
    const Range range = WithoutSpace(text.bytes, sides);
    return text.Part(range.begin, range.end);
  }
  const auto is_one = [&](size_t begin, size_t end) {
    return characters->bytes.find(text.bytes.substr(begin, end - begin)) != std::string::npos;
  };
  Range range = {0, text.bytes.size()};
  while ((sides & 1) != 0 && range.begin < range.end) {
    size_t at = range.begin;
    NextCodePoint(text.bytes, &at);
    if (!is_one(range.begin, at)) break;
    range.begin = at;
  }
  while ((sides & 2) != 0 && range.begin < range.end) {
    const size_t start = PreviousStart(text.bytes, range.end);
    if (!is_one(start, range.end)) break;
    range.end = start;
  }
  return text.Part(range.begin, range.end);
}

Text Replaced(const Text& text, const Text& from, const Text& to) {
  Text out;
  size_t done = 0;
  for (size_t at = text.bytes.find(from.bytes); at != std::string::npos;
       at = text.bytes.find(from.bytes, done)) {
    out.Append(text.Part(done, at));
    out.Append(to);
    done = at + from.bytes.size();
  }
  out.Append(text.Part(done, text.bytes.size()));
  return out;
}

List Cut(const Text& text, const Text& separator) {
  List parts;
  size_t done = 0;
  for (size_t at = text.bytes.find(separator.bytes); at != std::string::npos;
       at = text.bytes.find(separator.bytes, done)) {
    parts.push_back(text.Part(done, at));
    done = at + separator.bytes.size();
  }
  parts.push_back(text.Part(done, text.bytes.size()));
  return parts;
}

Text InCase(const Text& text, bool upper, int line) {
  Text out = text;
  for (char& c : out.bytes) {
    if (static_cast<unsigned char>(c) >= 0x80) {
      throw TemplateError(line, "upper and lower of what is not ASCII are not supported");
    }
    if (upper && c >= 'a' && c <= 'z') c = static_cast<char>(c - 32);
    if (!upper && c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  }
  return out;
}

void AppendJsonText(std::string_view text, std::string* out) {
  *out += '"';
  for (const char c : text) {
    static constexpr std::string_view kNamed = "\"\\\n\r\t\b\f";
    static constexpr std::string_view kNames = "\"\\nrtbf";
    if (const size_t named = kNamed.find(c); named != std::string_view::npos) {
      *out += '\\';
      *out += kNames[named];
    } else if (static_cast<unsigned char>(c) < 0x20) {
      *out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      *out += c;
    }
  }
  *out += '"';
}

void AppendJson(const Value& value, int line, Text* out) {
  if (value.text() != nullptr) {
    const size_t begin = out->bytes.size();
    AppendJsonText(value.text()->bytes, &out->bytes);
    if (!value.text()->marks.empty()) {
      out->marks.push_back({begin, out->bytes.size(), value.text()->marks[0].message});
    }
  } else if (value.is_none()) {
    out->bytes += "null";
  } else if (value.flag() != nullptr) {
    out->bytes += *value.flag() ? "true" : "false";
  } else if (value.number()) {
    out->bytes += std::to_string(*value.number());
  } else if (value.list() != nullptr) {
    std::string_view before = "[";
    for (const Value& element : *value.list()) {
      out->bytes += before;
      AppendJson(element, line, out);
      before = ", ";
    }
    out->bytes += value.list()->empty() ? "[]" : "]";
  } else if (value.dict() != nullptr) {
    std::string_view before = "{";
    for (const auto& [key, member] : *value.dict()) {
      out->bytes += before;
      AppendJsonText(key, &out->bytes);
      out->bytes += ": ";
      AppendJson(member, line, out);
      before = ", ";
    }
    out->bytes += value.dict()->empty() ? "{}" : "}";
  } else {
    throw TemplateError(line, std::string(value.KindName()) + " as JSON");
  }
}

}  // namespace

Value CallTextMethod(std::string_view name, const Text& text, const std::vector<Value>& arguments,
                     int line) {
  std::vector<const Text*> texts;
  for (const Value& argument : arguments) {
    if (argument.text() == nullptr) {
      throw TemplateError(line, std::string(name) + " with " + std::string(argument.KindName()) +
                                    " is not supported");
    }
    texts.push_back(argument.text());
  }
  const std::string& bytes = text.bytes;
  if (texts.size() <= 1 && (name == "strip" || name == "lstrip" || name == "rstrip")) {
    const int sides = name == "strip" ? 3 : name == "lstrip" ? 1 : 2;
    return Stripped(text, sides, texts.empty() ? nullptr : texts[0]);
  }
  if (texts.empty() && (name == "upper" || name == "lower")) {
    return InCase(text, name == "upper", line);
  }
  if (texts.empty() && name == "capitalize") {
    Text out = InCase(text.Part(0, std::min<size_t>(1, text.bytes.size())), true, line);
    out.Append(InCase(text.Part(out.bytes.size(), text.bytes.size()), false, line));
    return out;
  }
  if (texts.size() == 1) {
    const std::string& other = texts[0]->bytes;
    if (name == "startswith") return bytes.starts_with(other);
    if (name == "endswith") return bytes.ends_with(other);
    if (name == "removeprefix") {
      return text.Part(bytes.starts_with(other) ? other.size() : 0, bytes.size());
    }
    if (name == "removesuffix") {
      return text.Part(0, bytes.size() - (bytes.ends_with(other) ? other.size() : 0));
    }
    if (name == "split" && !other.empty()) return Cut(text, *texts[0]);
    if (name == "find") {
      const size_t at = bytes.find(other);
      if (at == std::string::npos) return int64_t{-1};
      return static_cast<int64_t>(CodePoints(std::string_view(bytes).substr(0, at)));
    }
    if (name == "count" && !other.empty()) {
      return static_cast<int64_t>(Cut(text, *texts[0]).size()) - 1;
    }
  }
  if (texts.size() == 2 && name == "replace" && !texts[0]->bytes.empty()) {
    return Replaced(text, *texts[0], *texts[1]);
  }
  throw TemplateError(line, "text." + std::string(name) + "() is not supported with " +
                                std::to_string(texts.size()) + " arguments");
}

Text AsJson(const Value& value, int line) {
  Text text;
  AppendJson(value, line, &text);
  return text;
}

size_t CodePoints(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

Text CodePointPart(const Text& text, int64_t begin, int64_t end) {
  const size_t from = BytesOf(text.bytes, begin);
  return text.Part(from, from + BytesOf(std::string_view(text.bytes).substr(from), end - begin));
}

}  // namespace zeroplan::jinja
