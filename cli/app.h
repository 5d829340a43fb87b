// The command line: one Register function a subcommand, each in the file of its name.
#pragma once

#include <string>

// CLI11 is heavy to compile: only the files that add options include it.
namespace CLI {
class App;
}

namespace zeroplan {

// How a subcommand joins: it adds itself to `app`, keeps its options in a shared_ptr that its
// callback holds, and does its work in that callback. A callback reports results on stdout,
// messages on stderr, and ends unsuccessfully by throwing Error with the exit code. A new command
// is a file that defines its Register function, a declaration here, and a line in RunApp.
void RegisterEstimate(CLI::App& app);
void RegisterPlan(CLI::App& app);
void RegisterConfig(CLI::App& app);
void RegisterModel(CLI::App& app);
void RegisterHardware(CLI::App& app);
void RegisterData(CLI::App& app);
void RegisterTrain(CLI::App& app);
void RegisterExplain(CLI::App& app);
void RegisterGenerate(CLI::App& app);

// Parses and runs. Returns the exit code; throws Error and CheckFailure (main.cc maps them).
int RunApp(int argc, const char* const* argv);

}  // namespace zeroplan
