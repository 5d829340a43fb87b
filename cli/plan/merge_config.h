// A config that came in, with what was written of a plan in it.
#pragma once

#include <string>

namespace zeroplan {

// `written` (a config as strict JSON) with what `file` says beyond it, as strict JSON: keys that
// zeroplan does not write stay with their values, in the file's order, at the top level and in
// sections. Left out are old names of keys that are written, and "auto" where what it came to is
// the default. Comments are lost. `file` empty: `written` as it is. Throws Error(kUsage) where the
// file cannot be read.
std::string MergeConfig(const std::string& file, const std::string& written);

}  // namespace zeroplan
