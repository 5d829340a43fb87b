#include "core/base/words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace zeroplan {

std::string AnyOf(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, "|"));
}

std::string QuotedChoice(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    const bool last = i + 1 == words.size();
    text += fmt::format("{}\"{}\"", i == 0 ? "" : last ? " or " : ", ", words[i]);
  }
  return text;
}

}  // namespace zeroplan
