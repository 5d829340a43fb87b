#include "executor/checkpoint/shard_writer.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/model/lora.h"
#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/kernels/cpu_levels.h"

namespace zeroplan {
namespace {

// Elements that are converted at a time: whole groups.
constexpr size_t kConvertElements = size_t{1} << 18;

// visit(range, state, dtype) for what an owner's file holds, in its order.
template <typename Visit>
void ForEachState(const ParamLayout& layout, int owner, const Visit& visit) {
  const bool adapted = HoldsAdapters(*layout.tensors);
  for (const ShardRange& range : OwnerRanges(layout, owner)) {
    const ParamTensor& tensor = (*layout.tensors)[static_cast<size_t>(range.tensor)];
    for (const StateKind state : SavedStates(tensor, adapted)) {
      visit(range, state, StoredDtype(layout, tensor, state));
    }
  }
}

SafetensorsPlan PlanShard(const ParamLayout& layout, int owner, const std::string& save) {
  std::vector<SafetensorsPlan::Tensor> tensors;
  ForEachState(layout, owner, [&](const ShardRange& range, StateKind state, Dtype dtype) {
    const std::string& tensor = (*layout.tensors)[static_cast<size_t>(range.tensor)].name;
    const bool in_groups = IsDynamic8(dtype);
    tensors.push_back({ShardEntryName(tensor, EntryKind(state), range.begin),
                       {range.count},
                       in_groups ? Dtype::kU8 : dtype});
    if (!in_groups) return;
    tensors.push_back(
        {ShardEntryName(tensor, ScaleKind(state), range.begin), {ScaleCount(range.count)}});
  });
  return PlanSafetensors(tensors, {{"save", save}});
}

}  // namespace

std::span<const StateKind> SavedStates(const ParamTensor& tensor, bool adapted) {
  if (!tensor.saved || (adapted && !tensor.trainable)) return {};
  return std::span(kStateKinds).first(tensor.trainable ? kStateKinds.size() : 1);
}

bool HoldsAdapters(std::span<const ParamTensor> table) {
  return std::any_of(table.begin(), table.end(), IsAdapter);
}

std::vector<uint64_t> ShardFileBytes(const ParamLayout& layout) {
  // Names of saves are all of one length, but for a step's ninth digit.
  const std::string save(std::string_view(".tmp-step-00000001-0123456789abcdef"));
  std::vector<uint64_t> bytes;
  bytes.reserve(layout.owners());
  for (int owner = 0; owner < static_cast<int>(layout.owners()); ++owner) {
    bytes.push_back(PlanShard(layout, owner, save).file_bytes);
  }
  return bytes;
}

bool WrittenRanges::Add(uint64_t begin, uint64_t count) {
  if (count == 0) return true;
  const uint64_t end = begin + count;
  auto next = std::lower_bound(ranges_.begin(), ranges_.end(), std::pair(begin, uint64_t{0}));
  if (next != ranges_.end() && next->first < end) return false;
  if (next != ranges_.begin() && std::prev(next)->second > begin) return false;
  const bool joins_next = next != ranges_.end() && next->first == end;
  const bool joins_previous = next != ranges_.begin() && std::prev(next)->second == begin;
  if (joins_previous) {
    std::prev(next)->second = joins_next ? next->second : end;
    if (joins_next) ranges_.erase(next);
  } else if (joins_next) {
    next->first = begin;
  } else {
    ranges_.insert(next, {begin, end});
  }
  return true;
}

bool WrittenRanges::Are(uint64_t begin, uint64_t count) const {
  if (count == 0) return ranges_.empty();
  return ranges_.size() == 1 && ranges_[0] == std::pair(begin, begin + count);
}

ShardWriter::ShardWriter(const std::filesystem::path& folder, const ParamLayout& layout, int owner,
                         IoHook* hook)
    : layout_(layout),
      owner_(owner),
      entries_(layout.tensors->size() * kStateKinds.size()),
      file_(folder / ShardFileName(owner), PlanShard(layout, owner, folder.filename().string()),
            hook) {
  for (const uint64_t elements : file_.plan().elements) {
    checksums_.emplace_back(ChecksumCount(elements));
  }
  size_t index = 0;
  ForEachState(layout, owner, [&](const ShardRange& range, StateKind state, Dtype dtype) {
    EntryOf(range.tensor, state) = {range.begin, range.count, dtype, index, {}};
    index += IsDynamic8(dtype) ? 2 : 1;
  });
}

ShardWriter::Entry& ShardWriter::EntryOf(int tensor, StateKind state) {
  return entries_.at(static_cast<size_t>(tensor) * kStateKinds.size() + static_cast<size_t>(state));
}

void ShardWriter::Write(const TensorRange& range, std::span<const float> values) {
  Entry& entry = EntryOf(range.tensor, range.state);
  ZEROPLAN_CHECK(values.size() == range.count && range.begin >= entry.begin &&
                     range.begin + range.count <= entry.begin + entry.count,
                 "tensor {} {}: owner {} holds {} + {}, written {} + {}", range.tensor,
                 StateKindName(range.state), owner_, entry.begin, entry.count, range.begin,
                 range.count);
  ZEROPLAN_CHECK(entry.written.Add(range.begin, range.count), "tensor {} {}: {} + {} written twice",
                 range.tensor, StateKindName(range.state), range.begin, range.count);
  uint64_t at = range.begin - entry.begin;
  if (entry.dtype == Dtype::kF32) return Store(entry.index, at, std::as_bytes(values));
  const bool in_groups = IsDynamic8(entry.dtype);
  ZEROPLAN_CHECK(!in_groups || (at % kDynamic8Group == 0 && (range.count % kDynamic8Group == 0 ||
                                                             at + range.count == entry.count)),
                 "tensor {} {}: {} + {} of {} are not whole groups", range.tensor,
                 StateKindName(range.state), at, range.count, entry.count);
  const size_t most = std::min(values.size(), kConvertElements);
  std::vector<std::byte> stored(most * (in_groups ? 1 : DtypeBytes(entry.dtype)));
  std::vector<float> scales(in_groups ? ScaleCount(most) : 0);
  while (!values.empty()) {
    const auto part = values.first(std::min(values.size(), kConvertElements));
    if (in_groups) {
      const auto codes = std::span(reinterpret_cast<uint8_t*>(stored.data()), part.size());
      const auto of_part = std::span(scales).first(ScaleCount(part.size()));
      EncodeDynamic8(entry.dtype, part, codes, of_part);
      Store(entry.index, at, std::as_bytes(codes));
      Store(entry.index + 1, at / kDynamic8Group, std::as_bytes(of_part));
    } else {
      BestCpuKernels().narrow(entry.dtype, part.data(), static_cast<int64_t>(part.size()),
                              stored.data());
      Store(entry.index, at, std::span(stored).first(part.size() * DtypeBytes(entry.dtype)));
    }
    at += part.size();
    values = values.subspan(part.size());
  }
}

void ShardWriter::Store(size_t index, uint64_t begin, std::span<const std::byte> stored) {
  AddToChecksums(begin, stored, DtypeBytes(file_.plan().dtype[index]), checksums_[index]);
  file_.WriteStored(index, begin, stored);
}

void ShardWriter::Finish() {
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    ZEROPLAN_CHECK(entry.written.Are(entry.begin, entry.count),
                   "owner {}: part of {} was not saved", owner_,
                   (*layout_.tensors)[i / kStateKinds.size()].name);
  }
  file_.Finish();
}

CheckpointFile ShardWriter::Describe() const {
  const SafetensorsPlan& plan = file_.plan();
  CheckpointFile file{
      ShardFileName(owner_), plan.file_bytes, HashBytes(std::as_bytes(std::span(plan.header))), {}};
  for (const std::vector<uint64_t>& sums : checksums_) {
    file.checksums.insert(file.checksums.end(), sums.begin(), sums.end());
  }
  return file;
}

std::vector<ShardRange> OwnerRanges(const ParamLayout& layout, int owner) {
  ZEROPLAN_CHECK(owner >= 0 && static_cast<uint64_t>(owner) < layout.owners(), "owner {} of {}",
                 owner, layout.owners());
  std::vector<ShardRange> ranges;
  for (const Unit& unit : layout.units) {
    const uint64_t owned_begin = static_cast<uint64_t>(owner) * unit.owned_elements();
    const uint64_t owned_end = owned_begin + unit.owned_elements();
    for (const TensorSlot& slot : unit.slots) {
      const uint64_t begin = std::max(owned_begin, slot.offset);
      const uint64_t end = std::min(owned_end, slot.offset + slot.elements);
      if (begin < end) ranges.push_back({slot.tensor, begin - slot.offset, end - begin});
    }
  }
  return ranges;
}

namespace {

constexpr uint64_t kBlock = 1024;

// splitmix64's finalizer: Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
// OOPSLA 2014.
constexpr uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// An element's key is its block's times its place's. Keys of places have 32 bits, so that the inner
// loop multiplies 32 by 32 bits.
constexpr std::array<uint32_t, kBlock> PlaceKeys() {
  std::array<uint32_t, kBlock> keys{};
  for (uint64_t i = 0; i < kBlock; ++i) keys[i] = static_cast<uint32_t>(Mix(i)) | 1;
  return keys;
}
constexpr std::array<uint32_t, kBlock> kPlaceKeys = PlaceKeys();

constexpr uint64_t BlockKey(uint64_t block) { return Mix(~block) | 1; }

template <typename Bits>
uint64_t ChecksumOf(uint64_t begin, std::span<const std::byte> stored) {
  uint64_t sum = 0;
  const std::byte* next = stored.data();
  for (size_t left = stored.size() / sizeof(Bits); left > 0;) {
    const uint64_t place = begin % kBlock;
    const size_t count = std::min<uint64_t>(left, kBlock - place);
    const uint32_t* keys = kPlaceKeys.data() + place;
    uint64_t of_block = 0;
    for (size_t i = 0; i < count; ++i) {
      Bits bits;
      std::memcpy(&bits, next + i * sizeof bits, sizeof bits);
      of_block += uint64_t{keys[i]} * bits;
    }
    sum += BlockKey(begin / kBlock) * of_block;
    begin += count;
    next += count * sizeof(Bits);
    left -= count;
  }
  return sum;
}

}  // namespace

uint64_t StateChecksum(uint64_t begin, std::span<const std::byte> stored, size_t element_bytes) {
  switch (element_bytes) {
    case 1:
      return ChecksumOf<uint8_t>(begin, stored);
    case 2:
      return ChecksumOf<uint16_t>(begin, stored);
    case 4:
      return ChecksumOf<uint32_t>(begin, stored);
  }
  ZEROPLAN_CHECK(false, "elements of {} bytes", element_bytes);
}

void AddToChecksums(uint64_t begin, std::span<const std::byte> stored, size_t element_bytes,
                    std::span<uint64_t> sums) {
  while (!stored.empty()) {
    const uint64_t chunk = begin / kChecksumElements;
    ZEROPLAN_CHECK(chunk < sums.size());
    const size_t count =
        std::min<uint64_t>(stored.size() / element_bytes, (chunk + 1) * kChecksumElements - begin);
    sums[chunk] += StateChecksum(begin, stored.first(count * element_bytes), element_bytes);
    begin += count;
    stored = stored.subspan(count * element_bytes);
  }
}

}  // namespace zeroplan
