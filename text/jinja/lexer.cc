#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>

#include "core/base/strings.h"

namespace zeroplan::jinja {
namespace {

bool IsNameStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsOneOf(char c, std::string_view set) { return set.find(c) != std::string_view::npos; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  std::vector<Part> Run() {
    while (at_ < source_.size()) {
      const size_t tag = NextTag(at_);
      AddText(source_.substr(at_, tag - at_), tag);
      if (tag == source_.size()) break;
      if (const size_t raw = RawEnd(tag); raw > 0) {
        ReadRaw(tag, raw);
      } else {
        ReadTag(tag);
      }
    }
    return std::move(parts_);
  }

 private:
  size_t NextTag(size_t from) const {
    for (size_t at = source_.find('{', from); at != std::string_view::npos;
         at = source_.find('{', at + 1)) {
      if (at + 1 < source_.size() && IsOneOf(source_[at + 1], "{%#")) return at;
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

  // Where a tag goes on behind `at`, a sign there, white space and `word`; 0: it is another tag.
  size_t Behind(size_t at, std::string_view word) const {
    at += 2;
    if (at < source_.size() && IsOneOf(source_[at], "-+")) ++at;
    at += WithoutSpace(source_.substr(at), 1).begin;
    if (!source_.substr(at).starts_with(word)) return 0;
    at += word.size();
    return at + WithoutSpace(source_.substr(at), 1).begin;
  }

  // Where {% raw %} ends, if it stands at `tag`; else 0.
  size_t RawEnd(size_t tag) const {
    if (source_[tag + 1] != '%') return 0;
    const size_t at = Behind(tag, "raw");
    if (at == 0) return 0;
    if (source_.substr(at).starts_with("%}")) return at + 2;
    if (!source_.substr(at).starts_with("-%}")) return 0;
    return at + 3 + WithoutSpace(source_.substr(at + 3), 1).begin;
  }

  // A line feed behind {% raw %} stays: Jinja takes none.
  void ReadRaw(size_t tag, size_t begin) {
    const int line = line_;
    CountLines(tag, begin);
    line_starting_ = source_[begin - 1] == '\n';
    for (size_t end = source_.find("{%", begin); end != std::string_view::npos;
         end = source_.find("{%", end + 1)) {
      const size_t at = Behind(end, "endraw");
      if (at == 0) continue;
      const char sign = at < source_.size() ? source_[at] : '\0';
      const size_t close = at + (sign == '-' || sign == '+' ? 1 : 0);
      if (!source_.substr(close).starts_with("%}")) continue;
      AddText(source_.substr(begin, end - begin), end);
      CountLines(end, close);
      at_ = close + 2;
      EndTag(sign == '-', sign != '+');
      return;
    }
    throw TemplateError(line, "raw is not closed");
  }

  void CountLines(size_t begin, size_t end) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(begin),
                                         source_.begin() + static_cast<ptrdiff_t>(end), '\n'));
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
      CountLines(at_, end);
      at_ = end + 2;
      EndTag(strips, !keeps);
      return;
    }
    Part part;
    part.kind = kind == '{' ? Part::Kind::kOutput : Part::Kind::kBlock;
    part.line = line_;
    const std::string_view close = kind == '{' ? "}}" : "%}";
    std::string open;  // braces and the like within an expression, which are to be closed
    for (;;) {
      SkipSpace();
      if (at_ >= source_.size()) throw TemplateError(part.line, "a tag is not closed");
      const std::string_view rest = source_.substr(at_);
      if (open.empty() &&
          (rest.starts_with(close) || ((rest[0] == '-' || (rest[0] == '+' && kind == '%')) &&
                                       rest.substr(1).starts_with(close)))) {
        const bool strips = rest[0] == '-';
        const bool keeps = rest[0] == '+';
        part.tokens.push_back({Token::Kind::kEnd, "the end of the tag", line_});
        parts_.push_back(std::move(part));
        at_ += strips || keeps ? 3 : 2;
        EndTag(strips, kind == '%' && !keeps);
        return;
      }
      part.tokens.push_back(ReadToken());
      const std::string& text = part.tokens.back().text;
      if (part.tokens.back().kind == Token::Kind::kSign) {
        if (text == "(" || text == "[" || text == "{") {
          open += text == "(" ? ')' : text == "[" ? ']' : '}';
        } else if (text == ")" || text == "]" || text == "}") {
          if (!open.ends_with(text)) throw TemplateError(line_, "unexpected " + text);
          open.pop_back();
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
    CountLines(begin, at_);
    line_starting_ = source_[at_ - 1] == '\n';
  }

  void SkipSpace() {
    const size_t begin = at_;
    at_ += WithoutSpace(source_.substr(at_), 1).begin;
    CountLines(begin, at_);
  }

  // Digits of a base, each perhaps behind a "_".
  size_t DigitsEnd(size_t at, std::string_view digits) const {
    for (;;) {
      const size_t next = at + (at < source_.size() && source_[at] == '_' ? 1 : 0);
      if (next >= source_.size() || !IsOneOf(source_[next], digits)) return at;
      at = next + 1;
    }
  }

  // As Jinja's regular expressions have numbers.
  Token ReadNumber() {
    static constexpr std::string_view kDecimal = "0123456789";
    Token token;
    token.line = line_;
    const auto at = [&](size_t i) { return i < source_.size() ? source_[i] : '\0'; };
    const auto digits = [&](size_t i) { return IsDigit(at(i)) ? DigitsEnd(i, kDecimal) : i; };
    size_t end = digits(at_);
    size_t real_end = at(end) == '.' && IsDigit(at(end + 1)) ? digits(end + 1) : end;
    if (IsOneOf(at(real_end), "eE")) {
      const size_t exponent = real_end + (IsOneOf(at(real_end + 1), "+-") ? 2 : 1);
      if (IsDigit(at(exponent))) real_end = digits(exponent);
    }
    token.kind = real_end > end && at(at_ - 1) != '.' ? Token::Kind::kReal : Token::Kind::kInteger;
    if (token.kind == Token::Kind::kReal) {
      end = real_end;
    } else if (at(at_) == '0') {
      const char base = static_cast<char>(at(at_ + 1) | 0x20);
      const int bits = base == 'x' ? 4 : base == 'o' ? 3 : base == 'b' ? 1 : 0;
      end = DigitsEnd(bits > 0 ? at_ + 2 : at_ + 1, bits == 4   ? "0123456789abcdefABCDEF"
                                                    : bits == 3 ? "01234567"
                                                    : bits == 1 ? "01"
                                                                : "0");
      if (bits > 0) {
        token.text = OtherBase(source_.substr(at_ + 2, end - at_ - 2), bits);
        at_ = end;
        return token;
      }
      token.text = "0";
      at_ = end;
      return token;
    }
    for (; at_ < end; ++at_) {
      if (source_[at_] != '_') token.text += source_[at_];
    }
    if (token.text.size() > 4000) throw TemplateError(line_, "a number of over 4000 digits");
    return token;
  }

  std::string OtherBase(std::string_view digits, int bits) const {
    uint64_t value = 0;
    for (const char c : digits) {
      if (c == '_') continue;
      if (value >> (64 - bits) != 0) throw TemplateError(line_, "a number is too large");
      value = value << bits | static_cast<uint64_t>(IsDigit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    if (digits.empty()) throw TemplateError(line_, "a number has no digits");
    return std::to_string(value);
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
      return ReadNumber();
    } else {
      static constexpr std::array<std::string_view, 26> kSigns = {
          "==", "!=", "<=", ">=", "//", "**", "+", "-", "*", "/", "%", "~", "<",
          ">",  "=",  "(",  ")",  "[",  "]",  "{", "}", ",", ".", ":", "|", ";"};
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
    if (c == '\n') {
      ++line_;
      return;
    }
    if (const size_t known = kPlain.find(c); known != std::string_view::npos) {
      *text += kMeans[known];
      return;
    }
    if (c >= '0' && c <= '7') {
      char32_t octal = 0;
      size_t end = at_;
      while (end < at_ + 3 && end < source_.size() && IsOneOf(source_[end], "01234567")) {
        octal = octal << 3 | static_cast<char32_t>(source_[end++] - '0');
      }
      AppendUtf8(octal, text);
      at_ = end - 1;
      return;
    }
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (c == 'N' || static_cast<unsigned char>(c) >= 0x80 || at_ + digits >= source_.size()) {
      throw TemplateError(line_, "an escape that is not supported");
    }
    if (digits == 0) {  // Python leaves what it does not know
      *text += '\\';
      *text += c;
      return;
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
