// Reading a config that a test spells out.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "core/config/deepspeed_reader.h"

namespace zeroplan::testing {

inline ReadResult Read(std::string_view text, const ReadContext& context = {}) {
  return ReadDeepSpeedConfig(text, "ds.json", context);
}

inline bool HasNote(const ReadResult& result, std::string_view part) {
  return std::any_of(result.notes.begin(), result.notes.end(),
                     [&](const std::string& n) { return n.find(part) != std::string::npos; });
}

inline ReadContext OfDeepSpeed() {
  ReadContext context;
  context.of_deepspeed = true;
  return context;
}

}  // namespace zeroplan::testing
