// Which of a program's streams need a communicator.
#pragma once

#include "core/program/program.h"

namespace zeroplan {

// The streams that may run collectives, each through a communicator of its own.
inline constexpr int kMostCommunicators = 2;

// Whether `stream` runs a collective in any section.
bool RunsCollectives(const Program& program, Stream stream);

// How many communicators an engine makes for the program: of `gather` and `reduce` those that run
// collectives. None for one rank; one at stage 0, which gathers nothing.
int CommunicatorCount(const Program& program);

}  // namespace zeroplan
