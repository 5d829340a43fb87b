// What is missing of a text is shown where a check asks for it.
#pragma once

#include <doctest/doctest.h>

#include <sstream>
#include <string>

namespace zeroplan {

// Within a CHECK: whether `part` is in `text`; a message has both where it is not.
inline bool Has(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) MESSAGE("'", part, "' is not in: ", text);
  return found;
}

// Whether `part` is not in `text`; a message has both where it is.
inline bool Lacks(const std::string& text, const std::string& part) {
  const bool lacks = text.find(part) == std::string::npos;
  if (!lacks) MESSAGE("'", part, "' is in: ", text);
  return lacks;
}

// The words of `text`, a blank after each, for texts whose lines may be broken anywhere.
inline std::string WordsIn(const std::string& text) {
  std::istringstream words(text);
  std::string out;
  for (std::string word; words >> word;) out += word + ' ';
  return out;
}

// A page with each paragraph, whose further lines are indented, in one line.
inline std::string Unwrapped(std::string text) {
  for (size_t at; (at = text.find("\n  ")) != std::string::npos;) text.replace(at, 3, " ");
  return text;
}

}  // namespace zeroplan
