// The turns of a rendered conversation: the text of its messages, and the special tokens around it.
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

// The mark of a name printed by message `index`: the name of a tool that it calls, which a template
// may print again before the tool's answer.
inline int NameMark(int index) { return -index - 1; }

// The span of message `message` in the text.
struct Said {
  size_t begin = 0;
  size_t end = 0;
  int message = 0;
};

// The text of each message as one span, up to any text of another message. Rising. If a message has
// text, its marks of empty text do not count. The name of a called tool extends the message's span
// unless one of `openers` is between.
std::vector<Said> WhatIsSaid(const jinja::Text& text, const std::vector<std::string>& openers);

// A tokenizer's special texts, searched in a template's output.
class SpecialTokens {
 public:
  // The tokenizer's added tokens, and `eos_token`, which may be none of them.
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
  // The longest one at `at`.
  std::optional<Found> At(std::string_view text, size_t at) const {
    if (at >= text.size() || !begins_[static_cast<unsigned char>(text[at])]) return std::nullopt;
    for (const auto& [token, id] : tokens_) {
      if (text.substr(at).starts_with(token)) return Found{at, token, id};
    }
    return std::nullopt;
  }
  // The first one that begins in [from, to).
  std::optional<Found> Next(std::string_view text, size_t from, size_t to) const {
    for (size_t at = from; at < to; ++at) {
      if (std::optional<Found> found = At(text, at)) return found;
    }
    return std::nullopt;
  }

 private:
  std::vector<std::pair<std::string, int32_t>> tokens_;  // longest first
  std::array<bool, 256> begins_{};                       // first bytes of the tokens
};

}  // namespace zeroplan
