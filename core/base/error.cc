#include "core/base/error.h"

namespace zeroplan {

std::string NameFields(std::string_view text, FieldStyle style) {
  const auto of_word = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  std::string named;
  for (size_t at = 0;;) {
    const size_t mark = text.find("@@", at);
    named += text.substr(at, mark - at);
    if (mark == std::string_view::npos) return named;
    at = mark + 2;
    const bool names = at < text.size() && text[at] >= 'a' && text[at] <= 'z' &&
                       (mark == 0 || !of_word(text[mark - 1]));
    named += names ? style.before : "@@";
    for (; names && at < text.size() && of_word(text[at]); ++at) {
      named += text[at] == '_' ? style.joint : text[at];
    }
  }
}

void FailCheck(const char* file, int line, const char* condition, const std::string& detail) {
  throw CheckFailure(fmt::format("{}:{}: check failed: {}{}{} (a bug in zeroplan)", file, line,
                                 condition, detail.empty() ? "" : ": ", detail));
}

}  // namespace zeroplan
