// The files next to a tokenizer.json that affect ids, too: tokenizer_config.json, or, if that lacks
// "added_tokens_decoder", special_tokens_map.json and added_tokens.json; and the model's type in
// config.json. They are interpreted as by AutoTokenizer.from_pretrained of transformers 5.24
// without code of the folder's own. Settings for which that does something not supported here are
// refused by key.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/json_source.h"
#include "text/tokenizer/added_tokens.h"

namespace zeroplan {

// Texts of tokens by their names ("bos_token", "eos_token", "image_token"), in transformers' order.
using NamedTokens = std::vector<std::pair<std::string, std::string>>;

// Returns the tokens that the folder's files name, including defaults of the tokenizer's class,
// such as GPT-2's "<|endoftext|>". Without a tokenizer.json there are no such defaults. Throws
// Error(kUsage) naming file and key.
NamedTokens NamedTokensOf(const std::filesystem::path& folder);

// nullptr: no token has that name.
const std::string* FindNamed(const NamedTokens& named, std::string_view name);

struct SideTokens {
  // Tokens to be added to those of the document, in lists that are added one after the other.
  std::vector<std::vector<GivenToken>> lists;
  // Special tokens are not searched in texts.
  bool split_special = false;
};

// Applies the class of the folder's tokenizer to `document`, the tokenizer.json of `folder` with
// the text `text`: some classes have a normalizer and a pre-tokenizer of their own, and only use
// the vocabulary and merges of the file. `source`: the document's name in errors.
SideTokens ApplySideFiles(const std::filesystem::path& folder, std::string_view text,
                          const std::string& source, JsonNode* document);

}  // namespace zeroplan
