// Parts of the program's text form that messages are made of. The public functions are in
// program.h.
#pragma once

#include <cstdint>
#include <string>

#include "core/program/program.h"

namespace zeroplan {

// "", "[first]", "[only|last]".
std::string FormatWhen(uint8_t when);
// "params.unit[1]+0:1536@rank*1536"; a whole buffer is its name alone, an absent argument "_".
std::string FormatRef(const Program& program, const Ref& ref);
// Lines [begin, end) of a section, clamped to it; the line `mark` gets "-->".
std::string FormatLines(const Program& program, Section section, int64_t begin, int64_t end,
                        int64_t mark = -1);

}  // namespace zeroplan
