// The "pre_tokenizer" of a tokenizer.json: splits a text into the pieces that merges stay within.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/json_source.h"
#include "text/tokenizer/json_part.h"
#include "text/tokenizer/pattern.h"

namespace zeroplan {

// The most pieces that are found or encoded between two checks for a stop.
inline constexpr size_t kPiecesUnheard = 4096;

// Pieces of a text. Reused from text to text, to save allocations.
class CutText {
 public:
  // Starts with one piece, all of `text`, which must outlive its use. `at_start`: it is at the
  // input's start.
  void Reset(std::string_view text, bool at_start);

  // Sets positions in the text that move along with changes of it, rising. Call after Reset; empty
  // by default.
  void set_borders(std::vector<size_t> borders) { borders_ = std::move(borders); }
  const std::vector<size_t>& borders() const { return borders_; }

  std::string_view text() const { return text_; }
  const std::vector<Piece>& pieces() const { return pieces_; }
  std::string_view at(const Piece& piece) const {
    return text_.substr(piece.begin, piece.end - piece.begin);
  }

  // Splits each piece where `pattern` matches.
  void Split(const Pattern& pattern, SplitBehavior behavior, bool invert);
  // Replaces each piece by the pieces that `cut` appends for it.
  template <typename CutPiece>
  void CutEach(CutPiece cut) {
    scratch_.clear();
    for (const Piece& piece : pieces_) cut(piece, &scratch_);
    pieces_.swap(scratch_);
  }
  // Replaces each piece by the text that `change(piece, is_first, out)` appends; is_first: the
  // piece is at the input's start. REQUIRES: `change` converts the start of a piece to the start of
  // the piece's result.
  template <typename Change>
  void ChangeEach(Change change) {
    std::string changed;
    changed.reserve(text_.size() + text_.size() / 2);
    const bool starts = at_start_ && !pieces_.empty() && pieces_[0].begin == 0;
    auto border = borders_.begin();
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const size_t begin = changed.size();
      for (; border != borders_.end() && *border < pieces_[i].end; ++border) {
        if (*border <= pieces_[i].begin) {
          *border = begin;
          continue;
        }
        change(text_.substr(pieces_[i].begin, *border - pieces_[i].begin), starts && i == 0,
               &changed);
        *border = changed.size();
        changed.resize(begin);
      }
      change(at(pieces_[i]), starts && i == 0, &changed);
      pieces_[i] = {begin, changed.size()};
    }
    std::fill(border, borders_.end(), changed.size());
    storage_.swap(changed);
    text_ = storage_;
    at_start_ = starts;
  }

 private:
  std::string_view text_;
  std::string storage_;
  bool at_start_ = false;
  std::vector<Piece> pieces_, scratch_;
  std::vector<size_t> borders_;
  std::vector<Part> parts_;
};

class PreTokenizer {
 public:
  PreTokenizer() = default;  // leaves the text whole
  // `node`: the value of "pre_tokenizer", nullptr or null for none. Throws Error(kUsage) naming
  // file and key.
  static PreTokenizer Read(const JsonNode* node, const std::string& file);

  // Whether its last step converts the pieces to spelt bytes (unicode.h).
  bool ends_in_bytes() const;
  // Whether it depends on the input's start.
  bool asks_for_start() const;

  // Splits `text`. `keep_bytes`: leaves out the last step, the spelling of bytes. REQUIRES: text
  // was Reset; keep_bytes only if ends_in_bytes(). Throws as Normalizer::Apply.
  void Run(bool keep_bytes, CutText* text) const;

 private:
  struct Split {
    Pattern pattern;
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool invert = false;
  };
  struct ByteLevel {
    bool add_prefix_space = false;
    bool use_regex = false;
  };
  enum class PrependScheme { kAlways, kFirst, kNever };
  struct Metaspace {
    std::string replacement;
    PrependScheme prepend = PrependScheme::kAlways;
    bool split = true;
  };
  struct Whitespace {};
  using Step = std::variant<Split, ByteLevel, Metaspace, Whitespace>;

  void Add(JsonPart part);
  static Metaspace ReadMetaspace(JsonPart* part);
  static void RunMetaspace(const Metaspace& step, CutText* text);

  std::string where_;
  std::vector<Step> steps_;
};

}  // namespace zeroplan
