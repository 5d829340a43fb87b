// The "added_tokens" of a tokenizer.json: texts that are one token in any place, found before a
// text is split into pieces.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "core/base/json_source.h"
#include "text/tokenizer/bpe_model.h"
#include "text/tokenizer/normalizer.h"

namespace zeroplan {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  // Its form in decoded text: normalized if it is searched in normalized text. `tokenizers` also
  // uses this form as the token's name when it leaves special tokens out, so a token that
  // normalizing changes stays.
  std::string shown;
  bool special = false;      // left out of decoded text on request
  bool single_word = false;  // does not match within a word
  bool lstrip = false;       // includes white space before it
  bool rstrip = false;       // includes white space behind it
  bool normalized = false;   // searched in the normalized text
};

// A token from a file next to the tokenizer.json.
struct GivenToken {
  AddedToken token;           // its id is determined when it is added
  std::string where;          // "FILE:LINE: key"
  std::optional<int64_t> id;  // the id in that file
};

// Reads {"content": "...", "lstrip": false, ...}. `special`: the default. Throws Error(kUsage)
// naming file and key.
AddedToken ReadAddedToken(const JsonNode& node, const std::string& path, const std::string& file,
                          bool special);

// Finds the leftmost of several texts, and of those the longest.
class TextFinder {
 public:
  void Add(const std::string& text, size_t value);  // REQUIRES: not empty. The first value stays.
  // The text that starts earliest at or after `from`: its range and its value.
  struct Found {
    size_t begin = 0;
    size_t end = 0;
    size_t value = 0;
  };
  std::optional<Found> Find(std::string_view text, size_t from) const;

 private:
  static constexpr size_t kNone = ~size_t{0};
  struct Node {
    size_t value = kNone;
    std::vector<std::pair<char, uint32_t>> children;
  };
  const uint32_t* Child(uint32_t node, char byte) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<bool, 256> starts_{};
};

class AddedTokens {
 public:
  AddedTokens() = default;
  // `node`: the value of "added_tokens". Throws Error(kUsage) naming file and key, also if a
  // token's id is not the one that `tokenizers` would give it.
  static AddedTokens Read(const JsonNode* node, const std::string& file, const BpeModel& model,
                          const Normalizer& normalizer);
  // Adds tokens, as add_tokens of `tokenizers` does: an existing token gets the new flags, but
  // stays special. Throws Error(kUsage) if a token's id differs from the one in its file.
  void AddMore(const std::vector<GivenToken>& tokens, const BpeModel& model,
               const Normalizer& normalizer);
  // Stops searching for special tokens (encode_special_tokens of `tokenizers`).
  void SplitSpecial() { split_special_ = true; }

  // Bytes [begin, end) of a text: an added token, or the text between two.
  struct Section {
    size_t begin = 0;
    size_t end = 0;
    std::optional<int32_t> id;
  };
  // Sections of `text` by the tokens that are searched before (after) it is normalized.
  std::vector<Section> Find(std::string_view text, bool normalized) const;

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  // nullptr: no token has that id or content.
  const AddedToken* ById(int32_t id) const;
  const AddedToken* ByContent(std::string_view content) const;
  int32_t id_end() const { return id_end_; }
  Sha256Digest Digest() const;

 private:
  // The forms under which a token is searched: the one it was first added with, or, once it has
  // become special, that one, too.
  struct Sought {
    std::string text;
    size_t token = 0;  // index into tokens_
    bool special = false;
    bool normalized = false;
  };
  int32_t IdOf(const std::string& content, const BpeModel& model) const;
  void Add(AddedToken token, const std::string& where, const Normalizer& normalizer);
  void MakeFinders();

  std::vector<AddedToken> tokens_;
  std::vector<Sought> sought_;
  bool split_special_ = false;
  std::unordered_map<int32_t, size_t> by_id_;
  std::unordered_map<std::string, size_t> by_content_;
  TextFinder raw_, normalized_;
  bool has_raw_ = false;
  bool has_normalized_ = false;
  int32_t id_end_ = 0;
};

}  // namespace zeroplan
