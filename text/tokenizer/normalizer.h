// The "normalizer" of a tokenizer.json: changes a text before it is split into pieces.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/json_source.h"
#include "text/tokenizer/json_part.h"
#include "text/tokenizer/pattern.h"

namespace zeroplan {

// Unicode's normalization forms, as the normalizers of `tokenizers` implement them: those of
// Unicode 9, so that newer characters stay unchanged (unicode.h), with utf8proc's tables.
enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// Whether `text` is known to be in that form already: a quick check, which may return false for
// texts that are. REQUIRES: well-formed UTF-8.
bool IsInForm(std::string_view text, NormalForm form);
// REQUIRES: well-formed UTF-8. Takes time linear in the text, except for the sorting of marks.
std::string NormalizeUnicode(std::string_view text, NormalForm form);
// Lower-cases each character by itself, as Rust's char::to_lowercase does.
std::string LowerCase(std::string_view text);

class Normalizer {
 public:
  Normalizer() = default;  // changes nothing
  // `node`: the value of "normalizer", nullptr or null for none. Throws Error(kUsage) naming file
  // and key.
  static Normalizer Read(const JsonNode* node, const std::string& file);

  // `text` normalized: itself, or a view of `*buffer`. `continues`: it is the rest of a text that
  // was cut, so nothing is prepended. REQUIRES: well-formed UTF-8. Throws Error(kUsage) naming the
  // file if the result is larger than any text needs.
  std::string_view Apply(std::string_view text, std::string* buffer, bool continues = false) const;

  // Whether the first character of the result may come from further behind in the text.
  bool may_drop_start() const { return may_drop_start_; }

 private:
  struct Prepend {
    std::string text;
  };
  struct Replace {
    Pattern pattern;
    std::string content;
  };
  struct Lowercase {};
  struct Strip {
    bool left = false;
    bool right = false;
  };
  using Step = std::variant<Prepend, Replace, NormalForm, Lowercase, Strip>;

  void Add(JsonPart part);
  static bool Run(const Step& step, std::string_view text, uint64_t most, std::string* out);

  std::string where_;
  std::vector<Step> steps_;
  bool may_drop_start_ = false;
};

}  // namespace zeroplan
