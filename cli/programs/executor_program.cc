// zeroplan-executor: all commands, those that run something among them. zeroplan becomes it for
// these (cli/common/executor_commands.h).
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "cli/common/executor_commands.h"
#include "cli/common/output.h"
#include "cli/doctor/facts.h"
#include "cli/programs/app.h"
#include "core/base/error.h"
#include "core/base/version.h"
#include "core/program/attention_path.h"
#include "executor/kernels/cpu_levels.h"
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

int PrintPinnedMemory([[maybe_unused]] const char* bytes, [[maybe_unused]] const char* seconds) {
#ifdef ZEROPLAN_WITH_CUDA
  try {
    const PinnedFacts facts =
        TryPinnedMemory(std::strtoull(bytes, nullptr, 10), std::strtod(seconds, nullptr));
    WriteOutput("", PinnedAsJson(facts) + "\n");
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "{}", error.what());
  }
#endif
  return 1;
}

}  // namespace

int RunProgram(int argc, const char* const* argv) {
  // As the driver numbers them, which detection asks, and not the fastest first.
  setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", /*overwrite=*/0);
  if (argc == 2 && std::string_view(argv[1]) == kPrintLibraries) return PrintLibraries();
  if (argc == 4 && std::string_view(argv[1]) == kTryPinnedMemory) {
    return PrintPinnedMemory(argv[2], argv[3]);
  }
  // Refuse a wrong ZEROPLAN_CPU or ZEROPLAN_ATTENTION before a command starts.
  BestCpuKernels();
  AttentionLibraryOff();
  return RunApp(argc, argv);
}

}  // namespace zeroplan
