// A program with every reference resolved to an address, for one rank, so that a step looks
// addresses up instead of computing them. Built once; running a section allocates nothing.
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

// The addresses of one instruction; the op determines which members are set.
struct ResolvedInstruction {
  // LaunchKernel: its range of ResolvedProgram's arguments. Collective: the range of its segments.
  uint32_t first = 0;
  uint32_t count = 0;
  std::byte* src = nullptr;  // Copy; FileIo: host memory
  std::byte* dst = nullptr;  // Copy
  uint64_t bytes = 0;        // Copy; FileIo: size of the host range. Collective: sent by this rank
  uint64_t file_offset = 0;  // FileIo of the swap file
  // Index after the last byte of each arena that the instruction touches, by Space; 0 if none.
  // Alloc and Free touch nothing.
  std::array<uint64_t, kSpaces> touched_end{};
};

class ResolvedProgram {
 public:
  // Throws CheckFailure, naming the instruction, if a reference exceeds its buffer or a buffer its
  // arena, sizes do not match, or the backend lacks the kernel. Addresses point into `arenas`.
  ResolvedProgram(const Program& program, const ArenaBases& arenas, const KernelTable& kernels,
                  int rank);

  // In the order of the section.
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
