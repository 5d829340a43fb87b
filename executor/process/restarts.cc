#include "executor/process/restarts.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/log.h"

namespace zeroplan {

int LaunchWithRestarts(LaunchOptions options, const RestartOptions& restarts) {
  for (int attempt = 0;; ++attempt) {
    options.environment = {{kRestartVariable, std::to_string(attempt)}};
    const LaunchEnd end = Launch(options);
    const bool worth_it =
        end.exit_code == static_cast<int>(ExitCode::kRuntime) && end.started && !end.stopped;
    if (!worth_it || restarts.restarts == 0) return end.exit_code;
    if (attempt == restarts.restarts) {
      WriteStderr(fmt::format("zeroplan: {}; all {} restarts are used up (--restarts)\n",
                              end.failure, restarts.restarts));
      return end.exit_code;
    }
    WriteStderr(fmt::format("zeroplan: restart {} of {}, since {}: going on from {}\n", attempt + 1,
                            restarts.restarts, end.failure, restarts.where()));
    if (std::find(options.arguments.begin(), options.arguments.end(), "--resume") ==
        options.arguments.end()) {
      options.arguments.push_back("--resume");
    }
  }
}

}  // namespace zeroplan
