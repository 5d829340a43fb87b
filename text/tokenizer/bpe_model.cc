#include "text/tokenizer/bpe_model.h"

#include <algorithm>
#include <cstring>

#include "core/base/error.h"
#include "core/base/strings.h"
#include "text/tokenizer/byte_level.h"

namespace zeroplan {
namespace {

uint64_t Load(const char* from, size_t bytes) {
  uint64_t word = 0;
  std::memcpy(&word, from, bytes);
  return word;
}

}  // namespace

size_t PieceCache::IndexOf(std::string_view piece) {
  uint64_t hash = piece.size() * 0x9E3779B97F4A7C15u;
  const auto mix = [&](uint64_t word) {
    hash = (hash ^ word) * 0xD6E8FEB86659FD93u;
    hash ^= hash >> 32;
  };
  size_t at = 0;
  for (; at + 8 <= piece.size(); at += 8) mix(Load(piece.data() + at, 8));
  if (at < piece.size()) mix(Load(piece.data() + at, piece.size() - at));
  return (hash * 0x9E3779B97F4A7C15u >> 40) % kSlots;
}

bool PieceCache::Find(std::string_view piece, std::vector<int32_t>* ids) const {
  const Slot& slot = slots_[IndexOf(piece)];
  if (slot.bytes != piece.size() || std::memcmp(slot.piece, piece.data(), piece.size()) != 0) {
    return false;
  }
  ids->insert(ids->end(), slot.ids, slot.ids + slot.count);
  return true;
}

void PieceCache::Put(std::string_view piece, const int32_t* ids, size_t count) {
  if (count > kMostIds) return;
  Slot& slot = slots_[IndexOf(piece)];
  slot.bytes = static_cast<uint8_t>(piece.size());
  slot.count = static_cast<uint8_t>(count);
  std::memcpy(slot.piece, piece.data(), piece.size());
  std::copy_n(ids, count, slot.ids);
}

std::optional<int32_t> BpeModel::Find(std::string_view token) const {
  const auto at = ids_.find(token);
  if (at == ids_.end()) return std::nullopt;
  return at->second;
}

const std::string* BpeModel::Token(int32_t id) const {
  if (id < 0 || id >= id_end()) return nullptr;
  const std::string& token = tokens_[static_cast<size_t>(id)];
  // Only an id that is listed may have the empty token.
  if (token.empty() && Find("") != id) return nullptr;
  return &token;
}

bool BpeModel::IsFallbackByte(int32_t id) const {
  return byte_fallback_ &&
         std::find(fallback_ids_.begin(), fallback_ids_.end(), id) != fallback_ids_.end();
}

int32_t BpeModel::CharacterId(char32_t code_point) const {
  if (code_point < 0x80) return ascii_ids_[code_point];
  const auto at = character_ids_.find(code_point);
  return at == character_ids_.end() ? -1 : at->second;
}

int32_t BpeModel::UnknownId(char32_t code_point) const {
  const std::optional<int32_t> id = Find(*unk_token_);
  if (!id) {
    ThrowUsage(
        "{}: model.unk_token: {} is not in the vocabulary, and neither is U+{:04X} of the text; "
        "name "
        "a token that is",
        file_, PrintableText(*unk_token_, 60), uint32_t{code_point});
  }
  return *id;
}

void BpeModel::Encode(std::string_view piece, bool as_bytes, Room* room,
                      std::vector<int32_t>* ids) const {
  if (piece.empty()) return;
  if (as_bytes) {
    EncodeBytes(piece, room, ids);
  } else {
    EncodeText(piece, room, ids);
  }
}

void BpeModel::EncodeBytes(std::string_view piece, Room* room, std::vector<int32_t>* ids) const {
  const bool is_short = piece.size() <= PieceCache::kMostBytes;
  if (is_short && room->cache.Find(piece, ids)) return;
  const size_t before = ids->size();
  const auto whole = ignore_merges_ ? whole_pieces_.find(piece) : whole_pieces_.end();
  if (whole != whole_pieces_.end()) {
    ids->push_back(whole->second);
  } else {
    std::vector<int32_t>& symbols = room->symbols;
    symbols.clear();
    for (const char byte : piece) symbols.push_back(spelt_byte_ids_[static_cast<uint8_t>(byte)]);
    MergeAll(merges_, &symbols, &room->merging);
    ids->insert(ids->end(), symbols.begin(), symbols.end());
  }
  if (is_short) room->cache.Put(piece, ids->data() + before, ids->size() - before);
}

void BpeModel::EncodeText(std::string_view piece, Room* room, std::vector<int32_t>* ids) const {
  if (ignore_merges_) {
    if (const std::optional<int32_t> whole = Find(piece)) {
      ids->push_back(*whole);
      return;
    }
  }
  size_t begin = 0;
  char32_t left = 0;
  bool left_is_token = false;
  for (size_t at = 0; at < piece.size();) {
    const size_t start = at;
    const char32_t c = NextCodePoint(piece, &at);
    const bool is_token = CharacterId(c) >= 0;
    // Next to a token nothing is pending that a later unknown character would be fused with.
    if (left_is_token && is_token && !neighbours_.MayBe(left, c)) {
      EncodePart(piece.substr(begin, start - begin), room, ids);
      begin = start;
    }
    left = c;
    left_is_token = is_token;
  }
  EncodePart(piece.substr(begin), room, ids);
}

void BpeModel::EncodePart(std::string_view part, Room* room, std::vector<int32_t>* ids) const {
  const bool is_short = part.size() <= PieceCache::kMostBytes;
  if (is_short && room->cache.Find(part, ids)) return;
  std::vector<int32_t>& symbols = room->symbols;
  symbols.clear();
  int32_t pending = -1;  // unk_token, for one character or, with fuse_unk, several
  for (size_t at = 0; at < part.size();) {
    const size_t start = at;
    const char32_t c = NextCodePoint(part, &at);
    const int32_t id = CharacterId(c);
    if (id >= 0) {
      if (pending >= 0) symbols.push_back(pending);
      pending = -1;
      symbols.push_back(id);
      continue;
    }
    if (byte_fallback_) {
      const std::string_view bytes = part.substr(start, at - start);
      const auto fallback = [&](char byte) { return fallback_ids_[static_cast<uint8_t>(byte)]; };
      if (std::all_of(bytes.begin(), bytes.end(), [&](char b) { return fallback(b) >= 0; })) {
        // As in `tokenizers`, an unk_token that is pending comes after them.
        for (const char byte : bytes) symbols.push_back(fallback(byte));
        continue;
      }
    }
    if (!unk_token_) continue;
    if (pending >= 0 && !fuse_unk_) symbols.push_back(pending);
    pending = UnknownId(c);
  }
  if (pending >= 0) symbols.push_back(pending);
  MergeAll(merges_, &symbols, &room->merging);
  ids->insert(ids->end(), symbols.begin(), symbols.end());
  if (is_short) room->cache.Put(part, symbols.data(), symbols.size());
}

}  // namespace zeroplan
