#include "executor/device/arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/units.h"

namespace zeroplan {
namespace {

// The kernel maps whole pages: a read past the end of an arena would go unnoticed if the rest of
// the last one were not poisoned too.
uint64_t MappedBytes(uint64_t bytes) { return AlignUp(bytes, 4096); }

}  // namespace

MemoryArena::MemoryArena(Space space, uint64_t bytes, int rank) {
  if (bytes == 0) return;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    ThrowRuntime("rank {}: no memory for the {} arena of {} bytes ({}): {}", rank, SpaceName(space),
                 bytes, FormatBytes(bytes), std::strerror(errno));
  }
  memory_ = {static_cast<std::byte*>(memory), UnmapMemory{bytes}};
  // One rank speaks for all: they run into the same limit.
  if (space == Space::kPinned && mlock(memory, bytes) != 0 && rank == 0) {
    LogLine(LogLevel::kDebug,
            fmt::format("pinned arena of {} bytes is not locked into memory: {} (see ulimit -l)",
                        bytes, std::strerror(errno)));
  }
  PoisonBytes(data(), MappedBytes(bytes));
}

void UnmapMemory::operator()(std::byte* memory) const noexcept {
  // Whatever is mapped here next starts with a clean shadow.
  UnpoisonBytes(memory, MappedBytes(bytes));
  munmap(memory, bytes);
}

RankArenas::RankArenas(const Program& program, int rank, const std::string& swap_dir,
                       bool pattern) {
  for (size_t space = 0; space < memory_.size(); ++space) {
    const uint64_t bytes = program.arena_bytes[space];
    memory_[space] = MemoryArena(static_cast<Space>(space), bytes, rank);
    if (pattern && bytes > 0) {
      UnpoisonBytes(memory_[space].data(), bytes);
      FillPattern({memory_[space].data(), bytes}, 0);
      PoisonBytes(memory_[space].data(), bytes);
    }
  }
  const uint64_t file_bytes = program.arena_bytes[static_cast<size_t>(Space::kFile)];
  if (file_bytes > 0) {
    file_ = SwapFile(swap_dir, file_bytes, rank);
    if (pattern) file_.FillWithPattern();
  }
}

std::byte* RankArenas::data(Space space) const {
  ZEROPLAN_CHECK(space != Space::kFile, "the file arena has no address");
  return memory_[static_cast<size_t>(space)].data();
}

ArenaBases RankArenas::bases() const {
  ArenaBases bases{};
  for (size_t space = 0; space < memory_.size(); ++space) bases[space] = memory_[space].data();
  return bases;
}

std::span<std::byte> RankArenas::bytes(const Buffer& buffer) const {
  std::byte* begin = data(buffer.space);
  const uint64_t arena = memory_[static_cast<size_t>(buffer.space)].bytes();
  ZEROPLAN_CHECK(buffer.offset <= arena && buffer.bytes <= arena - buffer.offset,
                 "buffer [{}, +{}) is outside the {} arena of {} bytes", buffer.offset,
                 buffer.bytes, SpaceName(buffer.space), arena);
  return {begin + buffer.offset, buffer.bytes};
}

void RankArenas::MarkLive(const Buffer& buffer) const {
  if (!kPoisoning || buffer.space == Space::kFile) return;
  UnpoisonBytes(bytes(buffer).data(), buffer.bytes);
}

void RankArenas::MarkFree(const Buffer& buffer) const {
  if (!kPoisoning || buffer.space == Space::kFile) return;
  PoisonBytes(bytes(buffer).data(), buffer.bytes);
}

std::array<uint64_t, kSpaces> RankArenas::PatternHighWater() const {
  std::array<uint64_t, kSpaces> ends{};
  for (size_t space = 0; space < memory_.size(); ++space) {
    ends[space] = PatternEnd({memory_[space].data(), memory_[space].bytes()}, 0);
  }
  ends[static_cast<size_t>(Space::kFile)] = file_.PatternHighWater();
  return ends;
}

#if defined(__GNUC__)
#define ZEROPLAN_READS_POISON __attribute__((no_sanitize("address")))
#else
#define ZEROPLAN_READS_POISON
#endif

std::byte PatternByte(uint64_t position) {
  // One multiply-xorshift round (constants of SplitMix64): neighbours differ, no period shorter
  // than the arena that a copy of a whole buffer could hide behind.
  uint64_t hash = (position + 1) * 0x9e3779b97f4a7c15u;
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;
  hash ^= hash >> 31;
  const uint64_t sign = hash & 0x80u;
  return static_cast<std::byte>(sign | (0x60u + (hash >> 40) % 28u));
}

void FillPattern(std::span<std::byte> bytes, uint64_t first_position) {
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = PatternByte(first_position + i);
}

ZEROPLAN_READS_POISON uint64_t PatternEnd(std::span<const std::byte> bytes,
                                          uint64_t first_position) {
  const std::byte* data = bytes.data();
  for (uint64_t end = bytes.size(); end > 0; --end) {
    if (data[end - 1] != PatternByte(first_position + end - 1)) return end;
  }
  return 0;
}

}  // namespace zeroplan
