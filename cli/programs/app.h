// The command line: parses words and runs a command.
#pragma once

namespace zeroplan {

// Parses and runs. Returns the exit code; throws Error and CheckFailure (main.cc maps them).
int RunApp(int argc, const char* const* argv);

// Called by main: RunApp, or an exec of another program. Each program defines it.
int RunProgram(int argc, const char* const* argv);

}  // namespace zeroplan
