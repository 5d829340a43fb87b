#include "executor/process/open_files.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <system_error>

#include "core/base/error.h"

namespace zeroplan {
namespace {

rlim_t OpenNow() {
  std::error_code error;
  std::filesystem::directory_iterator at("/proc/self/fd", error), end;
  rlim_t count = 0;
  for (; !error && at != end; at.increment(error)) ++count;
  return error ? 64 : count;
}

}  // namespace

int RaiseOpenFileLimit(int more) {
  rlimit limit{};
  const rlim_t open = OpenNow(), needed = open + static_cast<rlim_t>(more);
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return more;
  if (limit.rlim_cur < needed) {
    limit.rlim_cur = std::min(needed, limit.rlim_max);
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
  }
  if (limit.rlim_cur >= needed) return more;
  return limit.rlim_cur > open ? static_cast<int>(limit.rlim_cur - open) : 0;
}

void NeedOpenFiles(int more, const char* what) {
  const int can = RaiseOpenFileLimit(more);
  if (can >= more) return;
  ThrowRuntime(
      "{} need {} more open files, and this process's hard limit leaves {}; raise it (ulimit -Hn, "
      "LimitNOFILE of the service)",
      what, more, can);
}

}  // namespace zeroplan
