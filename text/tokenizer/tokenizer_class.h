// Classes of tokenizers in transformers 5.24 as far as they change what a tokenizer.json says, and
// which of them it takes for a type of model.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zeroplan {

inline constexpr const char* kTokenizersBackend = "TokenizersBackend";  // takes the file as it is

// A class that makes its own of a tokenizer.json: names that a file need not give, and its parts.
// In these $SPACE stands for add_prefix_space, $SCHEME for prepend_scheme, $UNK for unk_token, and
// $STRIP for the decoder of a prefix space. "": as in the file.
struct TokenizerClass {
  std::string_view name;
  std::vector<std::pair<std::string_view, std::string_view>> names;
  std::string_view model, normalizer, pre_tokenizer, decoder;
  bool keeps_post_processor = true;
};

// nullptr: a class of that name takes the file as it is.
const TokenizerClass* FindTokenizerClass(std::string_view name);
// The class for a type of model (config.json's model_type); "": there is none.
std::string TokenizerClassOfType(std::string_view type);
// Whether folders of that type are known to name a wrong class.
bool HasWrongTokenizerClass(std::string_view type);
// Whether the class makes something of the file that is not done here.
bool IsOtherTokenizerClass(std::string_view name);

}  // namespace zeroplan
