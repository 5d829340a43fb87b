#include "text/tokenizer/regex_syntax.h"

#include <algorithm>
#include <optional>

#include "core/base/error.h"
#include "core/base/strings.h"
#include "text/tokenizer/unicode.h"

namespace zeroplan {
namespace {

constexpr int kMaxDepth = 64;
constexpr CodePointRange kSurrogates = {0xD800, 0xDFFF};

// One code point, such that it has no meaning of its own in or outside of a class.
std::string Literal(char32_t code_point) {
  return fmt::format("\\x{{{:x}}}", uint32_t{code_point});
}

// The inside of a class. PCRE2 refuses surrogates, which no text has.
std::string Ranges(const CodePointSet& set) {
  std::string out;
  for (CodePointRange range : set) {
    if (Contains({&kSurrogates, 1}, range.first)) range.first = kSurrogates.last + 1;
    if (Contains({&kSurrogates, 1}, range.last)) range.last = kSurrogates.first - 1;
    if (range.first > range.last) continue;
    out += Literal(range.first);
    if (range.last != range.first) out += '-' + Literal(range.last);
  }
  return out;
}

bool IsAsciiLetter(char32_t c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }

// A set that the pattern names. `native` is how PCRE2 names the same inside a class, "" if only
// spelling it out will do.
struct NamedSet {
  CodePointSet set;
  std::string native;
};

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where) : text_(pattern), where_(where) {}

  PcrePatterns Run() {
    if (!IsValidUtf8(text_)) Fail("it is not UTF-8");
    Alternatives(0);
    if (at_ < text_.size()) Fail("unmatched )");
    if (!uses_properties_) exact_.clear();
    return {std::move(native_), std::move(exact_)};
  }

 private:
  // Where an atom starts in both patterns.
  struct Mark {
    size_t native = 0;
    size_t exact = 0;
  };

  [[noreturn]] void Fail(std::string_view what) const {
    ThrowUsage("{}the regular expression {} cannot be used: {} (at byte {}); rewrite it", where_,
               text_, what, at_);
  }
  bool AtEnd() const { return at_ >= text_.size(); }
  bool Next(std::string_view what) const { return text_.substr(at_).starts_with(what); }
  bool Take(std::string_view what) {
    if (!Next(what)) return false;
    at_ += what.size();
    return true;
  }
  void Emit(std::string_view both) {
    native_ += both;
    exact_ += both;
  }
  void Emit(std::string_view native, std::string_view exact) {
    native_ += native;
    exact_ += exact;
  }
  Mark Here() const { return {native_.size(), exact_.size()}; }

  void Alternatives(int depth) {
    if (depth > kMaxDepth) Fail("its groups are nested too deep");
    const bool caseless = caseless_;
    while (!AtEnd() && !Next(")")) {
      if (Take("|")) {
        Emit("|");
        last_literal_ = 0;
      } else {
        Quantified(depth);
      }
    }
    caseless_ = caseless;
  }

  void Quantified(int depth) {
    const Mark mark = Here();
    if (!Atom(depth)) return;
    for (bool first = true;; first = false) {
      if (!Quantifier(mark, first)) return;
      last_literal_ = 0;
    }
  }

  // A quantifier, if one comes next. What follows a first one repeats the whole.
  bool Quantifier(const Mark& mark, bool first) {
    const auto group = [&] {
      if (first) return;
      native_.insert(mark.native, "(?:");
      exact_.insert(mark.exact, "(?:");
      Emit(")");
    };
    if (!AtEnd() && (Next("*") || Next("+") || Next("?"))) {
      group();
      Emit(text_.substr(at_++, 1));
      if (Next("+") || Next("?")) Emit(text_.substr(at_++, 1));  // possessive, lazy
      return true;
    }
    if (const std::optional<std::string> interval = Interval()) {
      group();
      Emit(*interval);
      // Neither possessive nor lazy: in Ruby's syntax {n,m}+ repeats what was repeated, {n}? may
      // leave it out.
      if (Next("?")) {
        if (interval->find(',') == std::string::npos) Fail("{n}?");
        ++at_;
        Emit("?");
      }
      return true;
    }
    return false;
  }

  // {n}, {n,}, {n,m} or {,m}; anything else in braces is literal.
  std::optional<std::string> Interval() {
    if (!Next("{")) return std::nullopt;
    const size_t close = text_.find('}', at_);
    if (close == std::string_view::npos) return std::nullopt;
    const std::string_view inside = text_.substr(at_ + 1, close - at_ - 1);
    const size_t comma = inside.find(',');
    const auto is_number = [](std::string_view text) {
      return text.size() <= 5 && text.find_first_not_of("0123456789") == std::string_view::npos;
    };
    const std::string_view least = inside.substr(0, comma);
    const std::string_view most =
        comma == std::string_view::npos ? std::string_view() : inside.substr(comma + 1);
    if (!is_number(least) || !is_number(most) || (least.empty() && most.empty())) {
      return std::nullopt;
    }
    at_ = close + 1;
    if (comma == std::string_view::npos) return fmt::format("{{{}}}", least);
    return fmt::format("{{{},{}}}", least.empty() ? "0" : least, most);
  }

  // False if nothing that can be repeated was read.
  bool Atom(int depth) {
    const char c = text_[at_];
    if (c == '(') return Group(depth);
    if (c == '[') {
      Class();
      return true;
    }
    if (c == '\\') return Escape();
    if (c == '^' || c == '$' || c == '.') {
      ++at_;
      Emit(std::string_view(&c, 1));
      last_literal_ = 0;
      return c == '.';
    }
    if (c == '*' || c == '+' || c == '?') Fail("there is nothing to repeat");
    EmitLiteral(NextCodePoint(text_, &at_));
    return true;
  }

  bool Group(int depth) {
    const bool caseless = caseless_;
    bool is_look_around = false;
    last_literal_ = 0;
    if (Take("(?:") || Take("(?>")) {
      Emit(text_.substr(at_ - 3, 3));
    } else if (Take("(?=") || Take("(?!")) {
      Emit(text_.substr(at_ - 3, 3));
      is_look_around = true;
    } else if (Take("(?<=") || Take("(?<!")) {
      Emit(text_.substr(at_ - 4, 4));
      is_look_around = true;
    } else if (Take("(?i:")) {
      Emit("(?i:");
      caseless_ = true;
    } else if (Take("(?i)")) {
      Emit("(?i)");
      caseless_ = true;
      return false;
    } else if (Next("(?")) {
      Fail("a group of this kind is not known");
    } else {
      Take("(");
      Emit("(?:");
    }
    Alternatives(depth + 1);
    if (!Take(")")) Fail("a group is not closed");
    Emit(")");
    caseless_ = caseless;
    last_literal_ = 0;
    return !is_look_around;
  }

  void EmitLiteral(char32_t code_point) {
    if (caseless_) {
      // Oniguruma folds several characters into one, as 'ss' and U+00DF; PCRE2 does not.
      if (code_point >= 0x80) Fail("characters past ASCII under (?i)");
      const char32_t lower = code_point | 0x20;
      const bool pair = (last_literal_ == 's' && (lower == 's' || lower == 't')) ||
                        (last_literal_ == 'f' && (lower == 'f' || lower == 'i' || lower == 'l'));
      if (pair) Fail("under (?i) this pair of letters also matches a ligature");
      last_literal_ = IsAsciiLetter(code_point) ? lower : 0;
    }
    Emit(Literal(code_point));
  }

  // REQUIRES: at a backslash.
  bool Escape() {
    last_literal_ = 0;
    if (Take("\\A") || Take("\\z")) {
      Emit(text_.substr(at_ - 2, 2));
      return false;
    }
    if (const std::optional<NamedSet> named = Named()) {
      EmitSet(*named);
      return true;
    }
    EmitLiteral(EscapedCharacter());
    return true;
  }

  void EmitSet(const NamedSet& named) {
    const std::string ranges = '[' + Ranges(named.set) + ']';
    Emit(named.native.empty() ? ranges : '[' + named.native + ']', ranges);
  }

  // \s, \d, \w, \h, \p{..} and their complements, if one comes next.
  std::optional<NamedSet> Named() {
    if (at_ + 1 >= text_.size() || text_[at_] != '\\') return std::nullopt;
    const char letter = text_[at_ + 1];
    const char lower = static_cast<char>(letter | 0x20);
    if (lower == 'p' && text_.substr(at_ + 2).starts_with("{")) return Property();
    NamedSet named;
    if (lower == 's') {
      named.set.assign(WhiteSpace().begin(), WhiteSpace().end());
    } else if (lower == 'h') {
      named.set = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
    } else if (lower == 'd' || lower == 'w') {
      uses_properties_ = true;
      named.set = lower == 'd' ? CategorySet("Nd") : WordCharacters();
      if (lower == 'd') named.native = letter == 'd' ? "\\p{Nd}" : "\\P{Nd}";
    } else {
      return std::nullopt;
    }
    if (caseless_) Fail("a class of characters under (?i)");
    at_ += 2;
    if (letter != lower) named.set = Complement(named.set);
    return named;
  }

  NamedSet Property() {
    if (caseless_) Fail("a class of characters under (?i)");
    const size_t close = text_.find('}', at_);
    if (close == std::string_view::npos) Fail("\\p{ is not closed");
    std::string_view name = text_.substr(at_ + 3, close - at_ - 3);
    bool negated = text_[at_ + 1] == 'P';
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    NamedSet named;
    named.set = CategorySet(name);
    if (named.set.empty()) {
      Fail(fmt::format("\\p{{{}}} is no general category such as L, Lu or Nd", name));
    }
    if (negated) named.set = Complement(named.set);
    named.native = fmt::format("\\{}{{{}}}", negated ? 'P' : 'p', name);
    uses_properties_ = true;
    at_ = close + 1;
    return named;
  }

  // REQUIRES: at a backslash that starts no named set.
  char32_t EscapedCharacter() {
    ++at_;
    if (AtEnd()) Fail("a backslash at the end");
    const char c = text_[at_];
    switch (c) {
      case 'n':
        return ++at_, '\n';
      case 't':
        return ++at_, '\t';
      case 'r':
        return ++at_, '\r';
      case 'f':
        return ++at_, '\f';
      case 'v':
        return ++at_, '\v';
      case 'x':
        ++at_;
        return Take("{") ? Hexadecimal(1, 6, true) : Hexadecimal(1, 2, false);
      case 'u':
        ++at_;
        return Hexadecimal(4, 4, false);
      default:
        break;
    }
    if (IsAsciiLetter(static_cast<unsigned char>(c)) || (c >= '0' && c <= '9')) {
      Fail(fmt::format("\\{} is not known", c));
    }
    return NextCodePoint(text_, &at_);
  }

  char32_t Hexadecimal(size_t least, size_t most, bool braces) {
    size_t count = 0;
    char32_t value = 0;
    for (; count < most && !AtEnd(); ++count, ++at_) {
      const size_t digit = std::string_view("0123456789abcdef")
                               .find(IsAsciiLetter(static_cast<unsigned char>(text_[at_]))
                                         ? static_cast<char>(text_[at_] | 0x20)
                                         : text_[at_]);
      if (digit == std::string_view::npos) break;
      value = value * 16 + static_cast<char32_t>(digit);
    }
    if (count < least || (braces && !Take("}"))) Fail("the number of a character is not complete");
    // A byte past ASCII would be a part of a character.
    if (value >= kCodePoints || Contains({&kSurrogates, 1}, value) ||
        (most == 2 && value >= 0x80)) {
      Fail("this is the number of no character");
    }
    return value;
  }

  // REQUIRES: at '['.
  void Class() {
    last_literal_ = 0;
    if (caseless_) CheckCaselessClass();
    const ClassParts parts = ParseClass(0);
    // Outside of what has set operations PCRE2's own notation is kept.
    const std::string ranges = '[' + Ranges(parts.set) + ']';
    if (parts.set.empty()) Fail("a class without characters");
    Emit(parts.native.empty() ? ranges : parts.native, ranges);
  }

  // Only ASCII, no negation: what else a class may match under (?i) differs.
  void CheckCaselessClass() const {
    const size_t close = text_.find(']', at_);
    const std::string_view inside = text_.substr(at_, close - at_);
    const bool plain = std::all_of(inside.begin() + 1, inside.end(), [](char c) {
      return static_cast<unsigned char>(c) < 0x80 &&
             std::string_view("\\[^&").find(c) == std::string_view::npos;
    });
    if (!plain) Fail("a class of characters under (?i)");
  }

  struct ClassParts {
    CodePointSet set;
    std::string native;  // the whole class; "" if it has set operations
  };

  ClassParts ParseClass(int depth) {
    if (depth > kMaxDepth) Fail("its classes are nested too deep");
    ++at_;  // '['
    const bool negated = Take("^");
    CodePointSet set;
    std::optional<CodePointSet> before;  // of the left side of &&
    std::string native;
    bool is_plain = true;
    const auto add = [&](const CodePointSet& more, const std::string& text) {
      set.insert(set.end(), more.begin(), more.end());
      native += text;
    };
    const auto close_side = [&] {
      set = Normalized(std::move(set));
      if (before) set = Intersection(*before, set);
    };
    for (bool first = true;; first = false) {
      if (AtEnd()) Fail("a class is not closed");
      if (Next("]")) {
        if (first) Fail("a class without characters");
        ++at_;
        break;
      }
      if (Next("[:")) Fail("[: :]");
      if (Next("[")) {
        const ClassParts inner = ParseClass(depth + 1);
        is_plain = false;
        add(inner.set, "");
        continue;
      }
      if (Take("&&")) {
        close_side();
        before = std::move(set);
        set.clear();
        is_plain = false;
        continue;
      }
      if (const std::optional<NamedSet> named = Named()) {
        if (Next("-") && !Next("-]")) Fail("a range that starts with a class");
        add(named->set, named->native.empty() ? Ranges(named->set) : named->native);
        continue;
      }
      const char32_t low = ClassCharacter();
      char32_t high = low;
      if (Next("-") && !Next("-]")) {
        ++at_;
        if (AtEnd() || Next("[")) Fail("a range without an end");
        if (Named()) Fail("a range that ends with a class");
        high = ClassCharacter();
        if (high < low) Fail("a range that ends before it starts");
      }
      add({{low, high}}, Ranges({{low, high}}));
    }
    close_side();
    if (negated) set = Complement(set);
    ClassParts parts{std::move(set), {}};
    if (is_plain) parts.native = (negated ? "[^" : "[") + native + ']';
    return parts;
  }

  char32_t ClassCharacter() { return Next("\\") ? EscapedCharacter() : NextCodePoint(text_, &at_); }

  std::string_view text_, where_;
  size_t at_ = 0;
  std::string native_, exact_;
  bool uses_properties_ = false;
  bool caseless_ = false;
  char32_t last_literal_ = 0;  // the letter before, in lower case, under (?i)
};

}  // namespace

PcrePatterns TranslateRegex(std::string_view pattern, std::string_view where) {
  return Translator(pattern, where).Run();
}

}  // namespace zeroplan
