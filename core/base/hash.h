// Hashes of bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace zeroplan {

// 64-bit FNV-1a (Fowler, Noll and Vo; draft-eastlake-fnv): against accidents, not malice.
inline uint64_t HashBytes(std::span<const std::byte> bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const std::byte byte : bytes) {
    hash = (hash ^ std::to_integer<uint64_t>(byte)) * 0x100000001b3u;
  }
  return hash;
}

// Two lower-case hexadecimal digits a byte, in memory order.
std::string BytesToHex(const void* bytes, size_t count);

// SHA-256 (FIPS 180-4) and its keyed form HMAC (RFC 2104), for proofs that a process knows a secret
// and for names and digests that must not collide.
using Sha256Digest = std::array<uint8_t, 32>;

Sha256Digest Sha256(std::string_view bytes);
Sha256Digest HmacSha256(std::string_view key, std::string_view bytes);

inline std::string_view AsText(const Sha256Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace zeroplan
