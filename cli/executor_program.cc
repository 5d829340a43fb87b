// zeroplan-executor: all commands, those that run something among them. zeroplan becomes it for
// these (cli/executor_commands.h).
#include "cli/app.h"

namespace zeroplan {

int RunProgram(int argc, const char* const* argv) { return RunApp(argc, argv); }

}  // namespace zeroplan
