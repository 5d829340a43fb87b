// "Did you mean ...?" for option values, presets and config keys.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace zeroplan {

// The nearest of `known` to `word` (edit distance <= 3 and < half its length; of several the one
// that begins most like it), or "".
std::string NearestName(std::string_view word, const std::vector<std::string>& known);

}  // namespace zeroplan
