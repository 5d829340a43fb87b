// Where a thread of a rank is in its program: set by the thread as it goes, read by any other.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/program/program.h"

namespace zeroplan {

enum class Doing : uint8_t {
  kNothing,      // not called, or done with what it was called for
  kReadsBatch,   // in the caller's FillBatch
  kRuns,         // an instruction, or the call that issues it
  kMeetsOthers,  // a collective of ranks that are threads
  kAwaitsGpu,    // all up to this instruction is issued
  kAwaitsEvent,  // a wait of the program
};

struct Standpoint {
  Doing doing = Doing::kNothing;
  Section section = Section::kInit;
  uint32_t index = 0;       // of the instruction, within the section
  uint16_t repetition = 0;  // micro-step
};

// One writer.
class RankPlace {
 public:
  void Set(Doing doing, Section section, size_t index, int repetition) noexcept {
    const uint64_t packed = static_cast<uint64_t>(doing) | static_cast<uint64_t>(section) << 8 |
                            static_cast<uint64_t>(static_cast<uint16_t>(repetition)) << 16 |
                            static_cast<uint64_t>(index) << 32;
    place_.store(packed, std::memory_order_relaxed);
    moves_.store(moves_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  // The same instruction, something else.
  void Turn(Doing doing) noexcept {
    const Standpoint at = get();
    Set(doing, at.section, at.index, at.repetition);
  }
  void CountCollectives(uint64_t count) noexcept {
    collectives_.store(collectives_.load(std::memory_order_relaxed) + count,
                       std::memory_order_relaxed);
  }

  Standpoint get() const noexcept {
    const uint64_t packed = place_.load(std::memory_order_relaxed);
    return {static_cast<Doing>(packed & 0xff), static_cast<Section>(packed >> 8 & 0xff),
            static_cast<uint32_t>(packed >> 32), static_cast<uint16_t>(packed >> 16 & 0xffff)};
  }
  // Changes whenever the thread gets anywhere.
  uint64_t moves() const noexcept { return moves_.load(std::memory_order_relaxed); }
  // Begun or issued so far, since the rank was made.
  uint64_t collectives() const noexcept { return collectives_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> place_{0}, moves_{0}, collectives_{0};
};

}  // namespace zeroplan
