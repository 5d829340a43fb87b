// Text of others on stdout, piece by piece as it is made: a model's, or that of its data.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace zeroplan {

// Where stdout is no terminal each byte goes there as it is. On one, lines are broken between words
// to fit it, control characters are escaped (core/base/strings.h), and a word is shown once it is
// whole.
class TextFlow {
 public:
  TextFlow();

  // Throws Error(kRuntime) if stdout takes no more.
  void Push(std::string_view text);
  // What is still held back, and a line feed.
  void Finish();

 private:
  void PutWord(std::string& out);

  const size_t columns_;  // 0: no terminal
  size_t column_ = 0;     // where the line stands
  size_t spaces_ = 0;     // behind it, not yet written
  std::string word_;
};

}  // namespace zeroplan
