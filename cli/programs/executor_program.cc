// zeroplan-executor: all commands, those that run something among them. zeroplan becomes it for
// these (cli/common/executor_commands.h).
#include <string_view>

#include "cli/common/executor_commands.h"
#include "cli/common/output.h"
#include "cli/doctor/facts.h"
#include "cli/programs/app.h"
#include "core/base/version.h"
#include "executor/measure/measure_device.h"

namespace zeroplan {
namespace {

int PrintLibraries() {
#ifdef ZEROPLAN_WITH_CUDA
  const LibraryFacts facts = QueryLibraries();
#else
  LibraryFacts facts;
  facts.version = kVersion;
#endif
  WriteOutput("", LibrariesAsJson(facts) + "\n");
  return 0;
}

}  // namespace

int RunProgram(int argc, const char* const* argv) {
  if (argc == 2 && std::string_view(argv[1]) == kPrintLibraries) return PrintLibraries();
  return RunApp(argc, argv);
}

}  // namespace zeroplan
