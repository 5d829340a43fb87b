// The text of token files, for people to look at.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "text/tokenizer/tokenizer.h"

namespace zeroplan {

// How a file of tokens is shown.
struct ShowOptions {
  uint64_t begin = 0;
  uint64_t count = 0;
  // What counts in the loss is between "[[" and "]]".
  bool mask = false;
};
// The text of tokens [begin, begin + count) of a token file, cut at its end, special tokens
// included. Where the file says where documents begin, each begins with a line of its own: "--
// document 3, token 120 --". Throws as CheckOrigin, and Error(kUsage) for an id that no token has.
std::string TokensAsText(const Tokenizer& tokenizer, const std::filesystem::path& path,
                         const ShowOptions& options);

// The first document of a token file with what counts in the loss between "[[" and "]]", cut to
// some lines: what a reader looks at to see what was understood. "" if there is none.
std::string FirstDocument(const Tokenizer& tokenizer, const std::filesystem::path& path);

}  // namespace zeroplan
