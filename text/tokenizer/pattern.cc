#include "text/tokenizer/pattern.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/error.h"
#include "core/base/strings.h"

namespace zeroplan {
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

std::string ReplaceMatches(std::string_view text, const Pattern& pattern,
                           std::string_view content) {
  std::string out;
  if (text.empty()) return out;
  out.reserve(text.size() + text.size() / 2);
  if (const std::string& wanted = pattern.text(); !wanted.empty()) {
    size_t from = 0;
    for (size_t at = text.find(wanted); at != std::string_view::npos;
         at = text.find(wanted, from)) {
      out.append(text, from, at - from).append(content);
      from = at + wanted.size();
    }
    return out.append(text, from);
  }
  std::vector<Part> parts;
  pattern.Find(text, &parts);
  for (const Part& part : parts) {
    out +=
        part.is_match ? content : text.substr(part.piece.begin, part.piece.end - part.piece.begin);
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
