#include "text/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/limits.h"
#include "core/base/strings.h"
#include "text/tokenizer/unicode.h"

namespace zeroplan {
namespace {

constexpr int kForms = 4;
using CodePoints = std::vector<utf8proc_int32_t>;

bool Composes(NormalForm form) { return form == NormalForm::kNfc || form == NormalForm::kNfkc; }

int CombiningClass(utf8proc_int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

// Appends the full decomposition.
void Decompose(char32_t code_point, NormalForm form, CodePoints* out) {
  int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
  if (form == NormalForm::kNfkc || form == NormalForm::kNfkd) options |= UTF8PROC_COMPAT;
  std::array<utf8proc_int32_t, 32> buffer{};  // 18 is the most that any has
  int boundary = 0;
  const utf8proc_ssize_t count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code_point), buffer.data(),
                              buffer.size(), static_cast<utf8proc_option_t>(options), &boundary);
  ZEROPLAN_CHECK(count >= 0 && count <= std::ssize(buffer), "U+{:04X}", uint32_t{code_point});
  out->insert(out->end(), buffer.begin(), buffer.begin() + count);
}

// Marks in canonical order. (utf8proc's own sorting is quadratic.)
void SortMarks(CodePoints* text) {
  for (auto at = text->begin(); at != text->end();) {
    if (CombiningClass(*at) == 0) {
      ++at;
      continue;
    }
    const auto end =
        std::find_if(at, text->end(), [](utf8proc_int32_t c) { return CombiningClass(c) == 0; });
    std::stable_sort(at, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return CombiningClass(a) < CombiningClass(b);
    });
    at = end;
  }
}

void Compose(CodePoints* text) {
  const utf8proc_ssize_t count =
      utf8proc_normalize_utf32(text->data(), std::ssize(*text),
                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  ZEROPLAN_CHECK(count >= 0);
  text->resize(static_cast<size_t>(count));
}

// 1: a code point that by itself changes, or changes with what stands before it. What has a 0
// starts a new part of a text that is brought into the form by itself.
std::vector<uint8_t> UnsafeCodePoints(NormalForm form) {
  std::vector<uint8_t> unsafe(kCodePoints);
  CodePoints own;
  for (char32_t c = 0x80; c < kCodePoints; ++c) {
    if ((c >= 0xD800 && c < 0xE000) || IsInertInNormalization(c)) continue;
    if (CombiningClass(static_cast<utf8proc_int32_t>(c)) != 0) unsafe[c] = 1;
    own.clear();
    Decompose(c, form, &own);
    if (own.size() == 1 && own[0] == static_cast<utf8proc_int32_t>(c)) continue;
    if (Composes(form)) {
      for (size_t i = 1; i < own.size(); ++i) unsafe[static_cast<size_t>(own[i])] = 1;
      SortMarks(&own);
      Compose(&own);
      if (own.size() == 1 && own[0] == static_cast<utf8proc_int32_t>(c)) continue;
    }
    unsafe[c] = 1;
  }
  return unsafe;
}

const CodePointBytes& Unsafe(NormalForm form) {
  static const auto* tables = [] {
    auto* all = new std::array<CodePointBytes*, kForms>;
    for (size_t i = 0; i < kForms; ++i) {
      (*all)[i] = new CodePointBytes(UnsafeCodePoints(static_cast<NormalForm>(i)));
    }
    return all;
  }();
  return *(*tables)[static_cast<size_t>(form)];
}

// Where the first unsafe code point at or after `at` starts; its predecessor in *before, or `at`.
size_t FindUnsafe(std::string_view text, size_t at, const CodePointBytes& unsafe, size_t* before) {
  *before = at;
  while (at < text.size()) {
    const size_t start = at;
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
    } else if (unsafe[NextCodePoint(text, &at)] != 0) {
      return start;
    }
    *before = start;
  }
  return at;
}

}  // namespace

bool IsInForm(std::string_view text, NormalForm form) {
  const bool is_ascii = std::all_of(text.begin(), text.end(),
                                    [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  size_t before = 0;
  return is_ascii || FindUnsafe(text, 0, Unsafe(form), &before) == text.size();
}

std::string NormalizeUnicode(std::string_view text, NormalForm form) {
  const CodePointBytes& unsafe = Unsafe(form);
  std::string out;
  out.reserve(text.size());
  CodePoints part;
  size_t done = 0;
  while (done < text.size()) {
    size_t begin = 0;
    size_t at = FindUnsafe(text, done, unsafe, &begin);
    if (at == text.size()) break;
    if (begin != at) {
      size_t next = begin;
      if (IsInertInNormalization(NextCodePoint(text, &next))) begin = at;
    }
    out.append(text, done, begin - done);
    part.clear();
    at = begin;
    for (bool first = true; at < text.size(); first = false) {
      size_t next = at;
      const char32_t c = NextCodePoint(text, &next);
      if (!first && unsafe[c] == 0) break;
      Decompose(c, form, &part);
      at = next;
    }
    SortMarks(&part);
    if (Composes(form)) Compose(&part);
    for (const utf8proc_int32_t c : part) AppendUtf8(static_cast<char32_t>(c), &out);
    done = at;
  }
  return out.append(text, done);
}

namespace {

// Letters whose lower case is newer than utf8proc 2.8, which has Unicode 15: `count` in a row.
struct NewLetters {
  char32_t upper;
  char32_t lower;
  char32_t count = 1;
};
constexpr NewLetters kNewLetters[] = {
    {0x1C89, 0x1C8A},       {0xA7CB, 0x264},       {0xA7CC, 0xA7CD}, {0xA7CE, 0xA7CF},
    {0xA7D2, 0xA7D3},       {0xA7D4, 0xA7D5},      {0xA7DA, 0xA7DB}, {0xA7DC, 0x19B},
    {0x10D50, 0x10D70, 22}, {0x16EA0, 0x16EBB, 25}};

char32_t LowerCaseOf(char32_t c) {
  for (const NewLetters& letters : kNewLetters) {
    if (c >= letters.upper && c - letters.upper < letters.count) {
      return letters.lower + (c - letters.upper);
    }
  }
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}

}  // namespace

std::string LowerCase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const char32_t c = NextCodePoint(text, &at);
    if (c == 0x130) {  // the one letter whose lower case is two characters
      out += "i\xCC\x87";
    } else {
      AppendUtf8(LowerCaseOf(c), &out);
    }
  }
  return out;
}

namespace {

constexpr std::array<std::pair<std::string_view, NormalForm>, 4> kNamedForms = {
    {{"NFC", NormalForm::kNfc},
     {"NFD", NormalForm::kNfd},
     {"NFKC", NormalForm::kNfkc},
     {"NFKD", NormalForm::kNfkd}}};

std::string_view StripLeft(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    if (!Contains(WhiteSpace(), NextCodePoint(text, &at))) return text.substr(start);
  }
  return {};
}

std::string_view StripRight(std::string_view text) {
  while (!text.empty()) {
    const size_t start = PreviousStart(text, text.size());
    size_t at = start;
    if (!Contains(WhiteSpace(), NextCodePoint(text, &at))) break;
    text = text.substr(0, start);
  }
  return text;
}

}  // namespace

Normalizer Normalizer::Read(const JsonNode* node, const std::string& file) {
  Normalizer normalizer;
  normalizer.where_ = file + ": normalizer";
  if (node != nullptr && !node->is_null()) normalizer.Add(JsonPart(*node, "normalizer", file));
  return normalizer;
}

void Normalizer::Add(JsonPart part) {
  const std::string& type = part.type();
  if (type == "Sequence") {
    for (JsonPart& inner : part.RequiredParts("normalizers")) Add(std::move(inner));
  } else if (type == "Prepend") {
    steps_.push_back(Prepend{part.RequiredString("prepend")});
  } else if (type == "Replace") {
    Pattern pattern = part.RequiredPattern("pattern");
    steps_.push_back(Replace{std::move(pattern), part.RequiredString("content")});
    if (std::get<Replace>(steps_.back()).content.empty()) may_drop_start_ = true;
  } else if (type == "Lowercase") {
    steps_.push_back(Lowercase{});
  } else if (type == "Strip") {
    Strip strip;
    strip.left = part.RequiredBool("strip_left");
    strip.right = part.RequiredBool("strip_right");
    steps_.push_back(strip);
    if (strip.left) may_drop_start_ = true;
  } else {
    bool known = false;
    for (const auto& [name, form] : kNamedForms) {
      if (type != name) continue;
      steps_.push_back(form);
      known = true;
    }
    if (!known) {
      part.FailType("Sequence, Prepend, Replace, NFC, NFD, NFKC, NFKD, Lowercase, Strip");
    }
  }
  part.Done(steps_.size());
}

// False if `text` stays as it is.
bool Normalizer::Run(const Step& step, std::string_view text, uint64_t most, std::string* out) {
  if (const auto* prepend = std::get_if<Prepend>(&step)) {
    if (text.empty()) return false;
    out->reserve(prepend->text.size() + text.size());
    *out = prepend->text;
    *out += text;
  } else if (const auto* replace = std::get_if<Replace>(&step)) {
    *out = ReplaceMatches(text, replace->pattern, replace->content, most);
  } else if (const auto* form = std::get_if<NormalForm>(&step)) {
    if (IsInForm(text, *form)) return false;
    *out = NormalizeUnicode(text, *form);
  } else if (const auto* strip = std::get_if<Strip>(&step)) {
    if (strip->left) text = StripLeft(text);
    if (strip->right) text = StripRight(text);
    *out = text;
  } else {
    *out = LowerCase(text);
  }
  return true;
}

std::string_view Normalizer::Apply(std::string_view text, std::string* buffer,
                                   bool continues) const {
  std::string next;
  const uint64_t bytes = text.size();
  for (const Step& step : steps_) {
    if (continues && std::holds_alternative<Prepend>(step)) continue;
    next.clear();
    if (!Run(step, text, MostMadeOf(bytes), &next)) continue;
    JsonPart::CheckMade(where_, next.size(), bytes);
    buffer->swap(next);
    text = *buffer;
  }
  return text;
}

}  // namespace zeroplan
