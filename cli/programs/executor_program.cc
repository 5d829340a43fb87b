// zeroplan-executor: all commands, those that run something among them. zeroplan becomes it for
// these (cli/executor_commands.h).
#include <string_view>

#include "cli/executor_commands.h"
#include "cli/programs/app.h"
#include "cli/run/print_libraries.h"

namespace zeroplan {

int RunProgram(int argc, const char* const* argv) {
  if (argc == 2 && std::string_view(argv[1]) == kPrintLibraries) return PrintLibraries();
  return RunApp(argc, argv);
}

}  // namespace zeroplan
