// A regular expression of a tokenizer.json. Oniguruma runs it, as in the PyPI package `tokenizers`.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

struct re_pattern_buffer;  // OnigRegexType of oniguruma.h

namespace zeroplan {

class Regex {
 public:
  // Throws Error(kUsage) that starts with `where` ("FILE:LINE: key: ") if `pattern` cannot be used.
  Regex(std::string_view pattern, std::string_view where);

  // Calls on_match(begin, end) for all matches from left to right: none overlaps another, an empty
  // one does not follow another directly. REQUIRES: well-formed UTF-8. Throws Error(kUsage) if the
  // expression needs more steps or memory than can be.
  void ForEachMatch(std::string_view text,
                    const std::function<void(size_t, size_t)>& on_match) const;

 private:
  struct Free {
    void operator()(re_pattern_buffer* compiled) const;
  };

  std::string pattern_, where_;
  std::unique_ptr<re_pattern_buffer, Free> compiled_;
};

// The regular expressions that nearly all byte-level tokenizers split text with, as code: each
// finds the same pieces as the expression does, three times faster. Where the match that starts at
// `at` ends. These expressions match at every position, so that the pieces of a text are its
// matches one after the other. REQUIRES: at < text.size(), well-formed UTF-8, `at` at the start of
// a code point.
using WordScanner = size_t (*)(std::string_view text, size_t at);

// GPT-2's (openai/gpt-2, src/encoder.py), which the pre-tokenizer ByteLevel has built in.
extern const std::string_view kGpt2Pattern;
// Llama 3's, which is cl100k_base's (openai/tiktoken, tiktoken_ext/openai_public.py), and Qwen's,
// where each digit is a piece.
extern const std::string_view kLlama3Pattern;
extern const std::string_view kQwenPattern;

// The code for an expression that is one of the three, nullptr for any other.
WordScanner ScannerFor(std::string_view pattern);

}  // namespace zeroplan
