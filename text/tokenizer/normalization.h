// Unicode's normalization forms, as the normalizers of `tokenizers` make them: of Unicode 9, so
// that what is newer stays as it is (unicode.h), with utf8proc's tables.
#pragma once

#include <string>
#include <string_view>

namespace zeroplan {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// Whether `text` is known to be in that form already: a quick check, which takes some texts for
// unknown that are. REQUIRES: well-formed UTF-8.
bool IsInForm(std::string_view text, NormalForm form);
// REQUIRES: well-formed UTF-8. Takes time linear in the text but for the sorting of marks.
std::string NormalizeUnicode(std::string_view text, NormalForm form);
// Each character by itself in lower case, as Rust's char::to_lowercase has it.
std::string LowerCase(std::string_view text);

}  // namespace zeroplan
