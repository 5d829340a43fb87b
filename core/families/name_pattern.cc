#include "core/families/name_pattern.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/strings.h"

namespace zeroplan {
namespace {

using CharSet = std::bitset<128>;

bool IsDecimal(char c) { return c >= '0' && c <= '9'; }
bool IsAsciiLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsOfWord(char c) { return IsDecimal(c) || IsAsciiLetter(c) || c == '_'; }
bool IsPatternSpace(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r') || (c >= '\x1c' && c <= '\x1f');
}

template <typename Test>
CharSet SetOf(Test test) {
  CharSet set;
  for (int c = 0; c < 128; ++c) set[static_cast<size_t>(c)] = test(static_cast<char>(c));
  return set;
}

}  // namespace

// Reads an expression into steps: the parts of a part are written as they are read, and what is
// repeated is written again from its text.
class NamePatternReader {
 public:
  NamePatternReader(std::string_view text, std::string_view where, NamePattern& pattern)
      : text_(text), where_(where), pattern_(pattern) {}

  void Read() {
    if (text_.size() > kMostChars) Refuse("is longer than 4096 characters");
    for (const char c : text_) {
      if (static_cast<unsigned char>(c) >= 128) Refuse("has characters that are not ASCII");
    }
    Alternatives(0);
    if (at_ < text_.size()) Refuse("has a ) too many");
    Add({});
  }

 private:
  using Kind = NamePattern::Kind;
  using Step = NamePattern::Step;
  static constexpr size_t kMostChars = 4096, kMostSteps = 8192;
  static constexpr int kMostDepth = 100, kMostTimes = 1000, kNoEnd = -1;

  [[noreturn]] void Refuse(std::string_view why) const {
    ThrowUsage("{}the pattern {} {}; list the names instead", where_, PrintableText(text_, 80),
               why);
  }

  bool More() const { return at_ < text_.size(); }
  bool Take(char c) {
    if (!More() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  int Size() const { return static_cast<int>(pattern_.program_.size()); }
  Step& At(int step) { return pattern_.program_[static_cast<size_t>(step)]; }
  int Add(Step step) {
    if (pattern_.program_.size() >= kMostSteps) Refuse("repeats too much");
    step.next = Size() + 1;
    pattern_.program_.push_back(step);
    return Size() - 1;
  }
  void AddSet(const CharSet& set) {
    pattern_.sets_.push_back(set);
    Add({.kind = Kind::kSet, .set = static_cast<int>(pattern_.sets_.size()) - 1});
  }
  // Makes room for a step in front of the one at `place`, whose targets move along.
  void InsertSplit(int place) {
    Add({});
    auto& program = pattern_.program_;
    std::rotate(program.begin() + place, program.end() - 1, program.end());
    for (int i = place + 1; i < Size(); ++i) {  // nothing before goes further than to here
      for (int* target : {&At(i).next, &At(i).other}) *target += *target >= place ? 1 : 0;
    }
    At(place) = {.kind = Kind::kSplit, .next = place + 1};
  }

  void Alternatives(int depth) {
    if (depth > kMostDepth) Refuse("nests groups too deeply");
    std::vector<int> ends;
    int start = Size();
    for (;;) {
      while (More() && text_[at_] != '|' && text_[at_] != ')') Repeated(depth);
      if (!Take('|')) break;
      InsertSplit(start);
      ends.push_back(Add({.kind = Kind::kSplit}));
      At(start).other = Size();
      start = Size();
    }
    for (const int end : ends) At(end).next = At(end).other = Size();
  }

  struct Times {
    int least = 1, most = 1;  // most: kNoEnd
  };

  std::optional<Times> ReadTimes() {
    if (Take('*')) return Times{0, kNoEnd};
    if (Take('+')) return Times{1, kNoEnd};
    if (Take('?')) return Times{0, 1};
    const size_t start = at_;
    const auto number = [this] {
      int value = -1;
      for (; More() && IsDecimal(text_[at_]); ++at_) {
        value = std::min(std::max(value, 0) * 10 + (text_[at_] - '0'), kMostTimes + 1);
      }
      return value;
    };
    if (!Take('{')) return std::nullopt;
    const int least = number();
    const bool comma = Take(',');
    const int most = comma ? number() : least;
    if (!Take('}') || (least < 0 && !comma)) {  // to Python these are characters
      at_ = start;
      return std::nullopt;
    }
    if (std::max(least, most) > kMostTimes) Refuse("repeats more than 1000 times");
    if (most >= 0 && most < least) Refuse("repeats fewer times than it has to");
    return Times{std::max(least, 0), comma && most < 0 ? kNoEnd : most};
  }

  void Repeated(int depth) {
    const size_t begin = at_;
    const int start = Size();
    const bool repeatable = One(depth);
    const size_t end = at_;
    const std::optional<Times> times = ReadTimes();
    if (!times) return;
    if (!repeatable) Refuse("repeats what cannot be");
    Take('?');  // as few as can be: of no matter to whether it matches
    if (More() && (text_[at_] == '*' || text_[at_] == '+' || text_[at_] == '?')) {
      Refuse("has possessive or doubled repetitions, which are not read");
    }
    const size_t after = at_;
    if (ReadTimes()) Refuse("has doubled repetitions, which are not read");
    at_ = after;
    const int copies = std::max({times->least, times->most, 1});
    std::vector<int> skips;
    for (int i = 0; i < copies; ++i) {
      const int place = i == 0 ? start : Size();
      if (i > 0) {
        if (++copied_ > kMostSteps) Refuse("repeats too much");
        at_ = begin;
        One(depth);
        at_ = end;
      }
      if (i >= times->least) {
        InsertSplit(place);
        skips.push_back(place);
      }
      if (times->most == kNoEnd && i == copies - 1) {
        const int first = i >= times->least ? place + 1 : place;
        const int again = Add({.kind = Kind::kSplit});
        At(again).other = first;
      }
    }
    for (const int skip : skips) At(skip).other = Size();
    at_ = after;
  }

  // A character, set, group or place. False: it cannot be repeated.
  bool One(int depth) {
    const char c = text_[at_];
    if (c == '*' || c == '+' || c == '?') Refuse("repeats nothing");
    const size_t start = at_;
    if (c == '{' && ReadTimes()) Refuse("repeats nothing");
    at_ = start + 1;
    switch (c) {
      case '(':
        Group(depth);
        return true;
      case '[':
        Bracketed();
        return true;
      case '.':
        AddSet(SetOf([](char any) { return any != '\n'; }));
        return true;
      case '^':
        Add({.kind = Kind::kStart});
        return false;
      case '$':
        Add({.kind = Kind::kEnd});
        return false;
      case '\\':
        return Escaped();
      default:
        AddSet(SetOf([c](char any) { return any == c; }));
        return true;
    }
  }

  void Group(int depth) {
    if (Take('?') && !Take(':')) {
      const size_t close = text_.find('>', at_);
      if (!text_.substr(at_).starts_with("P<") || close == std::string_view::npos) {
        Refuse("looks around, sets flags or refers to groups, which is not read");
      }
      at_ = close + 1;
    }
    Alternatives(depth + 1);
    if (!Take(')')) Refuse("has a ( that nothing closes");
  }

  // The set of \d, \w, \s and their opposites.
  static std::optional<CharSet> ClassOf(char letter) {
    switch (letter) {
      case 'd':
        return SetOf(IsDecimal);
      case 'D':
        return ~SetOf(IsDecimal);
      case 'w':
        return SetOf(IsOfWord);
      case 'W':
        return ~SetOf(IsOfWord);
      case 's':
        return SetOf(IsPatternSpace);
      case 'S':
        return ~SetOf(IsPatternSpace);
      default:
        return std::nullopt;
    }
  }

  bool Escaped() {
    if (!More()) Refuse("ends in a \\");
    const char c = text_[at_++];
    if (const std::optional<CharSet> set = ClassOf(c)) {
      AddSet(*set);
      return true;
    }
    const std::pair<char, Kind> places[] = {
        {'b', Kind::kBorder}, {'B', Kind::kNoBorder}, {'A', Kind::kStart}, {'Z', Kind::kEnd}};
    for (const auto& [letter, kind] : places) {
      if (letter != c) continue;
      Add({.kind = kind});
      return false;
    }
    if (IsDecimal(c) || IsAsciiLetter(c)) Refuse("has an escaped letter or digit that is not read");
    AddSet(SetOf([c](char any) { return any == c; }));
    return true;
  }

  // A character of a set in brackets, or a whole class.
  std::optional<char> Member(CharSet& set) {
    if (!More()) Refuse("has a [ that nothing closes");
    const char c = text_[at_++];
    if (c != '\\') return c;
    if (!More()) Refuse("ends in a \\");
    const char escaped = text_[at_++];
    if (const std::optional<CharSet> all = ClassOf(escaped)) {
      set |= *all;
      return std::nullopt;
    }
    if (IsDecimal(escaped) || IsAsciiLetter(escaped)) {
      Refuse("has an escaped letter or digit that is not read");
    }
    return escaped;
  }

  void Bracketed() {
    const bool others = Take('^');
    CharSet set;
    for (bool first = true; first || !Take(']'); first = false) {
      const std::optional<char> low = Member(set);
      const bool range = at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']';
      if (!range) {
        if (low) set.set(static_cast<size_t>(*low));
        continue;
      }
      ++at_;
      const std::optional<char> high = Member(set);
      if (!low || !high || *high < *low) Refuse("has a range of characters that is none");
      for (char c = *low; c < *high; ++c) set.set(static_cast<size_t>(c));
      set.set(static_cast<size_t>(*high));
    }
    AddSet(others ? ~set : set);
  }

  std::string_view text_, where_;
  NamePattern& pattern_;
  size_t at_ = 0, copied_ = 0;
};

NamePattern::NamePattern(std::string_view pattern, std::string_view where) {
  NamePatternReader(pattern, where, *this).Read();
}

bool NamePattern::Run(std::string_view name, bool whole, int64_t& steps) const {
  std::vector<int> places, next, open;
  std::vector<size_t> seen(program_.size(), 0);  // by step: 1 + the position that it was reached at
  steps -= size() / 8;                           // what `seen` takes
  places.push_back(0);
  for (size_t at = 0; at <= name.size() && !places.empty(); ++at) {
    const bool word_before = at > 0 && IsOfWord(name[at - 1]);
    const bool border = word_before != (at < name.size() && IsOfWord(name[at]));
    next.clear();
    open.assign(places.rbegin(), places.rend());
    while (!open.empty()) {
      const int place = open.back();
      open.pop_back();
      if (--steps < 0) return false;
      if (std::exchange(seen[static_cast<size_t>(place)], at + 1) == at + 1) continue;
      const Step& step = program_[static_cast<size_t>(place)];
      switch (step.kind) {
        case Kind::kMatch:
          if (!whole || at == name.size()) return true;
          break;
        case Kind::kSet: {
          const auto c = static_cast<unsigned char>(at < name.size() ? name[at] : 0);
          if (at < name.size() && c < 128 && sets_[static_cast<size_t>(step.set)][c]) {
            next.push_back(step.next);
          }
          break;
        }
        case Kind::kSplit:
          open.push_back(step.other);
          open.push_back(step.next);
          break;
        case Kind::kStart:
          if (at == 0) open.push_back(step.next);
          break;
        case Kind::kEnd:
          if (at == name.size()) open.push_back(step.next);
          break;
        case Kind::kBorder:
          if (border) open.push_back(step.next);
          break;
        case Kind::kNoBorder:
          if (!border) open.push_back(step.next);
          break;
      }
    }
    std::swap(places, next);
  }
  return false;
}

}  // namespace zeroplan
