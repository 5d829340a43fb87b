// Upper, lower and title case of texts, and what kind of characters they have: as CPython's str.
#include <utf8proc.h>

#include <algorithm>
#include <span>

#include "core/base/strings.h"
#include "text/jinja/evaluate.h"
#include "text/tokenizer/unicode.h"

namespace zeroplan::jinja {
namespace {

struct SpecialCase {
  char32_t from = 0;
  std::string_view upper, title;
};

#include "text/jinja/casing.inc"

enum class Case { kUpper, kLower, kTitle };

bool IsLower(char32_t c) { return CategoryOf(c) == Category::kLl || Contains(kOtherLowercase, c); }
bool IsUpper(char32_t c) { return CategoryOf(c) == Category::kLu || Contains(kOtherUppercase, c); }
bool IsCased(char32_t c) { return IsLower(c) || IsUpper(c) || CategoryOf(c) == Category::kLt; }

// What case mapping looks through: Unicode's Case_Ignorable.
bool IsIgnoredInCasing(char32_t c) {
  static constexpr std::u32string_view kWithinWords =
      U"'.:\u00B7\u0387\u055F\u05F4\u2018\u2019\u2024\u2027\uFE13\uFE52\uFE55\uFF07\uFF0E\uFF1A";
  switch (CategoryOf(c)) {
    case Category::kMn:
    case Category::kMe:
    case Category::kCf:
    case Category::kLm:
    case Category::kSk:
      return true;
    default:
      return kWithinWords.find(c) != std::u32string_view::npos;
  }
}

// Whether the capital sigma at `at` ends a word: its lower case is then another.
bool IsFinalSigma(std::string_view text, size_t at) {
  bool is_final = false;
  for (size_t before = at; before > 0;) {
    Step();
    before = PreviousStart(text, before);
    size_t next = before;
    const char32_t c = NextCodePoint(text, &next);
    if (IsIgnoredInCasing(c)) continue;
    is_final = IsCased(c);
    break;
  }
  for (size_t behind = at + Utf8Length(text[at]); is_final && behind < text.size();) {
    Step();
    const char32_t c = NextCodePoint(text, &behind);
    if (IsIgnoredInCasing(c)) continue;
    return !IsCased(c);
  }
  return is_final;
}

void AppendInCase(Case wanted, std::string_view text, size_t at, std::string* out) {
  const char32_t c = NextCodePoint(text, &at);
  if (wanted == Case::kLower) {
    if (c == U'\u03A3' && IsFinalSigma(text, at - 2)) return AppendUtf8(U'\u03C2', out);
    if (c == U'\u0130') *out += "i\u0307";
    if (c != U'\u0130') {
      AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), out);
    }
    return;
  }
  const auto* special = std::lower_bound(
      std::begin(kSpecialCases), std::end(kSpecialCases), c,
      [](const SpecialCase& known, char32_t wanted_one) { return known.from < wanted_one; });
  if (special != std::end(kSpecialCases) && special->from == c) {
    *out += wanted == Case::kUpper ? special->upper : special->title;
    return;
  }
  const auto simple = static_cast<utf8proc_int32_t>(c);
  AppendUtf8(static_cast<char32_t>(wanted == Case::kUpper ? utf8proc_toupper(simple)
                                                          : utf8proc_totitle(simple)),
             out);
}

// `text` with each character in the case that `case_of(character)` says. The marks go along.
template <typename CaseOf>
Text InCases(const Text& text, CaseOf case_of) {
  Make(text.Cost() * 2);
  Step(text.bytes.size() / 16);
  Text out = text;
  out.bytes.clear();
  std::vector<size_t*> borders;
  for (Mark& mark : out.marks) {
    borders.push_back(&mark.begin);
    borders.push_back(&mark.end);
  }
  size_t border = 0;
  for (size_t at = 0;; at += Utf8Length(text.bytes[at])) {
    for (; border < borders.size() && *borders[border] == at; ++border) {
      *borders[border] = out.bytes.size();
    }
    if (at >= text.bytes.size()) return out;
    size_t next = at;
    AppendInCase(case_of(NextCodePoint(text.bytes, &next)), text.bytes, at, &out.bytes);
  }
}

}  // namespace

Text Upper(const Text& text) {
  return InCases(text, [](char32_t) { return Case::kUpper; });
}

Text Lower(const Text& text) {
  return InCases(text, [](char32_t) { return Case::kLower; });
}

Text Capitalized(const Text& text) {
  bool first = true;
  return InCases(
      text, [&](char32_t) { return std::exchange(first, false) ? Case::kTitle : Case::kLower; });
}

Text Titled(const Text& text) {
  bool within = false;
  return InCases(text, [&](char32_t c) {
    return std::exchange(within, IsCased(c)) ? Case::kLower : Case::kTitle;
  });
}

Text TitleOfWords(const Text& text) {
  // Each word is a text of its own there: a sigma that ends it is a final one.
  Text out;
  out.safe = text.safe;
  const auto is_border = [](char32_t c) {
    return IsPythonSpace(c) || c == U'-' || c == U'(' || c == U'{' || c == U'[' || c == U'<';
  };
  for (size_t begin = 0; begin < text.bytes.size();) {
    size_t end = begin, next = begin;
    const bool border = is_border(NextCodePoint(text.bytes, &next));
    while (next = end,
           end < text.bytes.size() && is_border(NextCodePoint(text.bytes, &next)) == border) {
      end = next;
    }
    const Text word = text.Part(begin, end);
    const size_t first = Utf8Length(word.bytes[0]);
    Text head = Upper(word.Part(0, first));
    out.Append(head);
    out.Append(Lower(word.Part(first, word.bytes.size())));
    begin = end;
  }
  return out;
}

bool IsPrintable(char32_t c) {
  switch (CategoryOf(c)) {
    case Category::kCc:
    case Category::kCf:
    case Category::kCs:
    case Category::kCo:
    case Category::kCn:
    case Category::kZl:
    case Category::kZp:
      return false;
    case Category::kZs:
      return c == U' ';
    default:
      return true;
  }
}

namespace {

bool IsLetter(char32_t c) {
  const Category category = CategoryOf(c);
  return category == Category::kLu || category == Category::kLl || category == Category::kLt ||
         category == Category::kLm || category == Category::kLo;
}
bool IsDecimal(char32_t c) { return CategoryOf(c) == Category::kNd; }
bool IsDigitOf(char32_t c) { return IsDecimal(c) || Contains(kOtherDigits, c); }
bool IsNumeric(char32_t c) {
  const Category category = CategoryOf(c);
  return category == Category::kNd || category == Category::kNl || category == Category::kNo ||
         Contains(kOtherNumeric, c);
}

// Whether each word begins in upper case and goes on in lower case, and there is one.
bool IsTitled(std::string_view text) {
  bool titled = false, within = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = NextCodePoint(text, &at);
    const bool starts = IsUpper(c) || CategoryOf(c) == Category::kLt;
    if (starts ? within : IsLower(c) && !within) return false;
    within = starts || IsLower(c);
    titled = titled || within;
  }
  return titled;
}

}  // namespace

std::optional<bool> IsOfKind(std::string_view name, std::string_view text) {
  Step(text.size() / 16);
  const auto all = [&](auto is_one) {
    bool passes = true;
    for (size_t at = 0; at < text.size() && passes;) passes = is_one(NextCodePoint(text, &at));
    return passes;
  };
  if (name == "isascii") return all([](char32_t c) { return c < 0x80; });
  if (name == "isprintable") return all(IsPrintable);
  if (name == "isalpha") return !text.empty() && all(IsLetter);
  if (name == "isdecimal") return !text.empty() && all(IsDecimal);
  if (name == "isdigit") return !text.empty() && all(IsDigitOf);
  if (name == "isnumeric") return !text.empty() && all(IsNumeric);
  if (name == "isspace") return !text.empty() && all(IsPythonSpace);
  if (name == "isalnum") {
    return !text.empty() && all([](char32_t c) { return IsLetter(c) || IsNumeric(c); });
  }
  if (name == "istitle") return IsTitled(text);
  if (name != "islower" && name != "isupper") return std::nullopt;
  // One that is cased, and none of the other cases.
  bool found = false;
  const bool lower = name == "islower";
  const bool passes = all([&](char32_t c) {
    found = found || IsCased(c);
    return CategoryOf(c) != Category::kLt && !(lower ? IsUpper(c) : IsLower(c));
  });
  return passes && found;
}

}  // namespace zeroplan::jinja
