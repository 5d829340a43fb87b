// The regular expressions that nearly all byte-level tokenizers split text with, as code: each
// finds the same pieces as the expression does, a multiple faster.
#pragma once

#include <cstddef>
#include <string_view>

namespace zeroplan {

// Where the match that starts at `at` ends. These expressions match at every position, so that the
// pieces of a text are its matches one after the other. REQUIRES: at < text.size(), well-formed
// UTF-8, `at` at the start of a code point.
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
