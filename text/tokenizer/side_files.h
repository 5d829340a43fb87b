// The files beside a tokenizer.json that decide ids, too: tokenizer_config.json, or, where that has
// no "added_tokens_decoder", special_tokens_map.json and added_tokens.json; and of config.json the
// type of the model. They are taken as AutoTokenizer.from_pretrained of transformers 5.24 takes
// them without code of the folder's own. What it does otherwise from what is done here is refused
// by key.
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

// Returns what the folder's files name; defaults of the tokenizer's class included, as GPT-2's
// "<|endoftext|>". Without a tokenizer.json there are no such defaults. Throws Error(kUsage) naming
// file and key.
NamedTokens NamedTokensOf(const std::filesystem::path& folder);

// nullptr: no token has that name.
const std::string* FindNamed(const NamedTokens& named, std::string_view name);

struct SideTokens {
  // Those to be added to what the document has, in lists that are added one after the other.
  std::vector<std::vector<GivenToken>> lists;
  // Special tokens are not looked for in texts.
  bool split_special = false;
};

// Changes `document`, the tokenizer.json of `folder` with the text `text`, to what the class of the
// folder's tokenizer makes of it: some have a normalizer and a pre-tokenizer of their own, and take
// the vocabulary and merges alone from the file. `source`: what errors call the document.
SideTokens ApplySideFiles(const std::filesystem::path& folder, std::string_view text,
                          const std::string& source, JsonNode* document);

}  // namespace zeroplan
