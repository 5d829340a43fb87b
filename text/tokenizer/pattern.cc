#include "text/tokenizer/pattern.h"

#include <oniguruma.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/strings.h"
#include "text/tokenizer/unicode.h"

namespace zeroplan {
namespace {

// What one search may take. The package has the first limit alone, and fails there too.
constexpr size_t kMostShown = 200;  // bytes of a pattern in a message
constexpr unsigned long kMostRetriesInMatch = 10'000'000;
constexpr unsigned long kMostRetriesInSearch = 100'000'000;
constexpr unsigned kMostStackEntries = 8'000'000;  // of 40 bytes
constexpr unsigned kMostNesting = 250;

// Categories that gained code points after Unicode 14, which Oniguruma has in Debian 12. Oniguruma
// takes 20 definitions at most.
constexpr const char* kDefined[] = {"L",  "M",  "N",  "P",  "S",  "C",  "Lu", "Ll", "Lm", "Lo",
                                    "Mn", "Mc", "Nd", "No", "Pd", "Po", "Sm", "So", "Cf", "Cn"};

template <typename... Info>
std::string MessageOf(int error, Info*... info) {
  UChar text[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int length = onig_error_code_to_str(text, error, info...);
  return std::string(reinterpret_cast<const char*>(text), static_cast<size_t>(length));
}

// Sets up Oniguruma for the process. \p{..} of a category means what unicode.h says, whatever the
// library's version of Unicode; scripts, \w, \d, \b and POSIX brackets mean what the library says.
void Initialize() {
  static const bool done = [] {
    OnigEncoding encoding = ONIG_ENCODING_UTF8;
    ZEROPLAN_CHECK(onig_initialize(&encoding, 1) == ONIG_NORMAL);
    onig_set_parse_depth_limit(kMostNesting);
    // Oniguruma keeps pointers into them, to the end of the process.
    static auto* const defined = new std::vector<std::vector<OnigCodePoint>>;
    for (const char* name : kDefined) {
      std::vector<OnigCodePoint>& ranges = defined->emplace_back(1);
      for (const CodePointRange& range : CategorySet(name)) {
        ranges.insert(ranges.end(), {range.first, range.last});
      }
      ranges.front() = static_cast<OnigCodePoint>(ranges.size() / 2);
      ZEROPLAN_CHECK(onig_unicode_define_user_property(name, ranges.data()) == ONIG_NORMAL);
    }
    return true;
  }();
  ZEROPLAN_CHECK(done);
}

// What a thread matches with, whatever the expression.
struct Matcher {
  OnigRegion* region = onig_region_new();
  OnigMatchParam* limits = onig_new_match_param();

  Matcher() {
    ZEROPLAN_CHECK(region != nullptr && limits != nullptr);
    onig_initialize_match_param(limits);
    onig_set_retry_limit_in_match_of_match_param(limits, kMostRetriesInMatch);
    onig_set_retry_limit_in_search_of_match_param(limits, kMostRetriesInSearch);
    onig_set_match_stack_limit_size_of_match_param(limits, kMostStackEntries);
  }
  ~Matcher() {
    onig_region_free(region, 1);
    onig_free_match_param(limits);
  }
};

}  // namespace

void Regex::Free::operator()(re_pattern_buffer* compiled) const { onig_free(compiled); }

Regex::Regex(std::string_view pattern, std::string_view where) : pattern_(pattern), where_(where) {
  Initialize();
  const auto fail = [&](std::string_view what) {
    ThrowUsage("{}the regular expression {} cannot be used: {}; rewrite it", where_,
               PrintableText(pattern_, kMostShown), PrintableText(what, kMostShown));
  };
  if (!IsValidUtf8(pattern_)) fail("it is not UTF-8");
  // Before 6.9.9 these are without $+<=>^`|~, which they are with in the package.
  if (ONIGURUMA_VERSION_INT < 60909 && (pattern_.find("punct") != std::string::npos ||
                                        pattern_.find("Punct") != std::string::npos)) {
    fail("this version of Oniguruma has another [[:punct:]] than the package `tokenizers`");
  }
  const auto* units = reinterpret_cast<const UChar*>(pattern_.data());
  OnigRegex compiled = nullptr;
  OnigErrorInfo info;
  if (const int error = onig_new(&compiled, units, units + pattern_.size(), ONIG_OPTION_NONE,
                                 ONIG_ENCODING_UTF8, ONIG_SYNTAX_DEFAULT, &info);
      error != ONIG_NORMAL) {
    fail(MessageOf(error, &info));
  }
  compiled_.reset(compiled);
}

void Regex::ForEachMatch(std::string_view text,
                         const std::function<void(size_t, size_t)>& on_match) const {
  thread_local const Matcher matcher;
  const auto* begin_of_text = reinterpret_cast<const UChar*>(text.data());
  const UChar* end_of_text = begin_of_text + text.size();
  size_t last_end = std::string_view::npos;
  for (size_t from = 0; from <= text.size();) {
    const int found =
        onig_search_with_param(compiled_.get(), begin_of_text, end_of_text, begin_of_text + from,
                               end_of_text, matcher.region, ONIG_OPTION_NONE, matcher.limits);
    if (found == ONIG_MISMATCH) return;
    if (found < 0) {
      ThrowUsage("{}the regular expression {} gave up on a text ({}); simplify it", where_,
                 PrintableText(pattern_, kMostShown), MessageOf(found));
    }
    const auto begin = static_cast<size_t>(matcher.region->beg[0]);
    const auto end = static_cast<size_t>(matcher.region->end[0]);
    if (begin == end && end == last_end) {
      from = end + (end < text.size() ? Utf8Length(text[end]) : 1);
      continue;
    }
    from = last_end = end;
    on_match(begin, end);
  }
}

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

namespace {

// Collects matches and fills the gaps between them.
class Parts {
 public:
  explicit Parts(std::vector<Part>* parts) : parts_(parts) {}
  void Match(size_t begin, size_t end) {
    Gap(begin);
    parts_->push_back({{begin, end}, true});
    at_ = end;
  }
  void Gap(size_t end) {
    if (at_ != end) parts_->push_back({{at_, end}, false});
  }

 private:
  std::vector<Part>* parts_;
  size_t at_ = 0;
};

}  // namespace

std::optional<SplitBehavior> SplitBehaviorOf(std::string_view name) {
  static constexpr std::array<std::pair<std::string_view, SplitBehavior>, 5> kNames = {
      {{"Removed", SplitBehavior::kRemoved},
       {"Isolated", SplitBehavior::kIsolated},
       {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
       {"MergedWithNext", SplitBehavior::kMergedWithNext},
       {"Contiguous", SplitBehavior::kContiguous}}};
  for (const auto& [known, behavior] : kNames) {
    if (known == name) return behavior;
  }
  return std::nullopt;
}

Pattern Pattern::Text(std::string text) {
  ZEROPLAN_CHECK(!text.empty());
  Pattern pattern;
  pattern.text_ = std::move(text);
  return pattern;
}

Pattern Pattern::Expression(std::string_view expression, std::string_view where) {
  Pattern pattern;
  pattern.scanner_ = ScannerFor(expression);
  if (pattern.scanner_ == nullptr) pattern.regex_ = std::make_shared<Regex>(expression, where);
  return pattern;
}

Pattern Pattern::Characters(CharacterTest test) {
  Pattern pattern;
  pattern.test_ = test;
  return pattern;
}

void Pattern::Find(std::string_view text, std::vector<Part>* parts) const {
  Parts found(parts);
  if (scanner_ != nullptr) {
    for (size_t at = 0; at < text.size();) {
      const size_t end = scanner_(text, at);
      found.Match(at, end);
      at = end;
    }
    return;
  }
  if (regex_ != nullptr) {
    regex_->ForEachMatch(text, [&](size_t begin, size_t end) { found.Match(begin, end); });
  } else if (test_ != nullptr) {
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      if (test_(NextCodePoint(text, &at))) found.Match(begin, at);
    }
  } else {
    for (size_t at = text.find(text_); at != std::string_view::npos;
         at = text.find(text_, at + text_.size())) {
      found.Match(at, at + text_.size());
    }
  }
  found.Gap(text.size());
}

std::string ReplaceMatches(std::string_view text, const Pattern& pattern, std::string_view content,
                           uint64_t most) {
  std::string out;
  if (text.empty()) return out;
  out.reserve(text.size() + text.size() / 2);
  if (const std::string& wanted = pattern.text(); !wanted.empty()) {
    size_t from = 0;
    for (size_t at = text.find(wanted); at != std::string_view::npos;
         at = text.find(wanted, from)) {
      out.append(text, from, at - from).append(content);
      from = at + wanted.size();
      if (out.size() > most) return out;
    }
    return out.append(text, from);
  }
  std::vector<Part> parts;
  pattern.Find(text, &parts);
  for (const Part& part : parts) {
    out +=
        part.is_match ? content : text.substr(part.piece.begin, part.piece.end - part.piece.begin);
    if (out.size() > most) break;
  }
  return out;
}

void Cut(const std::vector<Part>& parts, SplitBehavior behavior, bool invert, size_t offset,
         std::vector<Piece>* pieces) {
  const size_t first = pieces->size();
  const auto add = [&](const Piece& piece) {
    pieces->push_back({piece.begin + offset, piece.end + offset});
  };
  const auto has_pieces = [&] { return pieces->size() > first; };
  bool previous = false;  // whether the part before (for kMergedWithNext: behind) was a match
  if (behavior == SplitBehavior::kMergedWithNext) {
    for (size_t i = parts.size(); i-- > 0;) {
      const bool is_match = parts[i].is_match != invert;
      if (is_match && !previous && has_pieces()) {
        pieces->back().begin = parts[i].piece.begin + offset;
      } else {
        add(parts[i].piece);
      }
      previous = is_match;
    }
    std::reverse(pieces->begin() + static_cast<std::ptrdiff_t>(first), pieces->end());
  } else {
    for (const Part& part : parts) {
      const bool is_match = part.is_match != invert;
      if (is_match && behavior == SplitBehavior::kRemoved) continue;
      const bool joins =
          (behavior == SplitBehavior::kMergedWithPrevious && is_match && !previous) ||
          (behavior == SplitBehavior::kContiguous && is_match == previous);
      if (joins && has_pieces()) {
        pieces->back().end = part.piece.end + offset;
      } else {
        add(part.piece);
      }
      previous = is_match;
    }
  }
  const auto is_empty = [](const Piece& piece) { return piece.begin == piece.end; };
  pieces->erase(
      std::remove_if(pieces->begin() + static_cast<std::ptrdiff_t>(first), pieces->end(), is_empty),
      pieces->end());
}

}  // namespace zeroplan
