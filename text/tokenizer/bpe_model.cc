#include "text/tokenizer/bpe_model.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "core/base/error.h"
#include "core/base/strings.h"
#include "text/tokenizer/unicode.h"

namespace zeroplan {
namespace {

// Up to here looking through all pairs for the next one is faster than a queue.
constexpr size_t kFew = 48;
constexpr uint32_t kNoMerge = std::numeric_limits<uint32_t>::max();

Merge MergeOf(const MergeTable& merges, int32_t left, int32_t right) {
  const Merge* merge = merges.Find(left, right);
  return merge != nullptr ? *merge : Merge{kNoMerge, 0};
}

void MergeFew(const MergeTable& merges, std::vector<int32_t>* ids, MergeRoom* room) {
  std::vector<Merge>& pairs = room->pairs;  // pairs[i]: of ids i and i + 1
  pairs.clear();
  for (size_t i = 0; i + 1 < ids->size(); ++i) {
    pairs.push_back(MergeOf(merges, (*ids)[i], (*ids)[i + 1]));
  }
  const auto by_rank = [](const Merge& a, const Merge& b) { return a.rank < b.rank; };
  while (!pairs.empty()) {
    const auto best = std::min_element(pairs.begin(), pairs.end(), by_rank);
    if (best->rank == kNoMerge) return;
    const size_t at = static_cast<size_t>(best - pairs.begin());
    (*ids)[at] = best->id;
    ids->erase(ids->begin() + static_cast<std::ptrdiff_t>(at) + 1);
    pairs.erase(best);
    if (at > 0) pairs[at - 1] = MergeOf(merges, (*ids)[at - 1], (*ids)[at]);
    if (at < pairs.size()) pairs[at] = MergeOf(merges, (*ids)[at], (*ids)[at + 1]);
  }
}

void MergeMany(const MergeTable& merges, std::vector<int32_t>* ids, MergeRoom* room) {
  using Candidate = MergeRoom::Candidate;
  std::vector<MergeRoom::Symbol>& symbols = room->symbols;
  std::vector<Candidate>& queue = room->candidates;
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  const auto count = static_cast<int32_t>(ids->size());
  symbols.resize(ids->size());
  queue.clear();
  const auto symbol = [&](int32_t at) -> MergeRoom::Symbol& {
    return symbols[static_cast<size_t>(at)];
  };
  for (int32_t i = 0; i < count; ++i) {
    symbol(i) = {(*ids)[static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1};
  }
  for (int32_t i = 0; i + 1 < count; ++i) {
    const Merge* merge = merges.Find(symbol(i).id, symbol(i + 1).id);
    if (merge != nullptr) queue.push_back({merge->rank, i});
  }
  std::make_heap(queue.begin(), queue.end(), later);
  const auto consider = [&](int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    const Merge* merge = merges.Find(symbol(left).id, symbol(right).id);
    if (merge == nullptr) return;
    queue.push_back({merge->rank, left});
    std::push_heap(queue.begin(), queue.end(), later);
  };
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), later);
    const Candidate top = queue.back();
    queue.pop_back();
    MergeRoom::Symbol& left = symbol(top.at);
    if (left.id < 0 || left.next < 0) continue;  // merged away, or the last
    MergeRoom::Symbol& right = symbol(left.next);
    const Merge* merge = merges.Find(left.id, right.id);
    if (merge == nullptr || merge->rank != top.rank) continue;  // one of the two has changed since
    left.id = merge->id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbol(left.next).previous = top.at;
    consider(left.previous, top.at);
    consider(top.at, left.next);
  }
  ids->clear();
  for (int32_t at = 0; at >= 0; at = symbol(at).next) ids->push_back(symbol(at).id);
}

}  // namespace

MergeTable::MergeTable(size_t count) : mask_(std::bit_ceil(2 * count + 2) - 1), slots_(mask_ + 1) {}

void MergeTable::Set(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = Key(left, right);
  size_t at = Slot(key);
  while (slots_[at].key != kEmpty && slots_[at].key != key) at = (at + 1) & mask_;
  slots_[at] = {key, merge};
}

void MergeAll(const MergeTable& merges, std::vector<int32_t>* ids, MergeRoom* room) {
  ZEROPLAN_CHECK(ids->size() <= std::numeric_limits<int32_t>::max());
  if (ids->size() <= kFew) {
    MergeFew(merges, ids, room);
  } else {
    MergeMany(merges, ids, room);
  }
}

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
