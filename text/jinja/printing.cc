// Values as text: what {{ }} prints, and JSON.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/base/strings.h"
#include "text/jinja/evaluate.h"

namespace zeroplan::jinja {
namespace {

void AppendRepresented(const Text& text, Output* out) {
  if (text.safe) Fail("a safe text in what is printed as a list or a mapping is not supported");
  const std::string& bytes = text.bytes;
  const bool doubled =
      bytes.find('\'') != std::string::npos && bytes.find('"') == std::string::npos;
  const char quote = doubled ? '"' : '\'';
  std::string spelled(1, quote);
  for (size_t at = 0; at < bytes.size();) {
    const size_t begin = at;
    const char32_t c = NextCodePoint(bytes, &at);
    static constexpr std::string_view kNamed = "\\\n\r\t", kNames = "\\nrt";
    const size_t named = c < 0x80 ? kNamed.find(static_cast<char>(c)) : std::string_view::npos;
    if (named != std::string_view::npos) {
      spelled += '\\';
      spelled += kNames[named];
    } else if (c == static_cast<char32_t>(quote)) {
      spelled += '\\';
      spelled += quote;
    } else if (!IsPrintable(c)) {
      const auto code = static_cast<unsigned>(c);
      spelled += c < 0x100     ? fmt::format("\\x{:02x}", code)
                 : c < 0x10000 ? fmt::format("\\u{:04x}", code)
                               : fmt::format("\\U{:08x}", code);
    } else {
      spelled.append(bytes, begin, at - begin);
    }
  }
  const size_t begin = out->size();
  out->Append(spelled + quote);
  out->Mark(begin, text);
}

void AppendRepresented(const Value& value, Output* out);

// `sequence` between `open` and `close`.
void AppendElements(const List& list, std::string_view open, std::string_view close, Output* out) {
  std::string_view before = open;
  for (const Value& element : list) {
    out->Append(before);
    AppendRepresented(element, out);
    before = ", ";
  }
  if (list.empty()) out->Append(open);
  out->Append(close);
}

void AppendRepresented(const Value& value, Output* out) {
  Step();
  if (value.text() != nullptr) return AppendRepresented(*value.text(), out);
  if (value.dict() != nullptr) {
    std::string_view before = "{";
    for (const auto& [key, member] : *value.dict()) {
      out->Append(before);
      AppendRepresented(key, out);
      out->Append(": ");
      AppendRepresented(member, out);
      before = ", ";
    }
    return out->Append(value.dict()->empty() ? "{}" : "}");
  }
  if (const Sequence* sequence = value.sequence()) {
    switch (sequence->kind) {
      case Sequence::Kind::kList:
        return AppendElements(sequence->elements, "[", "]", out);
      case Sequence::Kind::kTuple:
        return AppendElements(sequence->elements, "(", sequence->elements.size() == 1 ? ",)" : ")",
                              out);
      case Sequence::Kind::kKeys:
        return AppendElements(sequence->elements, "dict_keys([", "])", out);
      case Sequence::Kind::kValues:
        return AppendElements(sequence->elements, "dict_values([", "])", out);
      case Sequence::Kind::kItems:
        return AppendElements(sequence->elements, "dict_items([", "])", out);
      case Sequence::Kind::kRange:
        if (!sequence->printed.empty()) return out->Append(sequence->printed);
        break;
      case Sequence::Kind::kIterator:
        break;
    }
  }
  if (value.is_undefined()) return out->Append("Undefined");
  if (value.is_none()) return out->Append("None");
  if (value.flag() != nullptr) return out->Append(*value.flag() ? "True" : "False");
  if (value.real() != nullptr) return out->Append(RealText(*value.real()));
  if (value.is_number()) return out->Append(IntegerText(value));
  Fail(std::string(value.KindName()) + " is printed");
}

void AppendJsonText(const Text& text, bool ascii, Output* out) {
  std::string spelled = "\"";
  const std::string& bytes = text.bytes;
  for (size_t at = 0; at < bytes.size();) {
    const size_t begin = at;
    const char32_t c = NextCodePoint(bytes, &at);
    static constexpr std::string_view kNamed = "\"\\\n\r\t\b\f", kNames = "\"\\nrtbf";
    const size_t named = c < 0x80 ? kNamed.find(static_cast<char>(c)) : std::string_view::npos;
    const auto code = static_cast<unsigned>(c);
    if (named != std::string_view::npos) {
      spelled += '\\';
      spelled += kNames[named];
    } else if (c >= 0x10000 && ascii) {
      spelled += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((code - 0x10000) >> 10),
                             0xDC00 + (code & 0x3FF));
    } else if (c < 0x20 || (c >= 0x7F && ascii)) {
      spelled += fmt::format("\\u{:04x}", code);
    } else {
      spelled.append(bytes, begin, at - begin);
    }
  }
  const size_t begin = out->size();
  out->Append(spelled + '"');
  out->Mark(begin, text);
}

// The text of what JSON writes without quotes.
std::optional<std::string> JsonScalar(const Value& value) {
  if (value.is_none()) return "null";
  if (value.flag() != nullptr) return *value.flag() ? "true" : "false";
  if (value.real() != nullptr) {
    if (std::isnan(*value.real())) return "NaN";
    if (std::isinf(*value.real())) return *value.real() < 0 ? "-Infinity" : "Infinity";
    return RealText(*value.real());
  }
  if (value.is_number()) return IntegerText(value);
  return std::nullopt;
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Output* out) : style_(style), out_(out) {}

  void Write(const Value& value) {
    Step();
    if (value.text() != nullptr) return AppendJsonText(*value.text(), style_.ascii, out_);
    if (const std::optional<std::string> scalar = JsonScalar(value)) return out_->Append(*scalar);
    if (value.list() != nullptr) return WriteList(*value.list());
    if (value.dict() != nullptr) return WriteDict(*value.dict());
    Fail(std::string(value.KindName()) + " as JSON");
  }

 private:
  void WriteList(const List& list) {
    if (list.empty()) return out_->Append("[]");
    ++level_;
    std::string_view before = "[";
    for (const Value& element : list) {
      out_->Append(before);
      StartLine();
      Write(element);
      before = style_.item_separator;
    }
    --level_;
    StartLine();
    out_->Append("]");
  }

  void WriteDict(const Dict& dict) {
    if (dict.empty()) return out_->Append("{}");
    std::vector<const Member*> members;
    for (const Member& member : dict) members.push_back(&member);
    if (style_.sorted) {
      std::stable_sort(members.begin(), members.end(), [](const Member* a, const Member* b) {
        return Compare(a->key, b->key) == -1;
      });
    }
    ++level_;
    std::string_view before = "{";
    for (const Member* member : members) {
      out_->Append(before);
      StartLine();
      WriteKey(member->key);
      out_->Append(style_.key_separator);
      Write(member->value);
      before = style_.item_separator;
    }
    --level_;
    StartLine();
    out_->Append("}");
  }

  void WriteKey(const Value& key) {
    if (key.text() != nullptr) return AppendJsonText(*key.text(), style_.ascii, out_);
    const std::optional<std::string> scalar = JsonScalar(key);
    if (!scalar) Fail(std::string(key.KindName()) + " as a key of JSON");
    out_->Append("\"" + *scalar + "\"");
  }

  void StartLine() {
    if (!style_.indent) return;
    out_->Append("\n");
    for (int i = 0; i < level_; ++i) out_->Append(*style_.indent);
  }

  const JsonStyle& style_;
  Output* out_;
  int level_ = 0;
};

}  // namespace

Text Printed(const Value& value) {
  if (value.text() != nullptr) return *value.text();
  if (value.is_undefined()) return {};
  return Represented(value);
}

Text Represented(const Value& value) {
  Output out;
  AppendRepresented(value, &out);
  return out.Take();
}

Text AsJson(const Value& value, const JsonStyle& style) {
  Output out;
  JsonWriter(style, &out).Write(value);
  return out.Take();
}

}  // namespace zeroplan::jinja
