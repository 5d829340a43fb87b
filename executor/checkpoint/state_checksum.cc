#include "executor/checkpoint/state_checksum.h"

#include <algorithm>
#include <array>
#include <bit>

#include "core/base/error.h"

namespace zeroplan {
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

}  // namespace

uint64_t StateChecksum(uint64_t begin, std::span<const float> values) {
  uint64_t sum = 0;
  while (!values.empty()) {
    const uint64_t place = begin % kBlock;
    const size_t count = std::min<uint64_t>(values.size(), kBlock - place);
    const uint32_t* keys = kPlaceKeys.data() + place;
    uint64_t of_block = 0;
    for (size_t i = 0; i < count; ++i) {
      of_block += uint64_t{keys[i]} * std::bit_cast<uint32_t>(values[i]);
    }
    sum += BlockKey(begin / kBlock) * of_block;
    begin += count;
    values = values.subspan(count);
  }
  return sum;
}

void AddToChecksums(uint64_t begin, std::span<const float> values, std::span<uint64_t> sums) {
  while (!values.empty()) {
    const uint64_t chunk = begin / kChecksumElements;
    ZEROPLAN_CHECK(chunk < sums.size());
    const size_t count = std::min<uint64_t>(values.size(), (chunk + 1) * kChecksumElements - begin);
    sums[chunk] += StateChecksum(begin, values.first(count));
    begin += count;
    values = values.subspan(count);
  }
}

}  // namespace zeroplan
