#include "core/base/log.h"

#include <atomic>
#include <cstdio>
#include <string>

#include "core/base/limits.h"
#include "core/base/strings.h"

namespace zeroplan {
namespace {

std::atomic<LogLevel> log_level{LogLevel::kInfo};

// Without memory for more: '?' for whatever might be a control character.
void WriteBare(std::string_view text) noexcept {
  for (const char c : text) std::fputc((c >= 0x20 && c < 0x7f) || c == '\n' ? c : '?', stderr);
}

void WritePlain(std::string_view text, const char* end) {
  const std::string message = Escaped(text) + end;
  std::fwrite(message.data(), 1, message.size(), stderr);
}

std::atomic<MessageWriter> message_writer{WritePlain};

// The stream's own lock keeps it whole.
void WriteMessage(std::string_view text, const char* end) noexcept {
  flockfile(stderr);
  try {
    message_writer.load(std::memory_order_relaxed)(text, end);
  } catch (...) {
    WriteBare(text);
    std::fputs(end, stderr);
  }
  std::fflush(stderr);
  funlockfile(stderr);
}

}  // namespace

void SetMessageWriter(MessageWriter writer) {
  message_writer.store(writer, std::memory_order_relaxed);
}

void SetLogLevel(LogLevel level) { log_level.store(level, std::memory_order_relaxed); }

LogLevel GetLogLevel() { return log_level.load(std::memory_order_relaxed); }

void LogLine(LogLevel level, std::string_view line) noexcept {
  if (level > GetLogLevel()) return;
  try {
    WriteMessage(BoundedMessage(line), "\n");
  } catch (...) {  // no memory for a copy
    WriteMessage(line.substr(0, kMostMessageBytes), "\n");
  }
}

void WriteStderr(std::string_view text) noexcept { WriteMessage(text, ""); }

}  // namespace zeroplan
