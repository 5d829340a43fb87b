// Splits a Jinja template into its text and its tags, and a tag into tokens. Same as Jinja 3.1 with
// trim_blocks and lstrip_blocks, which transformers sets.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"

namespace zeroplan::jinja {

// A template that cannot be parsed or rendered. `line` is the template's.
class TemplateError : public std::runtime_error {
 public:
  TemplateError(int line, const std::string& what) : std::runtime_error(what), line_(line) {}
  int line() const { return line_; }

 private:
  int line_;
};

// A rendering exceeded its Limits; it would again.
class LimitReached : public TemplateError {
 public:
  using TemplateError::TemplateError;
};

struct Token {
  enum class Kind { kName, kText, kInteger, kReal, kSign, kEnd };
  Kind kind = Kind::kEnd;
  std::string text;  // a text's value; an integer's decimal digits
  int line = 1;

  bool Is(Kind wanted, std::string_view spelling) const {
    return kind == wanted && text == spelling;
  }
};

struct Part {
  enum class Kind { kText, kOutput, kBlock };
  Kind kind = Kind::kText;
  int line = 1;
  std::string text;           // kText
  std::vector<Token> tokens;  // tokens in {{ }} and {% %}; the last one is kEnd
};

// Throws TemplateError.
std::vector<Part> Cut(std::string_view source);

// Whether Python's str.isspace() counts it as white space.
bool IsPythonSpace(char32_t code_point);
// The range of a text without the white space at its ends. `sides`: 1 left, 2 right, 3 both.
struct Range {
  size_t begin = 0;
  size_t end = 0;
};
Range WithoutSpace(std::string_view text, int sides);

}  // namespace zeroplan::jinja
