// The "added_tokens" of a tokenizer.json: texts that are one token wherever they stand, found
// before a text is cut into pieces.
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
  // What it is as a token of decoded text: normalized if it is looked for so. `tokenizers` takes
  // this for the token's name too where it leaves special tokens out: one that normalizing changes
  // stays.
  std::string shown;
  bool special = false;      // left out of decoded text on request
  bool single_word = false;  // not within a word
  bool lstrip = false;       // takes white space before it with it
  bool rstrip = false;       // ... behind it
  bool normalized = false;   // looked for in the normalized text
};

// A token as a file gives it that stands beside the tokenizer.json.
struct GivenToken {
  AddedToken token;           // its id is found when it is added
  std::string where;          // "FILE:LINE: key"
  std::optional<int64_t> id;  // the one that the file says it has
};

// Reads {"content": "...", "lstrip": false, ...}. `special`: where it does not say. Throws
// Error(kUsage) naming file and key.
AddedToken ReadAddedToken(const JsonNode& node, const std::string& path, const std::string& file,
                          bool special);

// Finds the leftmost of several texts, of these the longest.
class TextFinder {
 public:
  void Add(const std::string& text, size_t value);  // REQUIRES: not empty. The first value stays.
  // The text that starts earliest at or after `from`: where, its bytes and its value.
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
  // Adds tokens, as add_tokens of `tokenizers` does: one that is there takes the new flags, but
  // stays special. Throws Error(kUsage) if a token's id is not the one that it says.
  void AddMore(const std::vector<GivenToken>& tokens, const BpeModel& model,
               const Normalizer& normalizer);
  // Special ones are not looked for any more (encode_special_tokens of `tokenizers`).
  void SplitSpecial() { split_special_ = true; }

  // Bytes [begin, end) of a text: an added token, or what lies between two.
  struct Section {
    size_t begin = 0;
    size_t end = 0;
    std::optional<int32_t> id;
  };
  // Sections of `text` by the tokens that are looked for before (after) it was normalized.
  std::vector<Section> Find(std::string_view text, bool normalized) const;

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  // nullptr: there is none with that id or content.
  const AddedToken* ById(int32_t id) const;
  const AddedToken* ByContent(std::string_view content) const;
  int32_t id_end() const { return id_end_; }
  Sha256Digest Digest() const;

 private:
  // How a token is looked for: what it was added as at first, or, once it has become special, as
  // that, too.
  struct Sought {
    std::string text;
    size_t token = 0;  // of tokens_
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
