// Errors that zeroplan reports for mistakes of the user and failures of the environment. Bugs of
// zeroplan itself are ZEROPLAN_CHECK failures, never an Error.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace zeroplan {

// The process exit codes (fixed contract of the command line).
enum class ExitCode : int {
  kDone = 0,
  kUsage = 2,         // bad usage, config or input file
  kNothingFits = 3,   // no choice fits; the message names the smallest change that would
  kRuntime = 4,       // device, communication or I/O failure while running
  kDiverged = 5,      // training diverged
  kInterrupted = 130  // interrupted after saving
};

// `message` names file, key, value and the allowed values. It writes a field of the request as
// "⟦gpu_memory⟧": the outer layer names it in the caller's style (NameFields). It may quote a
// file's text of any length and any bytes: what() is its BoundedMessage (limits.h).
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message);
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// Throws Error(kUsage) with an fmt-formatted message.
template <typename... Args>
[[noreturn]] void ThrowUsage(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ExitCode::kUsage, fmt::format(format, std::forward<Args>(args)...));
}

// Throws Error(kRuntime) with an fmt-formatted message.
template <typename... Args>
[[noreturn]] void ThrowRuntime(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ExitCode::kRuntime, fmt::format(format, std::forward<Args>(args)...));
}

// The style of field names: on a command line "--gpu-memory".
struct FieldStyle {
  std::string_view before;  // "--"
  char joint;               // joins a name's words: '-'
};
inline constexpr FieldStyle kOptionStyle = {"--", '-'};

// Returns `text` with each marked field, "⟦gpu_memory⟧", named in that style.
std::string NameFields(std::string_view text, FieldStyle style = kOptionStyle);

// A broken invariant: a bug in zeroplan. Thrown by ZEROPLAN_CHECK.
class CheckFailure : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void FailCheck(const char* file, int line, const char* condition,
                            const std::string& detail);

}  // namespace zeroplan

// ZEROPLAN_CHECK(condition) or ZEROPLAN_CHECK(condition, "format {}", value).
#define ZEROPLAN_CHECK(condition, ...)                                                      \
  do {                                                                                      \
    if (!(condition)) [[unlikely]]                                                          \
      ::zeroplan::FailCheck(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)
