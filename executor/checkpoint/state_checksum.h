// Sums that tell saved state from what a disk or a hand has made of it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace zeroplan {

// fp32 elements of an entry that one sum stands for: 16 MiB.
inline constexpr uint64_t kChecksumElements = uint64_t{1} << 22;

inline uint64_t ChecksumCount(uint64_t elements) {
  return (elements + kChecksumElements - 1) / kChecksumElements;
}

// The checksum of values that begin at element `begin` of their entry:
//
//   sum over i of key(i) * bits(i)   modulo 2^64, every key odd and made from its index alone
//
// so the sums of parts add up, in any order. One changed element always changes the sum, since an
// odd key has an inverse; several changes cancel out once in 2^64. Against accidents, not malice.
uint64_t StateChecksum(uint64_t begin, std::span<const float> values);

// Adds values that begin at element `begin` to the sums of an entry's chunks.
void AddToChecksums(uint64_t begin, std::span<const float> values, std::span<uint64_t> sums);

}  // namespace zeroplan
