// A number that two programs share only if they are the same program.
#pragma once

#include <cstdint>
#include <string>

#include "core/program/program.h"

namespace zeroplan {

// A 64-bit hash of everything that planner and executor read of a program: model, batch, layout of
// the parameters, buffers with their places, arguments, segments, instructions in their order,
// arenas. It leaves out values that the engine passes in at run time (learning rate, betas,
// schedule, loss scaling, folder of the swap file): a run may change those values and still execute
// the same program. The hash is the same on every machine, because it hashes values, not memory.
// Takes about 0.2 ms for 10,000 instructions.
uint64_t Fingerprint(const Program& program);

// 16 hexadecimal digits.
std::string FormatFingerprint(uint64_t fingerprint);

}  // namespace zeroplan
