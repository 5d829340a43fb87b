#include "text/tokenizer/unicode.h"

#include <algorithm>
#include <array>
#include <map>
#include <sstream>
#include <string>

#include "core/base/error.h"
#include "core/base/strings.h"

namespace zeroplan {

const std::string_view kCategoryNames[kCategories] = {
    "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe",
    "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};

namespace {

using enum Category;

constexpr std::string_view kRuns =
#include "text/tokenizer/unicode_categories.inc"
    ;
constexpr CodePointRange kInert[] = {
#include "text/tokenizer/unicode_inert.inc"
};
constexpr CodePointRange kPunctuation[] = {
#include "text/tokenizer/unicode_punctuation.inc"
};
constexpr CodePointRange kWhiteSpace[] = {
    {0x09, 0x0D},     {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
    {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};
// Word characters that are no letter, mark, digit, letter number or connector.
constexpr CodePointRange kOtherAlphabetic[] = {
    {0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
// Digits that are newer than the version of Unicode in Oniguruma, but not in Rust.
constexpr CodePointRange kNewDigits[] = {{0x11DE0, 0x11DE9}, {0x16FF4, 0x16FF6}};

const std::vector<uint8_t>& CategoryBytes() {
  static const auto* bytes = [] {
    auto* all = new std::vector<uint8_t>;
    all->reserve(kCodePoints);
    std::istringstream runs{std::string(kRuns)};
    for (std::string run; runs >> run;) {
      const size_t digits = std::min(run.find_first_of("0123456789"), run.size());
      const std::string_view name = std::string_view(run).substr(0, digits);
      const size_t count = digits < run.size() ? std::stoul(run.substr(digits)) : 1;
      const auto* found = std::find(kCategoryNames, kCategoryNames + kCategories, name);
      const auto category = static_cast<size_t>(found - kCategoryNames);
      for (size_t i = 0; i < count; ++i) {
        all->push_back(static_cast<uint8_t>(name == "Case" ? i % 2 : category));
      }
    }
    ZEROPLAN_CHECK(all->size() == kCodePoints);
    return all;
  }();
  return *bytes;
}

TextClass ClassOf(char32_t code_point) {
  const Category category = CategoryOf(code_point);
  if (Contains(kWhiteSpace, code_point)) return TextClass::kSpace;
  if (category <= kLo) return TextClass::kLetter;
  if (category >= kNd && category <= kNo) return TextClass::kNumber;
  return TextClass::kOther;
}

}  // namespace

CodePointBytes::CodePointBytes(std::span<const uint8_t> values) {
  ZEROPLAN_CHECK(values.size() == kCodePoints);
  std::map<std::string, uint16_t, std::less<>> known;
  for (size_t begin = 0; begin < values.size(); begin += 256) {
    const std::string page(values.begin() + static_cast<std::ptrdiff_t>(begin),
                           values.begin() + static_cast<std::ptrdiff_t>(begin + 256));
    const auto [at, is_new] = known.emplace(page, static_cast<uint16_t>(known.size()));
    if (is_new) bytes_.insert(bytes_.end(), page.begin(), page.end());
    pages_.push_back(at->second);
  }
}

Category CategoryOf(char32_t code_point) {
  static const auto* table = new CodePointBytes(CategoryBytes());
  return static_cast<Category>((*table)[code_point]);
}

const CodePointBytes& TextClasses() {
  static const auto* table = [] {
    std::vector<uint8_t> classes(kCodePoints);
    for (char32_t c = 0; c < kCodePoints; ++c) classes[c] = static_cast<uint8_t>(ClassOf(c));
    return new CodePointBytes(classes);
  }();
  return *table;
}

bool Contains(std::span<const CodePointRange> set, char32_t code_point) {
  const auto after = std::upper_bound(
      set.begin(), set.end(), code_point,
      [](char32_t value, const CodePointRange& range) { return value < range.first; });
  return after != set.begin() && code_point <= std::prev(after)->last;
}

std::span<const CodePointRange> WhiteSpace() { return kWhiteSpace; }

bool IsRustWordCharacter(char32_t code_point) {
  if (code_point == 0x200C || code_point == 0x200D) return true;
  const Category category = CategoryOf(code_point);
  return category <= kNl || category == kPc || Contains(kOtherAlphabetic, code_point);
}

bool IsRustNumeric(char32_t code_point) {
  const Category category = CategoryOf(code_point);
  return (category >= kNd && category <= kNo) || Contains(kNewDigits, code_point);
}

bool IsPunctuation(char32_t code_point) { return Contains(kPunctuation, code_point); }

bool IsInertInNormalization(char32_t code_point) {
  return Contains(kInert, code_point) || CategoryOf(code_point) == kCn;
}

CodePointSet CategorySet(std::string_view name) {
  CodePointSet set;
  std::vector<bool> wanted(kCategories);
  for (size_t i = 0; i < kCategories; ++i) {
    wanted[i] = kCategoryNames[i] == name || (name.size() == 1 && kCategoryNames[i][0] == name[0]);
  }
  const std::vector<uint8_t>& bytes = CategoryBytes();
  for (char32_t c = 0; c < kCodePoints; ++c) {
    if (!wanted[bytes[c]]) continue;
    if (!set.empty() && set.back().last + 1 == c) {
      set.back().last = c;
    } else {
      set.push_back({c, c});
    }
  }
  return set;
}

namespace {

constexpr bool IsPrintable(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Tables {
  std::array<char32_t, 256> character{};
  std::array<int16_t, 512> byte{};  // by character, -1: none
};

constexpr Tables MakeTables() {
  Tables tables;
  tables.byte.fill(-1);
  char32_t next = 256;
  for (int b = 0; b < 256; ++b) {
    const char32_t c = IsPrintable(b) ? static_cast<char32_t>(b) : next++;
    tables.character[static_cast<size_t>(b)] = c;
    tables.byte[c] = static_cast<int16_t>(b);
  }
  return tables;
}
constexpr Tables kTables = MakeTables();

}  // namespace

char32_t CharacterOfByte(uint8_t byte) { return kTables.character[byte]; }

std::optional<uint8_t> ByteOfCharacter(char32_t character) {
  if (character >= kTables.byte.size() || kTables.byte[character] < 0) return std::nullopt;
  return static_cast<uint8_t>(kTables.byte[character]);
}

std::string SpellBytes(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char byte : bytes) AppendUtf8(CharacterOfByte(static_cast<uint8_t>(byte)), &out);
  return out;
}

std::optional<std::string> BytesOfSpelling(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const std::optional<uint8_t> byte = ByteOfCharacter(NextCodePoint(text, &at));
    if (!byte) return std::nullopt;
    out += static_cast<char>(*byte);
  }
  return out;
}

}  // namespace zeroplan
