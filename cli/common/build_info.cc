#include "cli/common/build_info.h"

#include <fmt/format.h>

#include "cli/common/executor_commands.h"
#include "core/base/build_info.h"
#include "core/base/version.h"

namespace zeroplan {
namespace {

std::string ExecutorText(const BuildInfo& build) {
  if (!build.executor) return "none: this build plans, and does not train";
  if (!HasExecutor()) return "not here; " + ExecutorAdvice();
  if (build.cuda.empty()) return fmt::format("CPU alone: {}", build.cuda_status);
  const std::string cudnn =
      build.cudnn.empty() ? "no cuDNN" : fmt::format("cuDNN {}, loaded when used", build.cudnn);
  return fmt::format(
      "CPU; CUDA {}, NCCL {}, {}\n"
      "GPUs      of architectures {}",
      build.cuda, build.nccl, cudnn, build.architectures);
}

}  // namespace

std::string VersionText() {
  const BuildInfo& build = GetBuildInfo();
  const std::string commit =
      build.commit.empty()
          ? "unknown: not built in a git checkout"
          : fmt::format("{} of {}{}", build.commit, build.date,
                        build.changed ? ", with changes that are not committed" : "");
  return fmt::format(
      "zeroplan {}\n"
      "commit    {}\n"
      "built by  {}\n"
      "executor  {}",
      kVersion, commit, build.compiler, ExecutorText(build));
}

}  // namespace zeroplan
