#include "core/base/log.h"

#include <atomic>
#include <cstdio>

namespace zeroplan {
namespace {

std::atomic<LogLevel> log_level{LogLevel::kInfo};

}  // namespace

void SetLogLevel(LogLevel level) { log_level.store(level, std::memory_order_relaxed); }

LogLevel GetLogLevel() { return log_level.load(std::memory_order_relaxed); }

void LogLine(LogLevel level, std::string_view line) noexcept {
  if (level > GetLogLevel()) return;
  // The stream's own lock keeps a line whole: both writes happen under it, and nothing is
  // allocated.
  flockfile(stderr);
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fputc('\n', stderr);
  std::fflush(stderr);
  funlockfile(stderr);
}

void WriteStderr(std::string_view text) noexcept {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace zeroplan
