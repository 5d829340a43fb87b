// Where the turns of a rendered conversation lie: what its messages say, and the special tokens
// around that.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/documents/chat_template.h"
#include "text/jinja/value.h"
#include "text/tokenizer/tokenizer.h"

namespace zeroplan {

// The mark of what names a thing that message `index` says: the name of a tool that it calls, which
// a template may print again before what the tool answers.
inline int NameMark(int index) { return -index - 1; }

// Where the text has what message `message` says.
struct Said {
  size_t begin = 0;
  size_t end = 0;
  int message = 0;
};

// What each message says as one span, as far as no other message lies between. Rising. Where a
// message says something, marks of nothing do not count. The name of what a message calls goes on
// with what it says unless one of `openers` lies between.
std::vector<Said> WhatIsSaid(const jinja::Text& text, const std::vector<std::string>& openers);

// Special texts of a tokenizer, found in what a template prints.
class SpecialTokens {
 public:
  // Of the tokenizer's added tokens, and `eos_token`, which may be none of them.
  SpecialTokens(const Tokenizer& tokenizer, const SpecialTexts& specials) {
    for (const AddedToken& token : tokenizer.added_tokens()) {
      if (!token.content.empty()) tokens_.emplace_back(token.content, token.id);
    }
    for (const auto& [name, text] : specials) {
      if (name != "eos_token" || text.empty()) continue;
      if (const std::optional<int32_t> id = tokenizer.TokenId(text))
        tokens_.emplace_back(text, *id);
    }
    std::stable_sort(tokens_.begin(), tokens_.end(),
                     [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
    for (const auto& [text, id] : tokens_) begins_[static_cast<unsigned char>(text[0])] = true;
  }

  struct Found {
    size_t begin = 0;
    std::string text;
    int32_t id = 0;
    size_t end() const { return begin + text.size(); }
  };
  // The longest that stands at `at`.
  std::optional<Found> At(std::string_view text, size_t at) const {
    if (at >= text.size() || !begins_[static_cast<unsigned char>(text[at])]) return std::nullopt;
    for (const auto& [token, id] : tokens_) {
      if (text.substr(at).starts_with(token)) return Found{at, token, id};
    }
    return std::nullopt;
  }
  // The first that begins in [from, to).
  std::optional<Found> Next(std::string_view text, size_t from, size_t to) const {
    for (size_t at = from; at < to; ++at) {
      if (std::optional<Found> found = At(text, at)) return found;
    }
    return std::nullopt;
  }

 private:
  std::vector<std::pair<std::string, int32_t>> tokens_;  // longest first
  std::array<bool, 256> begins_{};                       // bytes that one begins with
};

}  // namespace zeroplan
