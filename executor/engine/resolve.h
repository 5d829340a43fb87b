// A program with every reference turned into an address, for one rank: what a step looks up instead
// of computing. Built once; running a section allocates nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/program/program.h"
#include "executor/collectives/in_process.h"
#include "executor/device/arena.h"
#include "executor/kernels/kernel_call.h"

namespace zeroplan {

// The addresses of one instruction; which fields count depends on the op.
struct ResolvedInstruction {
  // LaunchKernel: its range of ResolvedProgram's arguments. Collective: of its segments.
  uint32_t first = 0;
  uint32_t count = 0;
  std::byte* src = nullptr;  // Copy; FileIo: the host range
  std::byte* dst = nullptr;  // Copy
  uint64_t bytes = 0;        // Copy; FileIo: of the host range. Collective: sent by this rank
  uint64_t file_offset = 0;  // FileIo to the swap file
  // Index past the last byte of the arena that the instruction touches, by Space; 0 if none. Alloc
  // and Free touch nothing.
  std::array<uint64_t, kSpaces> touched_end{};
};

class ResolvedProgram {
 public:
  // Throws CheckFailure, naming the instruction, if a reference leaves its buffer or a buffer its
  // arena, sizes do not match, or the backend has no such kernel. Addresses point into `arenas`.
  ResolvedProgram(const Program& program, const ArenaBases& arenas, const KernelTable& kernels,
                  int rank);

  // In the section's order.
  std::span<const ResolvedInstruction> section(Section section) const {
    return sections_[static_cast<size_t>(section)];
  }
  std::span<const KernelArg> args(const ResolvedInstruction& launch) const {
    return {args_.data() + launch.first, launch.count};
  }
  std::span<const CommSegment> segments(const ResolvedInstruction& collective) const {
    return {segments_.data() + collective.first, collective.count};
  }

 private:
  std::array<std::vector<ResolvedInstruction>, kSections> sections_;
  std::vector<KernelArg> args_;
  std::vector<CommSegment> segments_;
};

}  // namespace zeroplan
