// What Python does with texts: text.name(arguments), but for cases and formats.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "core/base/strings.h"
#include "text/jinja/evaluate.h"

namespace zeroplan::jinja {

// memmem looks in linear time.
std::optional<size_t> FindBytes(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::nullopt;
  Read(part.size());
  if (part.empty()) return from;
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  const size_t end = found == nullptr
                         ? text.size()
                         : static_cast<size_t>(static_cast<const char*>(found) - text.data());
  Read(end - from);
  return found == nullptr ? std::nullopt : std::optional(end);
}

namespace {

// Where `part` stands, from one after the other on, at most `most` times (-1: any).
std::vector<size_t> PlacesOf(std::string_view text, std::string_view part, int64_t most) {
  std::vector<size_t> places;
  for (size_t from = 0; most < 0 || static_cast<int64_t>(places.size()) < most;) {
    const std::optional<size_t> at = FindBytes(text, part, from);
    if (!at) break;
    Step();
    places.push_back(*at);
    from = *at + part.size();
  }
  return places;
}

// The same, from the end of the text on; rising.
std::vector<size_t> PlacesFromEnd(std::string_view text, std::string_view part, int64_t most) {
  Make(text.size() + part.size());
  const std::string reversed(text.rbegin(), text.rend());
  const std::string reversed_part(part.rbegin(), part.rend());
  std::vector<size_t> places = PlacesOf(reversed, reversed_part, most);
  for (size_t& place : places) place = text.size() - place - part.size();
  std::reverse(places.begin(), places.end());
  return places;
}

bool HasCodePoint(std::string_view characters, char32_t wanted) {
  for (size_t at = 0; at < characters.size();) {
    if (NextCodePoint(characters, &at) == wanted) return true;
  }
  return false;
}

// strip("..."): without these characters at its ends. `sides`: 1 left, 2 right, 3 both.
Text Stripped(const Text& text, int sides, const Text* characters) {
  if (characters == nullptr) {
    const Range range = WithoutSpace(text.bytes, sides);
    return text.Part(range.begin, range.end);
  }
  const std::string& set = characters->bytes;
  Range range = {0, text.bytes.size()};
  while ((sides & 1) != 0 && range.begin < range.end) {
    Step(1 + set.size() / 64);
    size_t at = range.begin;
    if (!HasCodePoint(set, NextCodePoint(text.bytes, &at))) break;
    range.begin = at;
  }
  while ((sides & 2) != 0 && range.begin < range.end) {
    Step(1 + set.size() / 64);
    const size_t start = PreviousStart(text.bytes, range.end);
    size_t at = start;
    if (!HasCodePoint(set, NextCodePoint(text.bytes, &at))) break;
    range.end = start;
  }
  return text.Part(range.begin, range.end);
}

// The parts of `text` between the bytes [place, place + width) of `places`.
List Between(const Text& text, const std::vector<size_t>& places, size_t width) {
  List parts;
  size_t done = 0;
  for (const size_t at : places) {
    parts.push_back(text.Part(done, at));
    done = at + width;
  }
  parts.push_back(text.Part(done, text.bytes.size()));
  return parts;
}

// split() and rsplit() at white space: words. Behind `most` splits the rest is one.
List Words(const Text& text, int64_t most, bool from_end) {
  const std::string& bytes = text.bytes;
  List words;
  Range range = WithoutSpace(bytes, 3);
  const auto is_space = [&](size_t at) { return IsPythonSpace(NextCodePoint(bytes, &at)); };
  while (range.begin < range.end) {
    size_t begin = range.begin, end = range.end;
    if (most >= 0 && static_cast<int64_t>(words.size()) >= most) {
      // The rest keeps the white space at its far end.
      words.push_back(text.Part(from_end ? 0 : begin, from_end ? end : bytes.size()));
      break;
    }
    if (from_end) {
      for (begin = end; begin > range.begin && !is_space(PreviousStart(bytes, begin));) {
        begin = PreviousStart(bytes, begin);
      }
    } else {
      for (end = begin; end < range.end && !is_space(end);) end += Utf8Length(bytes[end]);
    }
    words.push_back(text.Part(begin, end));
    if (from_end) {
      range.end =
          range.begin +
          WithoutSpace(std::string_view(bytes).substr(range.begin, begin - range.begin), 2).end;
    } else {
      range.begin =
          end + WithoutSpace(std::string_view(bytes).substr(end, range.end - end), 1).begin;
    }
  }
  if (from_end) std::reverse(words.begin(), words.end());
  return words;
}

List SplitBy(const Text& text, const Text* separator, int64_t most, bool from_end) {
  Read(text.bytes.size());
  if (separator == nullptr) return Words(text, most, from_end);
  if (separator->bytes.empty()) Fail("split at an empty text");
  return Between(text,
                 from_end ? PlacesFromEnd(text.bytes, separator->bytes, most)
                          : PlacesOf(text.bytes, separator->bytes, most),
                 separator->bytes.size());
}

// What is before, is, and is behind the first or the last `separator`.
Value Partitioned(const Text& text, const Text& separator, bool last) {
  if (separator.bytes.empty()) Fail("partition at an empty text");
  const std::vector<size_t> places = last ? PlacesFromEnd(text.bytes, separator.bytes, 1)
                                          : PlacesOf(text.bytes, separator.bytes, 1);
  const Value nothing = Value::Of("");
  if (places.empty()) {
    return Value::Tuple(last ? List{nothing, nothing, text} : List{text, nothing, nothing});
  }
  const size_t behind = places[0] + separator.bytes.size();
  return Value::Tuple({text.Part(0, places[0]), text.Part(places[0], behind),
                       text.Part(behind, text.bytes.size())});
}

// Bytes of the characters that arguments 1 and 2 of find, count, startswith and others choose.
struct Chosen {
  bool exists = true;  // it may be that the begin is behind the end of the text
  size_t begin = 0, end = 0;
  int64_t characters_before = 0;
};

Chosen Choose(const Text& text, const Bound& bound) {
  Chosen chosen;
  chosen.end = text.bytes.size();
  const auto given = [&](size_t i) { return bound.IsGiven(i) && !bound[i]->is_none(); };
  if (!given(1) && !given(2)) return chosen;
  const auto length = static_cast<int64_t>(CodePoints(text.bytes));
  const auto place = [&](size_t i, int64_t otherwise) {
    if (!given(i)) return otherwise;
    const int64_t at = bound.Integer(i, 0);
    return at < 0 ? std::max<int64_t>(at + length, 0) : at;
  };
  const int64_t begin = place(1, 0), end = std::min(place(2, length), length);
  chosen.exists = begin <= end;
  if (!chosen.exists) return chosen;
  chosen.characters_before = begin;
  chosen.begin = CodePointPart(text, 0, begin).bytes.size();
  chosen.end = chosen.begin + CodePointPart(text, begin, end).bytes.size();
  return chosen;
}

Value FindIn(std::string_view name, const Text& text, const Bound& bound) {
  const bool from_end = name[0] == 'r';
  const Chosen chosen = Choose(text, bound);
  const std::string_view within =
      std::string_view(text.bytes).substr(chosen.begin, chosen.end - chosen.begin);
  const Text* part = bound.TextOf(0);
  if (part == nullptr) Fail(std::string(name) + " of none");
  std::optional<size_t> at;
  if (chosen.exists && from_end) {
    const std::vector<size_t> places = PlacesFromEnd(within, part->bytes, 1);
    if (!places.empty()) at = places[0];
  } else if (chosen.exists) {
    at = FindBytes(within, part->bytes, 0);
  }
  if (at) return chosen.characters_before + static_cast<int64_t>(CodePoints(within.substr(0, *at)));
  if (name.ends_with("index")) Fail(std::string(name) + " of what is not in the text");
  return int64_t{-1};
}

Value Count(const Text& text, const Bound& bound) {
  const Chosen chosen = Choose(text, bound);
  const Text* part = bound.TextOf(0);
  if (part == nullptr) Fail("count of none");
  if (!chosen.exists) return int64_t{0};
  const std::string_view within =
      std::string_view(text.bytes).substr(chosen.begin, chosen.end - chosen.begin);
  if (part->bytes.empty()) return static_cast<int64_t>(CodePoints(within)) + 1;
  return static_cast<int64_t>(PlacesOf(within, part->bytes, -1).size());
}

Value StartsOrEnds(std::string_view name, const Text& text, const Bound& bound) {
  const Chosen chosen = Choose(text, bound);
  const std::string_view within =
      std::string_view(text.bytes).substr(chosen.begin, chosen.end - chosen.begin);
  const Value& wanted = bound.Need(0);
  const bool is_tuple =
      wanted.list() != nullptr && wanted.sequence()->kind == Sequence::Kind::kTuple;
  bool passes = false;
  for (const Value& part : is_tuple ? *wanted.list() : List{wanted}) {
    NeedDefined(part);
    if (part.text() == nullptr) Fail(fmt::format("{} of {}", name, part.KindName()));
    const std::string& bytes = part.text()->bytes;
    Read(bytes.size());
    passes = passes || (chosen.exists && (name == "startswith" ? within.starts_with(bytes)
                                                               : within.ends_with(bytes)));
  }
  return passes;
}

Value Join(const Text& separator, const Value& parts) {
  Output out;
  bool first = true;
  for (const Value& part : Elements(parts)) {
    NeedDefined(part);
    if (part.text() == nullptr) Fail("join of " + std::string(part.KindName()));
    if (!std::exchange(first, false)) out.Append(separator);
    out.Append(*part.text());
  }
  return out.Take();
}

Value Padded(std::string_view name, const Text& text, const Bound& bound) {
  const int64_t width = bound.Integer(0, 0);
  const auto length = static_cast<int64_t>(CodePoints(text.bytes));
  const Text* given = bound.IsGiven(1) ? bound.TextOf(1) : nullptr;
  const Text fill = given != nullptr ? *given : Text{" ", {}};
  if (CodePoints(fill.bytes) != 1) Fail(std::string(name) + " with what is no character");
  const int64_t missing = std::max<int64_t>(width - length, 0);
  // As CPython's str.center shares out what is odd.
  const int64_t left = name == "ljust"   ? 0
                       : name == "rjust" ? missing
                                         : missing / 2 + (missing & width & 1);
  Step(static_cast<uint64_t>(missing));
  Output out;
  for (int64_t i = 0; i < left; ++i) out.Append(fill);
  out.Append(text);
  for (int64_t i = left; i < missing; ++i) out.Append(fill);
  return out.Take();
}

Value ZeroFilled(const Text& text, int64_t width) {
  const auto length = static_cast<int64_t>(CodePoints(text.bytes));
  const auto missing = static_cast<size_t>(std::max<int64_t>(width - length, 0));
  Make(missing);
  const size_t sign = text.bytes.starts_with('-') || text.bytes.starts_with('+') ? 1 : 0;
  Text out = text.Part(0, sign);
  out.Append(std::string(missing, '0'));
  out.Append(text.Part(sign, text.bytes.size()));
  return out;
}

// Methods of texts that give texts, or lists of them: what is safe stays so.
std::optional<Value> CallTextToText(std::string_view name, const Text& text,
                                    const Arguments& arguments) {
  const auto none = [&] { return Bound(name, {}, arguments); };
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Bound bound(name, {"characters"}, arguments);
    return Stripped(text, name == "strip" ? 3 : name == "lstrip" ? 1 : 2, bound.TextOf(0));
  }
  if (name == "upper") return none(), Upper(text);
  if (name == "lower") return none(), Lower(text);
  if (name == "capitalize") return none(), Capitalized(text);
  if (name == "title") return none(), Titled(text);
  if (name == "removeprefix" || name == "removesuffix") {
    const Text* part = Bound(name, {"part"}, arguments).TextOf(0);
    if (part == nullptr) Fail(std::string(name) + " of none");
    const size_t size = text.bytes.size(), other = part->bytes.size();
    if (name == "removeprefix")
      return text.Part(text.bytes.starts_with(part->bytes) ? other : 0, size);
    return text.Part(0, size - (text.bytes.ends_with(part->bytes) ? other : 0));
  }
  if (name == "replace") {
    const Bound bound(name, {"old", "new", "count"}, arguments);
    const Text *from = bound.TextOf(0), *to = bound.TextOf(1);
    if (from == nullptr || to == nullptr) Fail("replace of none, or by it");
    return Replaced(text, *from, *to, bound.Integer(2, -1));
  }
  if (name == "center" || name == "ljust" || name == "rjust") {
    return Padded(name, text, Bound(name, {"width", "fill"}, arguments));
  }
  if (name == "zfill") return ZeroFilled(text, Bound(name, {"width"}, arguments).Integer(0, 0));
  return std::nullopt;
}

}  // namespace

Text Replaced(const Text& text, const Text& from, const Text& to, int64_t most) {
  std::vector<size_t> places;
  if (from.bytes.empty()) {  // before each character, and at the end
    for (size_t at = 0; most < 0 || static_cast<int64_t>(places.size()) < most;
         at += Utf8Length(text.bytes[at])) {
      Step();
      places.push_back(at);
      if (at == text.bytes.size()) break;
    }
  } else {
    places = PlacesOf(text.bytes, from.bytes, most);
  }
  if (to.Cost() > 0 && places.size() > SIZE_MAX / to.Cost()) Make(SIZE_MAX);
  Make(text.Cost() + places.size() * to.Cost());
  Text out;
  size_t done = 0;
  for (const size_t at : places) {
    out.Append(text.Part(done, at));
    out.Append(to);
    done = at + from.bytes.size();
  }
  out.Append(text.Part(done, text.bytes.size()));
  return out;
}

bool NeedsEscape(std::string_view text) {
  return text.find_first_of("&<>'\"") != std::string_view::npos;
}

Text Escaped(const Text& text) {
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"'", "&#39;"}, {"\"", "&#34;"}};
  Text out = text;
  for (const auto& [sign, escape] : kNames) {
    out = Replaced(out, {std::string(sign), {}}, {std::string(escape), {}}, -1);
  }
  // What stands for what a message says is that message's.
  if (!text.marks.empty()) out.marks = {{0, out.bytes.size(), text.marks[0].message}};
  out.safe = true;
  return out;
}

List SplitLines(const Text& text, bool keeps_ends) {
  Read(text.bytes.size());
  List lines;
  const std::string& bytes = text.bytes;
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = at;
    const char32_t c = NextCodePoint(bytes, &at);
    if (!((c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 ||
          c == 0x2029)) {
      continue;
    }
    if (c == '\r' && at < bytes.size() && bytes[at] == '\n') ++at;
    lines.push_back(text.Part(begin, keeps_ends ? at : end));
    begin = at;
  }
  if (begin < bytes.size()) lines.push_back(text.Part(begin, bytes.size()));
  return lines;
}

namespace {

// What is made of a safe text is safe.
Value AsSafe(const Value& made) {
  if (made.text() != nullptr) {
    Text safe = *made.text();
    safe.safe = true;
    return safe;
  }
  List parts;
  for (const Value& part : made.sequence()->elements) parts.push_back(AsSafe(part));
  return Sequence{made.sequence()->kind, std::move(parts), 0, {}, {}};
}

}  // namespace

Value CallTextMethod(std::string_view name, const Text& text, const Arguments& arguments) {
  if (name == "format") return FormatBraces(text, arguments);
  if (text.safe) {
    // markupsafe escapes what comes in.
    for (const Value& argument : arguments.values) {
      if (argument.text() == nullptr
              ? argument.sequence() != nullptr
              : !argument.text()->safe && NeedsEscape(argument.text()->bytes)) {
        Fail(std::string(name) + " of a safe text with one that is not is not supported");
      }
    }
  }
  if (name == "split" || name == "rsplit") {
    const Bound bound(name, {"sep", "maxsplit"}, arguments);
    const Value parts = SplitBy(text, bound.TextOf(0), bound.Integer(1, -1), name == "rsplit");
    return text.safe ? AsSafe(parts) : parts;
  }
  if (name == "splitlines") {
    const Value lines = SplitLines(text, Bound(name, {"keepends"}, arguments).Flag(0, false));
    return text.safe ? AsSafe(lines) : lines;
  }
  if (!arguments.named.empty()) Fail(std::string(name) + "() takes no named arguments");
  if (std::optional<Value> made = CallTextToText(name, text, arguments)) {
    return text.safe ? AsSafe(*made) : std::move(*made);
  }
  if (name == "partition" || name == "rpartition") {
    const Text* separator = Bound(name, {"sep"}, arguments).TextOf(0);
    if (separator == nullptr) Fail("partition at none");
    const Value parts = Partitioned(text, *separator, name == "rpartition");
    return text.safe ? AsSafe(parts) : parts;
  }
  if (name == "join") {
    if (text.safe) Fail("join at a safe text is not supported");
    return Join(text, Bound(name, {"parts"}, arguments).Need(0));
  }
  if (name == "startswith" || name == "endswith") {
    return StartsOrEnds(name, text, Bound(name, {"part", "begin", "end"}, arguments));
  }
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex") {
    return FindIn(name, text, Bound(name, {"part", "begin", "end"}, arguments));
  }
  if (name == "count") return Count(text, Bound(name, {"part", "begin", "end"}, arguments));
  if (const std::optional<bool> is = IsOfKind(name, text.bytes)) {
    const Bound none(name, {}, arguments);
    return *is;
  }
  Fail("text." + std::string(name) + "() is not supported");
}

}  // namespace zeroplan::jinja
