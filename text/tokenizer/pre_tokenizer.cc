#include "text/tokenizer/pre_tokenizer.h"

#include <utility>

#include "core/base/long_work.h"
#include "core/base/strings.h"
#include "text/tokenizer/unicode.h"

namespace zeroplan {
namespace {

const Pattern& Gpt2Words() {
  static const auto* pattern = new Pattern(Pattern::Expression(kGpt2Pattern, ""));
  return *pattern;
}

// The matches of \w+|[^\w\s]+ with Rust's \w.
void CutWords(std::string_view text, size_t offset, std::vector<Piece>* pieces) {
  enum Kind { kNone, kSpace, kWord, kOther };
  Kind before = kNone;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = NextCodePoint(text, &at);
    const Kind kind = IsRustWordCharacter(c) ? kWord : Contains(WhiteSpace(), c) ? kSpace : kOther;
    if (kind != kSpace) {
      if (kind != before) pieces->push_back({offset + begin, offset + begin});
      pieces->back().end = offset + at;
    }
    before = kind;
  }
}

}  // namespace

void CutText::Reset(std::string_view text, bool at_start) {
  text_ = text;
  at_start_ = at_start;
  pieces_.clear();
  borders_.clear();
  if (!text.empty()) pieces_.push_back({0, text.size()});
}

void CutText::Split(const Pattern& pattern, SplitBehavior behavior, bool invert) {
  const bool all_matches =
      pattern.scanner() != nullptr &&
      (behavior == SplitBehavior::kIsolated || (behavior == SplitBehavior::kRemoved && invert));
  CutEach([&](const Piece& piece, std::vector<Piece>* out) {
    const std::string_view text = at(piece);
    if (all_matches) {
      for (size_t begin = 0; begin < text.size();) {
        if (out->size() % kPiecesUnheard == 0) ThrowIfInterrupted();
        const size_t end = pattern.scanner()(text, begin);
        out->push_back({piece.begin + begin, piece.begin + end});
        begin = end;
      }
      return;
    }
    parts_.clear();
    pattern.Find(text, &parts_);
    Cut(parts_, behavior, invert, piece.begin, out);
  });
}

PreTokenizer PreTokenizer::Read(const JsonNode* node, const std::string& file) {
  PreTokenizer pre_tokenizer;
  pre_tokenizer.where_ = file + ": pre_tokenizer";
  if (node != nullptr && !node->is_null()) {
    pre_tokenizer.Add(JsonPart(*node, "pre_tokenizer", file));
  }
  return pre_tokenizer;
}

void PreTokenizer::Add(JsonPart part) {
  const std::string& type = part.type();
  if (type == "Sequence") {
    for (JsonPart& inner : part.RequiredParts("pretokenizers")) Add(std::move(inner));
  } else if (type == "Split") {
    Pattern pattern = part.RequiredPattern("pattern");
    const SplitBehavior behavior = part.Behavior("behavior", "");
    steps_.push_back(Split{std::move(pattern), behavior, part.RequiredBool("invert")});
  } else if (type == "ByteLevel") {
    ByteLevel step;
    step.add_prefix_space = part.RequiredBool("add_prefix_space");
    step.use_regex = part.Bool("use_regex", true);
    part.Bool("trim_offsets", true);  // of offsets, which nobody asks for
    steps_.push_back(step);
  } else if (type == "Metaspace") {
    steps_.push_back(ReadMetaspace(&part));
  } else if (type == "Digits") {
    const bool individual = part.Bool("individual_digits", false);
    steps_.push_back(Split{Pattern::Characters(IsRustNumeric),
                           individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous,
                           false});
  } else if (type == "Punctuation") {
    steps_.push_back(
        Split{Pattern::Characters(IsPunctuation), part.Behavior("behavior", "Isolated"), false});
  } else if (type == "WhitespaceSplit") {
    const auto is_space = [](char32_t c) { return Contains(WhiteSpace(), c); };
    steps_.push_back(Split{Pattern::Characters(is_space), SplitBehavior::kRemoved, false});
  } else if (type == "Whitespace") {
    steps_.push_back(Whitespace{});
  } else {
    part.FailType(
        "Sequence, Split, ByteLevel, Metaspace, Digits, Punctuation, Whitespace, WhitespaceSplit");
  }
  part.Done(steps_.size());
}

PreTokenizer::Metaspace PreTokenizer::ReadMetaspace(JsonPart* part) {
  Metaspace step;
  AppendUtf8(part->RequiredCharacter("replacement"), &step.replacement);
  part->String("str_rep", "");  // the replacement again
  step.split = part->Bool("split", true);
  const std::string scheme = part->String("prepend_scheme", "always");
  if (scheme == "first") {
    step.prepend = PrependScheme::kFirst;
  } else if (scheme == "never") {
    step.prepend = PrependScheme::kNever;
  } else if (scheme != "always") {
    part->Fail("prepend_scheme", "{} is not allowed; use always, first or never", scheme);
  }
  if (!part->Bool("add_prefix_space", true)) {
    if (step.prepend != PrependScheme::kNever) {
      part->Fail("add_prefix_space", "false contradicts prepend_scheme {}; get the file again",
                 scheme);
    }
  }
  return step;
}

bool PreTokenizer::ends_in_bytes() const {
  return !steps_.empty() && std::holds_alternative<ByteLevel>(steps_.back());
}

bool PreTokenizer::asks_for_start() const {
  for (const Step& step : steps_) {
    const auto* metaspace = std::get_if<Metaspace>(&step);
    if (metaspace != nullptr && metaspace->prepend == PrependScheme::kFirst) return true;
  }
  return false;
}

void PreTokenizer::RunMetaspace(const Metaspace& step, CutText* text) {
  text->ChangeEach([&](std::string_view piece, bool is_first, std::string* out) {
    const bool prepends = step.prepend == PrependScheme::kAlways ||
                          (step.prepend == PrependScheme::kFirst && is_first);
    const bool has = piece.starts_with(' ') || piece.starts_with(step.replacement);
    if (prepends && !has) *out += step.replacement;
    size_t from = 0;
    for (size_t at = piece.find(' '); at != std::string_view::npos; at = piece.find(' ', from)) {
      out->append(piece, from, at - from).append(step.replacement);
      from = at + 1;
    }
    out->append(piece, from);
  });
  if (step.split) {
    text->Split(Pattern::Text(step.replacement), SplitBehavior::kMergedWithNext, false);
  }
}

void PreTokenizer::Run(bool keep_bytes, CutText* text) const {
  const uint64_t given = text->text().size();
  for (const Step& step : steps_) {
    JsonPart::CheckMade(where_, text->text().size(), given);
    if (const auto* split = std::get_if<Split>(&step)) {
      text->Split(split->pattern, split->behavior, split->invert);
    } else if (const auto* metaspace = std::get_if<Metaspace>(&step)) {
      RunMetaspace(*metaspace, text);
    } else if (const auto* bytes = std::get_if<ByteLevel>(&step)) {
      if (bytes->add_prefix_space) {
        text->ChangeEach([](std::string_view piece, bool, std::string* out) {
          if (!piece.starts_with(' ')) *out += ' ';
          *out += piece;
        });
      }
      if (bytes->use_regex) text->Split(Gpt2Words(), SplitBehavior::kIsolated, false);
      if (keep_bytes && &step == &steps_.back()) continue;
      text->ChangeEach(
          [](std::string_view piece, bool, std::string* out) { *out += SpellBytes(piece); });
    } else {
      text->CutEach([text](const Piece& piece, std::vector<Piece>* out) {
        CutWords(text->at(piece), piece.begin, out);
      });
    }
  }
}

}  // namespace zeroplan
