#include "text/tokenizer/merge_table.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "core/base/error.h"

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

}  // namespace zeroplan
