// What a part of a tokenizer.json looks for in a text, and how it cuts the text there.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/regex.h"

namespace zeroplan {

// Bytes [begin, end) of a text.
struct Piece {
  size_t begin = 0;
  size_t end = 0;
  friend bool operator==(const Piece&, const Piece&) = default;
};

// A piece, and whether it is a match or what lies between two.
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
  kContiguous,          // as isolated, matches that touch being one
};
std::optional<SplitBehavior> SplitBehaviorOf(std::string_view name);

// A set of characters that a pre-tokenizer looks for: one character is one match.
using CharacterTest = bool (*)(char32_t);

class Pattern {
 public:
  static Pattern Text(std::string text);  // REQUIRES: not empty
  // One of the expressions that ScannerFor knows runs as code. Throws as Regex.
  static Pattern Expression(std::string_view expression, std::string_view where);
  static Pattern Characters(CharacterTest test);

  // Appends the matches in `text` and what lies between them, in order. REQUIRES: not empty.
  void Find(std::string_view text, std::vector<Part>* parts) const;
  // The scanner that says where each match ends, where matches lie without gaps; else nullptr.
  WordScanner scanner() const { return scanner_; }
  // The text looked for; empty: it is something else.
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  CharacterTest test_ = nullptr;
  WordScanner scanner_ = nullptr;
  std::shared_ptr<const Regex> regex_;
};

// `text` with each match replaced.
std::string ReplaceMatches(std::string_view text, const Pattern& pattern, std::string_view content);

// Cuts by `parts` and appends the pieces that are not empty, each moved by `offset`. `invert`: what
// lies between two matches counts as a match, and matches do not.
void Cut(const std::vector<Part>& parts, SplitBehavior behavior, bool invert, size_t offset,
         std::vector<Piece>* pieces);

}  // namespace zeroplan
