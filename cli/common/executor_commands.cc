#include "cli/common/executor_commands.h"

#include <filesystem>

#include "core/base/shell_process.h"

namespace zeroplan {

namespace fs = std::filesystem;

std::vector<std::string> ExecutorPlaces() {
  const fs::path folder = ProgramFolder();
  return {(folder / kExecutorProgram).string(),
          (folder / ZEROPLAN_EXECUTOR_FOLDER / kExecutorProgram).lexically_normal().string()};
}

std::string ExecutorPath() {
  const std::vector<std::string> places = ExecutorPlaces();
  for (const std::string& place : places) {
    std::error_code unknown;
    if (fs::exists(place, unknown)) return place;
  }
  return places.front();
}

bool HasExecutor() {
  std::error_code unknown;
  return fs::exists(ExecutorPath(), unknown);
}

std::string ExecutorAdvice() {
#ifdef ZEROPLAN_RELEASE
  return PipInstall("'zeroplan[train]'") +
         " (where the wheels are files, with --find-links FOLDER)";
#else
  return "build it (scripts/build.sh release zeroplan_executor_program), or copy it from where "
         "zeroplan was built";
#endif
}

}  // namespace zeroplan
