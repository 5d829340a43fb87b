#include "text/documents/chat_turns.h"

#include <algorithm>

namespace zeroplan {

std::vector<Said> WhatIsSaid(const jinja::Text& text, const std::vector<std::string>& openers) {
  std::vector<jinja::Mark> sorted = text.marks;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.begin < b.begin; });
  const auto opens = [&](size_t from, size_t to) {
    const std::string_view between =
        std::string_view(text.bytes).substr(from, to > from ? to - from : 0);
    return std::any_of(openers.begin(), openers.end(), [&](const std::string& opener) {
      return between.find(opener) != std::string_view::npos;
    });
  };
  std::vector<Said> said;
  std::vector<int> seen;  // messages
  for (const jinja::Mark& mark : sorted) {
    const bool is_name = mark.message < 0;
    const Said next = {mark.begin, mark.end, is_name ? NameMark(mark.message) : mark.message};
    const bool goes_on = !said.empty() && said.back().message == next.message;
    if (is_name && (goes_on ? opens(said.back().end, mark.begin)
                            : std::find(seen.begin(), seen.end(), next.message) != seen.end())) {
      continue;
    }
    if (!goes_on) {
      said.push_back(next);
      seen.push_back(next.message);
    } else if (said.back().begin == said.back().end) {
      said.back() = next;
    } else if (mark.begin < mark.end) {
      said.back().end = std::max(said.back().end, mark.end);
    }
  }
  return said;
}

}  // namespace zeroplan
