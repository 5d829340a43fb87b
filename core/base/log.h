// Messages for people, on stderr. Results go to stdout and never through here.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace zeroplan {

enum class LogLevel { kQuiet, kWarning, kInfo, kDebug };

void SetLogLevel(LogLevel level);
LogLevel GetLogLevel();

// Writes a message and its end, a line feed or nothing, to stderr; one thread at a time. May throw.
using MessageWriter = void (*)(std::string_view text, const char* end);
// Sets the writer of all later messages. Without one they are written as they are, except for
// control characters.
void SetMessageWriter(MessageWriter writer);

// Writes one line to stderr, whole even when several threads log. Never throws.
void LogLine(LogLevel level, std::string_view line) noexcept;

// Writes to stderr whatever the log level: progress, a program's last words. If stderr accepts
// nothing (its disk is full), the text is lost and the run goes on. Never throws.
void WriteStderr(std::string_view text) noexcept;

template <typename... Args>
void LogInfo(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogWarning(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kWarning, "warning: " + fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace zeroplan
