// Regular expressions of tokenizer.json, rewritten for PCRE2. They are written for Oniguruma with
// Ruby's syntax (github.com/kkos/oniguruma, doc/RE), and the two differ: in what \s, \w, \h and \v
// stand for, in ^, $ and {n}+, in set operations and in the version of Unicode.
#pragma once

#include <string>
#include <string_view>

namespace zeroplan {

struct PcrePatterns {
  // Leaves \p{..} to PCRE2, of whatever Unicode version that is: fast.
  std::string native;
  // With the code points of each \p{..} spelt out, as unicode.h has them; empty if it has none:
  // then the native pattern does not depend on the version either.
  std::string exact;
};

// For PCRE2_UTF, PCRE2_UCP and PCRE2_MULTILINE with PCRE2_NEWLINE_LF. Throws Error(kUsage) starting
// with `where` if `pattern` has what is not known to mean the same in both.
PcrePatterns TranslateRegex(std::string_view pattern, std::string_view where);

}  // namespace zeroplan
