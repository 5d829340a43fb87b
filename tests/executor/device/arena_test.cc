#include "executor/device/arena.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/base/error.h"

namespace zeroplan {
namespace {

Buffer MakeBuffer(Space space, uint64_t offset, uint64_t bytes) {
  Buffer buffer;
  buffer.space = space;
  buffer.offset = offset;
  buffer.bytes = bytes;
  return buffer;
}

TEST_CASE("arena: exactly the planned bytes, page aligned, zero at first") {
  const MemoryArena arena(Space::kPageable, 10'000, 0);
  CHECK(arena.bytes() == 10'000);
  CHECK(reinterpret_cast<uintptr_t>(arena.data()) % 4096 == 0);
  UnpoisonBytes(arena.data(), arena.bytes());
  CHECK(std::all_of(arena.data(), arena.data() + arena.bytes(),
                    [](std::byte b) { return b == std::byte{0}; }));
}

TEST_CASE("arena: nothing planned is nothing allocated") {
  const MemoryArena arena(Space::kDevice, 0, 0);
  CHECK(arena.data() == nullptr);
  CHECK(arena.bytes() == 0);
}

TEST_CASE("arena: a request that cannot be met names space and bytes") {
  try {
    const MemoryArena arena(Space::kPinned, uint64_t{1} << 60, 3);
    FAIL("an exbibyte was granted");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kRuntime);
    const std::string message = error.what();
    CHECK(message.find("rank 3") != std::string::npos);
    CHECK(message.find("pinned") != std::string::npos);
    CHECK(message.find("1152921504606846976") != std::string::npos);
  }
}

TEST_CASE("arena: a locked-memory limit is no error") {
  // Larger than the usual limit of 8 MB.
  const MemoryArena arena(Space::kPinned, 64u << 20, 0);
  CHECK(arena.bytes() == 64u << 20);
}

TEST_CASE("arena: the pattern shows how far up it was written") {
  Program program;
  program.arena_bytes = {1000, 300, 0, 0};
  const RankArenas arenas(program, 0, "", /*pattern=*/true);
  CHECK(arenas.PatternHighWater() == std::array<uint64_t, kSpaces>{0, 0, 0, 0});
  const Buffer buffer = MakeBuffer(Space::kDevice, 128, 64);
  arenas.MarkLive(buffer);
  std::ranges::fill(arenas.bytes(buffer), std::byte{0});
  CHECK(arenas.PatternHighWater() == std::array<uint64_t, kSpaces>{192, 0, 0, 0});
}

TEST_CASE("arena: a buffer outside its arena is a bug") {
  Program program;
  program.arena_bytes = {100, 0, 0, 0};
  const RankArenas arenas(program, 0, "", false);
  CHECK_THROWS_AS(arenas.bytes(MakeBuffer(Space::kDevice, 96, 8)), CheckFailure);
  CHECK_THROWS_AS(arenas.bytes(MakeBuffer(Space::kFile, 0, 0)), CheckFailure);
}

#ifdef ZEROPLAN_ASAN
TEST_CASE("arena: what is not live is poisoned") {
  Program program;
  program.arena_bytes = {1024, 0, 0, 0};
  const RankArenas arenas(program, 0, "", false);
  const Buffer buffer = MakeBuffer(Space::kDevice, 128, 72);
  const std::byte* begin = arenas.bytes(buffer).data();
  CHECK(__asan_address_is_poisoned(begin));
  arenas.MarkLive(buffer);
  CHECK(__asan_region_is_poisoned(const_cast<std::byte*>(begin), 72) == nullptr);
  CHECK(__asan_address_is_poisoned(begin - 1));
  CHECK(__asan_address_is_poisoned(begin + 72));
  arenas.MarkFree(buffer);
  CHECK(__asan_address_is_poisoned(begin + 71));
}
#endif

TEST_CASE("pattern: depends on the position in the arena alone") {
  std::vector<std::byte> whole(1000), part(300);
  FillPattern(whole, 0);
  FillPattern(part, 500);
  CHECK(std::equal(part.begin(), part.end(), whole.begin() + 500));
  CHECK_FALSE(std::equal(part.begin(), part.end(), whole.begin()));
}

TEST_CASE("pattern: the end is past the last changed byte") {
  std::vector<std::byte> bytes(1000);
  FillPattern(bytes, 64);
  CHECK(PatternEnd(bytes, 64) == 0);
  bytes[0] = std::byte{0};
  CHECK(PatternEnd(bytes, 64) == 1);
  bytes[998] = std::byte{0x3f};
  CHECK(PatternEnd(bytes, 64) == 999);
}

TEST_CASE("pattern: a buffer of it holds no value that training writes") {
  std::vector<std::byte> bytes(4096);
  FillPattern(bytes, 0);
  for (size_t i = 0; i < bytes.size(); i += sizeof(float)) {
    float value = 0;
    std::memcpy(&value, &bytes[i], sizeof(value));
    CHECK(std::isfinite(value));
    CHECK(std::fabs(value) > 1e19f);
  }
}

}  // namespace

}  // namespace zeroplan
