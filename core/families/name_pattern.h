// Regular expressions of Python's `re` over the names of modules, as adapter_config.json has them.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zeroplan {

// An expression has characters, sets, groups, alternatives, repetitions, ^, $ and \b. What needs
// backtracking (references, looking ahead or behind, possessive repetitions), flags and what is not
// ASCII are refused. Whether a name matches takes at most its length times the size of the
// expression, which is bounded, in steps: all places where a match can be are followed together.
class NamePattern {
 public:
  // Steps that all names together may take: a second's work.
  static constexpr int64_t kMostSteps = 200'000'000;

  // Throws Error(kUsage) that starts with `where` ("FILE:LINE: key: ") and quotes `pattern`, for
  // what Python refuses, and for what is refused here.
  NamePattern(std::string_view pattern, std::string_view where);

  // The expression's size, with what it repeats written out: at most 8192.
  int64_t size() const { return static_cast<int64_t>(program_.size()); }

  // As re.fullmatch. `steps`: what may still be taken; it is less afterwards, and below 0 the
  // answer means nothing.
  bool FullyMatches(std::string_view name, int64_t& steps) const {
    return Run(name, /*whole=*/true, steps);
  }
  // As re.match: from the start, to anywhere.
  bool MatchesFront(std::string_view name, int64_t& steps) const {
    return Run(name, /*whole=*/false, steps);
  }

 private:
  friend class NamePatternReader;

  enum class Kind : uint8_t { kSet, kSplit, kStart, kEnd, kBorder, kNoBorder, kMatch };
  struct Step {
    Kind kind = Kind::kMatch;
    int set = 0;              // kSet
    int next = 0, other = 0;  // kSplit goes to both
  };

  bool Run(std::string_view name, bool whole, int64_t& steps) const;

  std::vector<Step> program_;
  std::vector<std::bitset<128>> sets_;
};

}  // namespace zeroplan
