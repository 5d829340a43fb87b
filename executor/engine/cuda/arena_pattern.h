// The byte pattern of executor/device/arena.h in the arenas of a rank on a GPU.
#pragma once

#include <array>
#include <cstdint>

#include "core/program/program.h"
#include "executor/device/arena.h"
#include "executor/device/swap_file.h"

namespace zeroplan {

// Fills all arenas.
void FillArenas(const Program& program, const ArenaBases& bases, const SwapFile& file);

// Index past the highest byte that differs from the pattern, by Space, once the GPU is idle.
std::array<uint64_t, kSpaces> ArenaPatternEnds(const Program& program, const ArenaBases& bases,
                                               const SwapFile& file);

}  // namespace zeroplan
