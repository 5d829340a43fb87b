// The "post_processor" of a tokenizer.json: the special tokens around a text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/json_source.h"
#include "text/tokenizer/json_part.h"

namespace zeroplan {

struct PostProcessor {
  // `node`: the value of "post_processor", nullptr or null for none. Throws Error(kUsage) naming
  // file and key, also where a template has anything but one text with tokens around it.
  static PostProcessor Read(const JsonNode* node, const std::string& file);

  std::vector<int32_t> before, behind;

 private:
  void Add(JsonPart part);
  void AddTemplate(JsonPart* part);
};

}  // namespace zeroplan
