#include "cli/executor_commands.h"

#include <filesystem>

namespace zeroplan {

std::string ExecutorPath() {
  std::error_code unknown;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", unknown);
  return (self.parent_path() / kExecutorProgram).string();
}

}  // namespace zeroplan
