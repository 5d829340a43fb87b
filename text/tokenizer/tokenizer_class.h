// Classes of tokenizers in transformers 5.24 as far as they override a tokenizer.json, and the
// class of each type of model.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zeroplan {

inline constexpr const char* kTokenizersBackend = "TokenizersBackend";  // uses the file as it is

// A class that overrides parts of a tokenizer.json: names that a file need not give, and its parts.
// In the parts $SPACE stands for add_prefix_space, $SCHEME for prepend_scheme, $UNK for unk_token,
// and $STRIP for the decoder of a prefix space. "": as in the file.
struct TokenizerClass {
  std::string_view name;
  std::vector<std::pair<std::string_view, std::string_view>> names;
  std::string_view model, normalizer, pre_tokenizer, decoder;
  bool keeps_post_processor = true;
};

// nullptr: the class of that name uses the file as it is.
const TokenizerClass* FindTokenizerClass(std::string_view name);
// The class for a type of model (config.json's model_type); "": none.
std::string TokenizerClassOfType(std::string_view type);
// Whether folders of that type are known to name a wrong class.
bool HasWrongTokenizerClass(std::string_view type);
// Whether the class overrides the file in a way that is not supported here.
bool IsOtherTokenizerClass(std::string_view name);

}  // namespace zeroplan
