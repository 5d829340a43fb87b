// A regular expression of a tokenizer.json: Oniguruma's meaning, PCRE2's machine.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace zeroplan {

class Regex {
 public:
  // Throws Error(kUsage) that starts with `where` ("FILE:LINE: key: ") if `pattern` cannot be used.
  Regex(std::string_view pattern, std::string_view where);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Calls on_match(begin, end) for all matches from left to right, as Oniguruma finds them: none
  // overlaps another, an empty one does not follow another directly. REQUIRES: well-formed UTF-8.
  // Throws Error(kUsage) if the expression needs more steps or memory than can be.
  void ForEachMatch(std::string_view text,
                    const std::function<void(size_t, size_t)>& on_match) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zeroplan
