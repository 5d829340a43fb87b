// Properties of code points in the Unicode version of the PyPI package `tokenizers` 0.23.3. The ids
// of a text depend on them, so they must not depend on a library's version on a machine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zeroplan {

// The general categories, ordered so that those of one major class follow each other.
enum class Category : uint8_t {
  kLu,
  kLl,
  kLt,
  kLm,
  kLo,
  kMn,
  kMc,
  kMe,
  kNd,
  kNl,
  kNo,
  kPc,
  kPd,
  kPs,
  kPe,
  kPi,
  kPf,
  kPo,
  kSm,
  kSc,
  kSk,
  kSo,
  kZs,
  kZl,
  kZp,
  kCc,
  kCf,
  kCs,
  kCo,
  kCn,
};
inline constexpr int kCategories = 30;
// "Lu", "Ll", ... in the order above.
extern const std::string_view kCategoryNames[kCategories];

inline constexpr char32_t kCodePoints = 0x110000;

// A byte for each code point, in pages of 256; equal pages are shared.
class CodePointBytes {
 public:
  // One byte for each code point.
  explicit CodePointBytes(std::span<const uint8_t> values);
  uint8_t operator[](char32_t code_point) const {
    return bytes_[(size_t{pages_[code_point >> 8]} << 8) + (code_point & 255)];
  }

 private:
  std::vector<uint16_t> pages_;
  std::vector<uint8_t> bytes_;
};

Category CategoryOf(char32_t code_point);

// The classes that the patterns of tokenizers distinguish: letters (\p{L}), numbers (\p{N}), white
// space (\s) and the rest.
enum class TextClass : uint8_t { kOther, kLetter, kNumber, kSpace };
// TextClass of each code point.
const CodePointBytes& TextClasses();

// A sorted list of ranges, both ends included, that neither touch nor overlap.
struct CodePointRange {
  char32_t first = 0;
  char32_t last = 0;
  friend bool operator==(const CodePointRange&, const CodePointRange&) = default;
};
using CodePointSet = std::vector<CodePointRange>;

bool Contains(std::span<const CodePointRange> set, char32_t code_point);

// \s of Oniguruma and of Rust's regex and char::is_whitespace alike: the property White_Space.
std::span<const CodePointRange> WhiteSpace();
// \w of Rust's regex, which the pre-tokenizer Whitespace and added tokens with single_word use.
bool IsRustWordCharacter(char32_t code_point);
// Rust's char::is_numeric, which the pre-tokenizer Digits uses.
bool IsRustNumeric(char32_t code_point);
// Whether the pre-tokenizer Punctuation splits at the code point.
bool IsPunctuation(char32_t code_point);
// Whether a code point is unknown to the Unicode version (9) of the normalizers NFC, NFD, NFKC and
// NFKD: it stays unchanged.
bool IsInertInNormalization(char32_t code_point);
// The code points of a category ("Lu") or of a major class ("L"); empty: there is no such category.
CodePointSet CategorySet(std::string_view name);

// Byte-level tokenizers spell each byte as a printable character (openai/gpt-2, src/encoder.py,
// bytes_to_unicode). The character of a byte: itself if it is printable Latin-1, else one from
// U+0100 on.
char32_t CharacterOfByte(uint8_t byte);
// The byte that a character spells.
std::optional<uint8_t> ByteOfCharacter(char32_t character);

// Each byte of `bytes` as its character, in UTF-8.
std::string SpellBytes(std::string_view bytes);
// The bytes that a text of such characters spells; nullopt if it has another character. REQUIRES:
// well-formed UTF-8.
std::optional<std::string> BytesOfSpelling(std::string_view text);

}  // namespace zeroplan
