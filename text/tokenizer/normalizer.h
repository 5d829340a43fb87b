// The "normalizer" of a tokenizer.json: what happens to a text before it is cut into pieces.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/json_source.h"
#include "text/tokenizer/json_part.h"
#include "text/tokenizer/normalization.h"
#include "text/tokenizer/pattern.h"

namespace zeroplan {

class Normalizer {
 public:
  Normalizer() = default;  // changes nothing
  // `node`: the value of "normalizer", nullptr or null for none. Throws Error(kUsage) naming file
  // and key.
  static Normalizer Read(const JsonNode* node, const std::string& file);

  // `text` normalized: itself, or a view of `*buffer`. REQUIRES: well-formed UTF-8.
  std::string_view Apply(std::string_view text, std::string* buffer) const;

  // Whether the first character of what it makes may come from further behind in the text.
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
  static bool Run(const Step& step, std::string_view text, std::string* out);

  std::vector<Step> steps_;
  bool may_drop_start_ = false;
};

}  // namespace zeroplan
