// The patterns that a part of a tokenizer.json searches in a text, and how it splits the text
// there.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

struct re_pattern_buffer;  // OnigRegexType of oniguruma.h

namespace zeroplan {

// A regular expression of a tokenizer.json. Oniguruma runs it, as in the PyPI package `tokenizers`.

class Regex {
 public:
  // Throws Error(kUsage) that starts with `where` ("FILE:LINE: key: ") if `pattern` cannot be used.
  Regex(std::string_view pattern, std::string_view where);

  // Calls on_match(begin, end) for all matches from left to right: none overlaps another, and an
  // empty one does not follow another directly. REQUIRES: well-formed UTF-8. Throws Error(kUsage)
  // if the expression needs more steps or memory than the limits.
  void ForEachMatch(std::string_view text,
                    const std::function<void(size_t, size_t)>& on_match) const;

 private:
  struct Free {
    void operator()(re_pattern_buffer* compiled) const;
  };

  std::string pattern_, where_;
  std::unique_ptr<re_pattern_buffer, Free> compiled_;
};

// The regular expressions with which nearly all byte-level tokenizers split text, as code: each
// finds the same pieces as the expression does, three times faster. Returns the end of the match
// that starts at `at`. These expressions match at every position, so the pieces of a text are its
// matches one after the other. REQUIRES: at < text.size(), well-formed UTF-8, `at` at the start of
// a code point.
using WordScanner = size_t (*)(std::string_view text, size_t at);

// GPT-2's (openai/gpt-2, src/encoder.py), which the pre-tokenizer ByteLevel has built in.
extern const std::string_view kGpt2Pattern;
// Llama 3's, which is cl100k_base's (openai/tiktoken, tiktoken_ext/openai_public.py), and Qwen's,
// in which each digit is a piece.
extern const std::string_view kLlama3Pattern;
extern const std::string_view kQwenPattern;

// The code for an expression that is one of the three, nullptr for any other.
WordScanner ScannerFor(std::string_view pattern);

// Bytes [begin, end) of a text.
struct Piece {
  size_t begin = 0;
  size_t end = 0;
  friend bool operator==(const Piece&, const Piece&) = default;
};

// A piece, and whether it is a match or the text between two.
struct Part {
  Piece piece;
  bool is_match = false;
};

// SplitDelimiterBehavior of `tokenizers`.
enum class SplitBehavior {
  kRemoved,             // matches are dropped
  kIsolated,            // each match is a piece of its own
  kMergedWithPrevious,  // a match ends the piece before it
  kMergedWithNext,      // a match starts the piece after it
  kContiguous,          // as isolated, but adjacent matches are one
};
std::optional<SplitBehavior> SplitBehaviorOf(std::string_view name);

// The set of characters that a pre-tokenizer searches: one character is one match.
using CharacterTest = bool (*)(char32_t);

class Pattern {
 public:
  static Pattern Text(std::string text);  // REQUIRES: not empty
  // Expressions that ScannerFor knows run as code. Throws as Regex.
  static Pattern Expression(std::string_view expression, std::string_view where);
  static Pattern Characters(CharacterTest test);

  // Appends the matches in `text` and the texts between them, in order. REQUIRES: not empty.
  void Find(std::string_view text, std::vector<Part>* parts) const;
  // The scanner that returns the end of each match, if matches have no gaps between them; else
  // nullptr.
  WordScanner scanner() const { return scanner_; }
  // The text that is searched; empty: the pattern is of another kind.
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  CharacterTest test_ = nullptr;
  WordScanner scanner_ = nullptr;
  std::shared_ptr<const Regex> regex_;
};

// `text` with each match replaced; stops soon once it has more than `most` bytes.
std::string ReplaceMatches(std::string_view text, const Pattern& pattern, std::string_view content,
                           uint64_t most);

// Splits by `parts` and appends the pieces that are not empty, each moved by `offset`. `invert`:
// the texts between two matches count as matches, and matches do not.
void Cut(const std::vector<Part>& parts, SplitBehavior behavior, bool invert, size_t offset,
         std::vector<Piece>* pieces);

}  // namespace zeroplan
