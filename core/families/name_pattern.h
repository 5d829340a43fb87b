// Regular expressions of Python's `re` over module names, as in adapter_config.json.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zeroplan {

// Supports characters, sets, groups, alternatives, repetitions, ^, $ and \b. Refuses constructs
// that need backtracking (references, looking ahead or behind, possessive repetitions), flags and
// non-ASCII characters. Matching a name needs at most its length times the expression's size in
// steps, and that size is bounded: all places where a match can be are followed together.
class NamePattern {
 public:
  // Limit of steps over all names: a second's work.
  static constexpr int64_t kMostSteps = 200'000'000;

  // Throws Error(kUsage) that starts with `where` ("FILE:LINE: key: ") and quotes `pattern`, for
  // patterns that Python refuses, and for those refused here.
  NamePattern(std::string_view pattern, std::string_view where);

  // The expression's size, with repetitions written out: at most 8192.
  int64_t size() const { return static_cast<int64_t>(program_.size()); }

  // Same as re.fullmatch. `steps`: the steps left, reduced by those used; below 0 the result is
  // invalid.
  bool FullyMatches(std::string_view name, int64_t& steps) const {
    return Run(name, /*whole=*/true, steps);
  }
  // Same as re.match: from the start, to anywhere.
  bool MatchesFront(std::string_view name, int64_t& steps) const {
    return Run(name, /*whole=*/false, steps);
  }

 private:
  friend class NamePatternReader;

  enum class Kind : uint8_t { kSet, kSplit, kStart, kEnd, kBorder, kNoBorder, kMatch };
  struct Step {
    Kind kind = Kind::kMatch;
    int set = 0;              // kSet
    int next = 0, other = 0;  // successors of a step; kSplit continues at both
  };

  bool Run(std::string_view name, bool whole, int64_t& steps) const;

  std::vector<Step> program_;
  std::vector<std::bitset<128>> sets_;
};

}  // namespace zeroplan
