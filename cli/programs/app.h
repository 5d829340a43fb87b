// The command line: words to a command that runs.
#pragma once

namespace zeroplan {

// Parses and runs. Returns the exit code; throws Error and CheckFailure (main.cc maps them).
int RunApp(int argc, const char* const* argv);

// What main calls: RunApp, or another program in this one's place. One of each program.
int RunProgram(int argc, const char* const* argv);

}  // namespace zeroplan
