// Converts token files back to text, for people to read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "text/tokenizer/tokenizer.h"

namespace zeroplan {

// The range and form of the text.
struct ShowOptions {
  uint64_t begin = 0;
  uint64_t count = 0;
  // Encloses tokens that count in the loss in "[[" and "]]".
  bool mask = false;
};
// The text of tokens [begin, begin + count) of a token file, cut at its end, special tokens
// included. If the file records where documents begin, a line precedes each: "-- document 3, token
// 120 --". Throws as CheckOrigin, and Error(kUsage) for an unknown token id.
std::string TokensAsText(const Tokenizer& tokenizer, const std::filesystem::path& path,
                         const ShowOptions& options);

// The first document of a token file with the tokens that count in the loss between "[[" and "]]",
// cut to some lines, so that a user can check how the data was understood. "" if there is none.
std::string FirstDocument(const Tokenizer& tokenizer, const std::filesystem::path& path);

}  // namespace zeroplan
