#include "cli/common/executor_commands.h"

#include <filesystem>

namespace zeroplan {

std::vector<std::string> ExecutorPlaces() {
  std::error_code unknown;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", unknown);
  const std::filesystem::path folder = self.parent_path();
  return {(folder / kExecutorProgram).string(),
          (folder / ZEROPLAN_EXECUTOR_FOLDER / kExecutorProgram).lexically_normal().string()};
}

std::string ExecutorPath() {
  const std::vector<std::string> places = ExecutorPlaces();
  for (const std::string& place : places) {
    std::error_code unknown;
    if (std::filesystem::exists(place, unknown)) return place;
  }
  return places.front();
}

}  // namespace zeroplan
