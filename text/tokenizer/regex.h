// A regular expression of a tokenizer.json. Oniguruma runs it, as in the PyPI package `tokenizers`.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

struct re_pattern_buffer;  // OnigRegexType of oniguruma.h

namespace zeroplan {

class Regex {
 public:
  // Throws Error(kUsage) that starts with `where` ("FILE:LINE: key: ") if `pattern` cannot be used.
  Regex(std::string_view pattern, std::string_view where);

  // Calls on_match(begin, end) for all matches from left to right: none overlaps another, an empty
  // one does not follow another directly. REQUIRES: well-formed UTF-8. Throws Error(kUsage) if the
  // expression needs more steps or memory than can be.
  void ForEachMatch(std::string_view text,
                    const std::function<void(size_t, size_t)>& on_match) const;

 private:
  struct Free {
    void operator()(re_pattern_buffer* compiled) const;
  };

  std::string pattern_, where_;
  std::unique_ptr<re_pattern_buffer, Free> compiled_;
};

}  // namespace zeroplan
