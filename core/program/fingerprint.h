// A number that two programs share only if they are the same program.
#pragma once

#include <cstdint>
#include <string>

#include "core/program/program.h"

namespace zeroplan {

// 64 bits over everything that planner and executor read of a program: model, batch, layout of the
// parameters, buffers with their places, arguments, segments, instructions in their order, arenas.
// Not over what the engine hands in at run time (learning rate, betas, schedule, loss scaling,
// folder of the swap file), so a run may change those and still execute the same program. The same
// on every machine: values are hashed, not memory. About 0.2 ms for 10,000
// instructions.
uint64_t Fingerprint(const Program& program);

// 16 hexadecimal digits.
std::string FormatFingerprint(uint64_t fingerprint);

}  // namespace zeroplan
