#include "core/base/error.h"

#include <algorithm>

#include "core/base/limits.h"

namespace zeroplan {

Error::Error(ExitCode code, const std::string& message)
    : std::runtime_error(BoundedMessage(message)), code_(code) {}

std::string NameFields(std::string_view text, FieldStyle style) {
  constexpr std::string_view kOpen = "\u27e6", kClose = "\u27e7";
  constexpr std::string_view kOfNames = "abcdefghijklmnopqrstuvwxyz0123456789_";
  std::string named;
  for (size_t at = 0;;) {
    const size_t open = text.find(kOpen, at);
    named += text.substr(at, open - at);
    if (open == std::string_view::npos) return named;
    const size_t name = open + kOpen.size();
    const size_t end = std::min(text.find_first_not_of(kOfNames, name), text.size());
    if (end == name || !text.substr(end).starts_with(kClose)) {
      named += kOpen;
      at = name;
      continue;
    }
    named += style.before;
    for (const char c : text.substr(name, end - name)) named += c == '_' ? style.joint : c;
    at = end + kClose.size();
  }
}

void FailCheck(const char* file, int line, const char* condition, const std::string& detail) {
  throw CheckFailure(fmt::format("{}:{}: check failed: {}{}{} (a bug in zeroplan)", file, line,
                                 condition, detail.empty() ? "" : ": ", detail));
}

}  // namespace zeroplan
