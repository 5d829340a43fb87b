#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/base/strings.h"

namespace zeroplan::jinja {
namespace {

bool IsNameStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  std::vector<Part> Run() {
    while (at_ < source_.size()) {
      const size_t tag = NextTag(at_);
      AddText(source_.substr(at_, tag - at_), tag);
      if (tag == source_.size()) break;
      ReadTag(tag);
    }
    return std::move(parts_);
  }

 private:
  size_t NextTag(size_t from) const {
    for (size_t at = source_.find('{', from); at != std::string_view::npos;
         at = source_.find('{', at + 1)) {
      if (at + 1 < source_.size() && std::strchr("{%#", source_[at + 1]) != nullptr) return at;
    }
    return source_.size();
  }

  // What stands before the tag at `tag`.
  void AddText(std::string_view text, size_t tag) {
    const int line = line_;
    line_ += static_cast<int>(std::count(text.begin(), text.end(), '\n'));
    if (tag < source_.size()) {
      const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
      if (sign == '-') {
        text = text.substr(0, WithoutSpace(text, 2).end);
      } else if (sign != '+' && source_[tag + 1] != '{') {
        // White space alone before a block on its line.
        const size_t newline = text.rfind('\n');
        const size_t start = newline == std::string_view::npos ? 0 : newline + 1;
        if ((start > 0 || line_starting_) &&
            WithoutSpace(text.substr(start), 1).begin == text.size() - start) {
          text = text.substr(0, start);
        }
      }
    }
    if (text.empty()) return;
    Part part;
    part.line = line;
    part.text = text;
    parts_.push_back(std::move(part));
  }

  void ReadTag(size_t tag) {
    const char kind = source_[tag + 1];
    at_ = tag + 2;
    if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) ++at_;
    if (kind == '#') {
      const size_t end = source_.find("#}", at_);
      if (end == std::string_view::npos) throw TemplateError(line_, "a comment is not closed");
      const bool strips = end > at_ && source_[end - 1] == '-';
      const bool keeps = end > at_ && source_[end - 1] == '+';
      line_ += static_cast<int>(std::count(source_.begin() + at_, source_.begin() + end, '\n'));
      at_ = end + 2;
      EndTag(strips, !keeps);
      return;
    }
    Part part;
    part.kind = kind == '{' ? Part::Kind::kOutput : Part::Kind::kBlock;
    part.line = line_;
    const std::string_view close = kind == '{' ? "}}" : "%}";
    int open = 0;  // braces within an expression
    for (;;) {
      SkipSpace();
      if (at_ >= source_.size()) throw TemplateError(part.line, "a tag is not closed");
      const std::string_view rest = source_.substr(at_);
      if (open == 0 &&
          (rest.starts_with(close) || ((rest[0] == '-' || (rest[0] == '+' && kind == '%')) &&
                                       rest.substr(1).starts_with(close)))) {
        const bool strips = rest[0] == '-';
        const bool keeps = rest[0] == '+';
        part.tokens.push_back({Token::Kind::kEnd, "the end of the tag", line_});
        const bool is_raw = part.tokens[0].Is(Token::Kind::kName, "raw");
        if (is_raw && kind == '%') throw TemplateError(part.line, "raw is not supported");
        parts_.push_back(std::move(part));
        at_ += strips || keeps ? 3 : 2;
        EndTag(strips, kind == '%' && !keeps);
        return;
      }
      part.tokens.push_back(ReadToken());
      const std::string& text = part.tokens.back().text;
      if (part.tokens.back().kind == Token::Kind::kSign) {
        if (text == "(" || text == "[" || text == "{") ++open;
        if ((text == ")" || text == "]" || text == "}") && --open < 0) {
          throw TemplateError(line_, "unexpected " + text);
        }
      }
    }
  }

  // What follows a tag and goes with it.
  void EndTag(bool strips, bool trims) {
    const size_t begin = at_;
    if (strips) {
      at_ += WithoutSpace(source_.substr(at_), 1).begin;
    } else if (trims && at_ < source_.size() && source_[at_] == '\n') {
      ++at_;
    }
    line_ += static_cast<int>(std::count(source_.begin() + begin, source_.begin() + at_, '\n'));
    line_starting_ = source_[at_ - 1] == '\n';
  }

  void SkipSpace() {
    while (at_ < source_.size() && std::strchr(" \t\n\r\f\v", source_[at_]) != nullptr) {
      if (source_[at_] == '\0') break;  // strchr finds it
      line_ += source_[at_] == '\n' ? 1 : 0;
      ++at_;
    }
  }

  Token ReadToken() {
    const char c = source_[at_];
    Token token;
    token.line = line_;
    if (c == '"' || c == '\'') {
      token.kind = Token::Kind::kText;
      token.text = ReadText(c);
      return token;
    }
    size_t end = at_;
    if (IsNameStart(c)) {
      while (end < source_.size() && (IsNameStart(source_[end]) || IsDigit(source_[end]))) ++end;
      token.kind = Token::Kind::kName;
    } else if (IsDigit(c)) {
      while (end < source_.size() && IsDigit(source_[end])) ++end;
      const char next = end < source_.size() ? source_[end] : '\0';
      if (next == '.' || next == '_' || IsNameStart(next) || end - at_ > 18) {
        throw TemplateError(line_, "only whole numbers of up to 18 digits are supported");
      }
      token.kind = Token::Kind::kNumber;
    } else {
      static constexpr std::array<std::string_view, 27> kSigns = {
          "==", "!=", "<=", ">=", "//", "**", "+", "-", "*", "/", "%", "~", "<", ">",
          "=",  "(",  ")",  "[",  "]",  "{",  "}", ",", ".", ":", "|", ";", "!"};
      const std::string_view rest = source_.substr(at_);
      for (const std::string_view sign : kSigns) {
        if (rest.starts_with(sign)) {
          end = at_ + sign.size();
          break;
        }
      }
      if (end == at_) throw TemplateError(line_, "a character that is not supported in a tag");
      token.kind = Token::Kind::kSign;
    }
    token.text = source_.substr(at_, end - at_);
    at_ = end;
    return token;
  }

  std::string ReadText(char quote) {
    const int line = line_;
    std::string text;
    for (++at_;; ++at_) {
      if (at_ >= source_.size()) throw TemplateError(line, "a string is not closed");
      const char c = source_[at_];
      if (c == quote) break;
      line_ += c == '\n' ? 1 : 0;
      if (c != '\\') {
        text += c;
        continue;
      }
      if (++at_ >= source_.size()) throw TemplateError(line, "a string is not closed");
      ReadEscape(&text);
    }
    ++at_;
    return text;
  }

  void ReadEscape(std::string* text) {
    static constexpr std::string_view kPlain = "\\'\"abfnrtv";
    static constexpr std::string_view kMeans = "\\'\"\a\b\f\n\r\t\v";
    const char c = source_[at_];
    if (const size_t known = kPlain.find(c); known != std::string_view::npos) {
      *text += kMeans[known];
      return;
    }
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0 || at_ + digits >= source_.size()) {
      throw TemplateError(line_, std::string("the escape \\") + c + " is not supported");
    }
    char32_t code_point = 0;
    for (size_t i = 1; i <= digits; ++i) {
      static constexpr std::string_view kHex = "0123456789abcdef";
      const char digit = source_[at_ + i];
      const size_t value = kHex.find(digit >= 'A' && digit <= 'F' ? digit + 32 : digit);
      if (value == std::string_view::npos) {
        throw TemplateError(line_, "a hexadecimal escape is cut short");
      }
      code_point = code_point << 4 | static_cast<char32_t>(value);
    }
    if (code_point > 0x10FFFF || (code_point >= 0xD800 && code_point <= 0xDFFF)) {
      throw TemplateError(line_, "an escape names no character");
    }
    AppendUtf8(code_point, text);
    at_ += digits;
  }

  std::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Part> parts_;
};

}  // namespace

bool IsPythonSpace(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

Range WithoutSpace(std::string_view text, int sides) {
  Range range = {0, text.size()};
  while ((sides & 1) != 0 && range.begin < range.end) {
    size_t at = range.begin;
    if (!IsPythonSpace(NextCodePoint(text, &at))) break;
    range.begin = at;
  }
  while ((sides & 2) != 0 && range.begin < range.end) {
    const size_t start = PreviousStart(text, range.end);
    size_t at = start;
    if (!IsPythonSpace(NextCodePoint(text, &at))) break;
    range.end = start;
  }
  return range;
}

std::vector<Part> Cut(std::string_view source) {
  if (!IsValidUtf8(source)) throw TemplateError(1, "it is no UTF-8");
  std::string unified;
  for (size_t i = 0; i < source.size(); ++i) {
    const bool is_return = source[i] == '\r';
    if (is_return && i + 1 < source.size() && source[i + 1] == '\n') ++i;
    unified += is_return ? '\n' : source[i];
  }
  if (unified.ends_with('\n')) unified.pop_back();
  return Lexer(unified).Run();
}

}  // namespace zeroplan::jinja
