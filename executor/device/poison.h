// Marks arena bytes that no live buffer owns, so that AddressSanitizer reports a kernel that
// touches one byte too many. Without AddressSanitizer everything here is empty.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#define ZEROPLAN_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ZEROPLAN_ASAN 1
#endif
#endif

#ifdef ZEROPLAN_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace zeroplan {

#ifdef ZEROPLAN_ASAN
inline constexpr bool kPoisoning = true;
inline void PoisonBytes(const std::byte* begin, uint64_t bytes) {
  ASAN_POISON_MEMORY_REGION(begin, bytes);
}
inline void UnpoisonBytes(const std::byte* begin, uint64_t bytes) {
  ASAN_UNPOISON_MEMORY_REGION(begin, bytes);
}
#else
inline constexpr bool kPoisoning = false;
inline void PoisonBytes(const std::byte*, uint64_t) {}
inline void UnpoisonBytes(const std::byte*, uint64_t) {}
#endif

}  // namespace zeroplan
