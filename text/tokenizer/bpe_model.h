// The "model" of a tokenizer.json: byte pair encoding. Converts a piece of text to token ids.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/hash.h"
#include "core/base/json_source.h"

namespace zeroplan {

// The merge of a pair. Lower ranks are applied first.
struct Merge {
  uint32_t rank = 0;
  int32_t id = 0;  // id of the token that replaces the pair
};

// The pairs of neighbouring tokens that are merged, with their ranks.
class MergeTable {
 public:
  // Empty, with room for `count` pairs.
  explicit MergeTable(size_t count = 0);

  // Overwrites the merge of an existing pair. REQUIRES: at most as many pairs as it has room for;
  // ids not negative.
  void Set(int32_t left, int32_t right, Merge merge);
  // nullptr: the two are not merged.
  const Merge* Find(int32_t left, int32_t right) const {
    const uint64_t key = Key(left, right);
    for (size_t at = Slot(key);; at = (at + 1) & mask_) {
      if (slots_[at].key == key) return &slots_[at].merge;
      if (slots_[at].key == kEmpty) return nullptr;
    }
  }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Entry {
    uint64_t key = kEmpty;
    Merge merge;
  };

  static uint64_t Key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t Slot(uint64_t key) const {
    return static_cast<size_t>((key * 0x9E3779B97F4A7C15u) >> 24) & mask_;
  }

  size_t mask_ = 0;
  std::vector<Entry> slots_;
};

// Buffers for merging, reused by a thread.
struct MergeRoom {
  struct Symbol {
    int32_t id = 0;
    int32_t previous = -1;
    int32_t next = -1;
  };
  struct Candidate {
    uint32_t rank = 0;
    int32_t at = 0;
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> candidates;
  std::vector<Merge> pairs;
};

// Merges `*ids` in place until no pair is left: always the pair of lowest rank, among these the
// leftmost. Takes time n log n in the number of ids. REQUIRES: at most 2^31 - 1 ids.
void MergeAll(const MergeTable& merges, std::vector<int32_t>* ids, MergeRoom* room);

// A thread's cache across pieces: the ids of short pieces.
class PieceCache {
 public:
  static constexpr size_t kMostBytes = 26;
  static constexpr size_t kMostIds = 9;

  PieceCache() : slots_(kSlots) {}

  // Appends the piece's ids; false if it is not cached. REQUIRES: 1 to kMostBytes bytes.
  bool Find(std::string_view piece, std::vector<int32_t>* ids) const;
  // Replaces another piece. Does not cache pieces with more than kMostIds ids.
  void Put(std::string_view piece, const int32_t* ids, size_t count);

 private:
  static constexpr size_t kSlots = size_t{1} << 15;
  struct Slot {
    uint8_t bytes = 0;  // 0: empty
    uint8_t count = 0;
    char piece[kMostBytes];
    int32_t ids[kMostIds];
  };
  static_assert(sizeof(Slot) == 64);

  static size_t IndexOf(std::string_view piece);

  std::vector<Slot> slots_;
};

class BpeModel {
 public:
  // `node`: the value of "model". Throws Error(kUsage) naming file and key.
  static BpeModel Read(const JsonNode* node, const std::string& file);

  BpeModel(BpeModel&&) = default;
  BpeModel& operator=(BpeModel&&) = default;
  BpeModel(const BpeModel&) = delete;
  BpeModel& operator=(const BpeModel&) = delete;

  // Whether each byte is a token, by its spelling (unicode.h): then pieces may be passed as bytes.
  bool has_all_bytes() const { return has_all_bytes_; }

  // Encode's buffers. One a thread.
  struct Room {
    PieceCache cache;
    MergeRoom merging;
    std::vector<int32_t> symbols;
  };
  // Appends the ids of a piece. `as_bytes`: the piece is bytes whose spellings are the tokens;
  // REQUIRES: has_all_bytes(), and always the same value with one Room. Otherwise it is well-formed
  // UTF-8. Leaves out a character that is no token, has no tokens for its bytes and no unk_token,
  // as `tokenizers` does. Throws Error(kUsage) if unk_token is needed and no token.
  void Encode(std::string_view piece, bool as_bytes, Room* room, std::vector<int32_t>* ids) const;

  // The size of the vocabulary of the model alone, as `tokenizers` counts it.
  size_t vocab_count() const { return ids_.size(); }
  // The largest id + 1.
  int32_t id_end() const { return static_cast<int32_t>(tokens_.size()); }
  std::optional<int32_t> Find(std::string_view token) const;
  // nullptr: no token has that id.
  const std::string* Token(int32_t id) const;

  // Whether it is the token of a byte that no other token has: "<0x0A>".
  bool IsFallbackByte(int32_t id) const;

  // Digest of everything that determines ids.
  Sha256Digest Digest() const;

 private:
  // Whether two characters are neighbours in the result of some merge. False: no merge can cross a
  // border between them. True may be wrong.
  class Neighbours {
   public:
    Neighbours() : bits_(kBits / 64) {}
    void Add(char32_t left, char32_t right) { bits_[At(left, right) / 64] |= Bit(left, right); }
    bool MayBe(char32_t left, char32_t right) const {
      return (bits_[At(left, right) / 64] & Bit(left, right)) != 0;
    }

   private:
    static constexpr size_t kBits = size_t{1} << 20;
    static size_t At(char32_t left, char32_t right) {
      return static_cast<size_t>((uint64_t{left} << 21 | right) * 0x9E3779B97F4A7C15u >> 44);
    }
    static uint64_t Bit(char32_t left, char32_t right) {
      return uint64_t{1} << (At(left, right) % 64);
    }
    std::vector<uint64_t> bits_;
  };

  BpeModel() = default;

  struct StringHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  void ReadVocab(const JsonNode& vocab, const std::string& where);
  void ReadMerges(const JsonNode& merges, const std::string& where);
  void IndexCharacters();
  int32_t CharacterId(char32_t code_point) const;
  void EncodeBytes(std::string_view piece, Room* room, std::vector<int32_t>* ids) const;
  void EncodeText(std::string_view piece, Room* room, std::vector<int32_t>* ids) const;
  // Encodes a part of a piece whose borders no merge crosses.
  void EncodePart(std::string_view part, Room* room, std::vector<int32_t>* ids) const;
  int32_t UnknownId(char32_t code_point) const;

  std::string file_;
  std::vector<std::string> tokens_;                    // by id, empty where no token has it
  std::unordered_map<std::string_view, int32_t> ids_;  // views of tokens_
  MergeTable merges_;
  Sha256Digest merges_digest_{};
  bool ignore_merges_ = false;
  bool byte_fallback_ = false;
  bool fuse_unk_ = false;
  std::optional<std::string> unk_token_;
  bool has_all_bytes_ = false;
  std::array<int32_t, 256> spelt_byte_ids_{};            // id of the spelling of each byte
  std::array<int32_t, 256> fallback_ids_{};              // "<0x00>" to "<0xFF>", -1: none
  std::array<int32_t, 128> ascii_ids_{};                 // -1: none
  std::unordered_map<char32_t, int32_t> character_ids_;  // beyond ASCII
  // The tokens that spell bytes, by their bytes, with ignore_merges.
  std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>> whole_pieces_;
  Neighbours neighbours_;
};

}  // namespace zeroplan
