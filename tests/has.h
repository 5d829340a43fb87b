// What is missing of a text is shown where a check asks for it.
#pragma once

#include <doctest/doctest.h>

#include <string>

namespace zeroplan {

// Whether `part` is in `text`; a message has both where it is not.
inline bool Has(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) MESSAGE("'", part, "' is not in: ", text);
  return found;
}

}  // namespace zeroplan
