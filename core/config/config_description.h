// The keys and values that the reader of DeepSpeed configs knows, for schemas and help.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/json_section.h"

namespace zeroplan {

struct ConfigSection {
  std::string path;  // "zero_optimization.offload_param"; empty: the top level
  std::vector<JsonKey> keys;
};

// The sections and keys that the reader asks for where it reads `config`, in its order. Most are
// asked for whatever is there; the parameters of a scheduler hang on its type, and an old name is
// asked for where it is used. Problems with `config` are passed over.
std::vector<ConfigSection> DescribeConfig(std::string_view config);

// Whether a key of the top level is for people and other programs: "$schema", "_comment", ...
bool IsCommentKey(std::string_view key);
// The keys of that kind that do not begin with '_'.
const std::vector<std::string_view>& CommentKeys();

}  // namespace zeroplan
