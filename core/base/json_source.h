// JSON as people write it, with the line of every key, so that messages can point at it. Read as
// Hjson (hjson.github.io/syntax.html): comments (//, #, /* */), trailing commas, a comma left out
// at a line's end, the outer braces left out, keys without quotes, strings in single quotes, in
// '''several lines''' or without quotes. A string without quotes runs to the end of its line,
// commas and brackets included. Besides, Python's True, False and None are taken for true, false
// and null. A key given twice is an error.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json_scalar.h"

namespace zeroplan {

struct JsonMember;

// One value of the text.
struct JsonNode {
  enum class Kind { kScalar, kObject, kArray };

  Kind kind = Kind::kScalar;
  int line = 1;                     // where its key is written, or, without a key, where it starts
  JsonScalar scalar;                // kScalar
  std::vector<JsonMember> members;  // kObject, in the order of the text
  std::vector<JsonNode> elements;   // kArray

  bool is_object() const { return kind == Kind::kObject; }
  bool is_array() const { return kind == Kind::kArray; }
  bool is_null() const { return kind == Kind::kScalar && scalar.is_null(); }
  bool is_string() const { return kind == Kind::kScalar && scalar.is_string(); }

  // The member of that name, or nullptr; nullptr on what is no object.
  const JsonNode* Find(std::string_view key) const;
  // The value as a message quotes it: scalars in full (shortened past 60 characters), else "{...}"
  // or "[...]".
  std::string Quote() const;
};

struct JsonMember {
  std::string key;
  JsonNode value;
};

// Throws Error(kUsage) "SOURCE:LINE: ..." that says what was expected. Nesting is limited to 64
// levels.
JsonNode ParseJsonText(std::string_view text, std::string_view source);

// The file as text. Throws Error(kUsage) if it cannot be read, is larger than 16 MiB, or is no
// regular file: a pipe that nobody writes to would be waited for. /dev/stdin (or -) and what a
// shell hands over as /dev/fd/N are read all the same; asked for again, they are what they were.
std::string ReadTextFile(const std::filesystem::path& file);

}  // namespace zeroplan
