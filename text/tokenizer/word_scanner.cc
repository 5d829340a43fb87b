#include "text/tokenizer/word_scanner.h"

#include "core/base/strings.h"
#include "text/tokenizer/unicode.h"

namespace zeroplan {
namespace {

// The code point at a position, and its class. Past the end: no class at all.
struct Char {
  char32_t code_point = 0;
  size_t end = 0;
  TextClass text_class = TextClass::kOther;
  bool exists = false;

  bool Is(TextClass wanted) const { return exists && text_class == wanted; }
  bool IsNewline() const { return exists && (code_point == '\r' || code_point == '\n'); }
};

class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text), classes_(TextClasses()) {}

  Char At(size_t at) const {
    Char c;
    if (at >= text_.size()) return c;
    c.end = at;
    c.code_point = NextCodePoint(text_, &c.end);
    c.text_class = static_cast<TextClass>(classes_[c.code_point]);
    c.exists = true;
    return c;
  }

  // The end of the run of `wanted` that goes on at `at`.
  size_t Run(size_t at, TextClass wanted) const {
    for (Char c = At(at); c.Is(wanted); c = At(at)) at = c.end;
    return at;
  }

 private:
  std::string_view text_;
  const CodePointBytes& classes_;
};

// The end of 's|'t|'re|'ve|'m|'ll|'d at `at`, or `at`. With `caseless` as under (?i): U+017F, the
// long s, is an s too.
size_t Contraction(std::string_view text, size_t at, bool caseless) {
  const auto letter = [&](size_t i) -> char {
    if (i >= text.size()) return '\0';
    const char c = text[i];
    return caseless && c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  };
  switch (letter(at + 1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return at + 2;
    case 'r':
    case 'v':
      return letter(at + 2) == 'e' ? at + 3 : at;
    case 'l':
      return letter(at + 2) == 'l' ? at + 3 : at;
    default:
      return caseless && text.substr(at + 1).starts_with("\xC5\xBF") ? at + 3 : at;
  }
}

// The end of \s+(?!\S)|\s+ at `first`, which is white space: before what follows a run one
// character of it stays behind, unless it is all there is.
size_t SpaceRun(const Cursor& cursor, std::string_view text, const Char& first) {
  const size_t end = cursor.Run(first.end, TextClass::kSpace);
  if (end == text.size() || end == first.end) return end;
  return PreviousStart(text, end);
}

size_t ScanGpt2(std::string_view text, size_t at) {
  const Cursor cursor(text);
  if (text[at] == '\'') {
    const size_t end = Contraction(text, at, false);
    if (end != at) return end;
  }
  const Char first = cursor.At(at);
  // An optional blank, then a run of one class.
  const Char start = first.code_point == ' ' ? cursor.At(first.end) : first;
  if (start.exists && start.text_class != TextClass::kSpace) {
    return cursor.Run(start.end, start.text_class);
  }
  return SpaceRun(cursor, text, first);
}

// Llama 3's, or with one digit a piece Qwen's.
template <int kMostDigits>
size_t ScanLlama3(std::string_view text, size_t at) {
  const Cursor cursor(text);
  if (text[at] == '\'') {
    const size_t end = Contraction(text, at, true);
    if (end != at) return end;
  }
  const Char first = cursor.At(at);
  // [^\r\n\p{L}\p{N}]?\p{L}+
  if (first.Is(TextClass::kLetter)) return cursor.Run(first.end, TextClass::kLetter);
  // \p{N}{1,3}
  if (first.Is(TextClass::kNumber)) {
    size_t end = first.end;
    for (int digits = 1; digits < kMostDigits; ++digits) {
      const Char next = cursor.At(end);
      if (!next.Is(TextClass::kNumber)) break;
      end = next.end;
    }
    return end;
  }
  const Char second = cursor.At(first.end);
  if (!first.IsNewline() && second.Is(TextClass::kLetter)) {
    return cursor.Run(second.end, TextClass::kLetter);
  }
  //  ?[^\s\p{L}\p{N}]+[\r\n]*
  const Char start = first.code_point == ' ' ? second : first;
  if (start.Is(TextClass::kOther)) {
    size_t end = cursor.Run(start.end, TextClass::kOther);
    while (end < text.size() && (text[end] == '\r' || text[end] == '\n')) ++end;
    return end;
  }
  // \s*[\r\n]+: to the last line break of the white space.
  size_t newline_end = 0;
  size_t end = at;
  for (Char c = first; c.Is(TextClass::kSpace); c = cursor.At(end)) {
    end = c.end;
    if (c.IsNewline()) newline_end = end;
  }
  if (newline_end != 0) return newline_end;
  return SpaceRun(cursor, text, first);
}

}  // namespace

const std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

WordScanner ScannerFor(std::string_view pattern) {
  if (pattern == kGpt2Pattern) return ScanGpt2;
  if (pattern == kLlama3Pattern) return ScanLlama3<3>;
  if (pattern == kQwenPattern) return ScanLlama3<1>;
  return nullptr;
}

}  // namespace zeroplan
