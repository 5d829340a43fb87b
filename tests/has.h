// What is missing of a text is shown where a check asks for it.
#pragma once

#include <doctest/doctest.h>

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

}  // namespace zeroplan
