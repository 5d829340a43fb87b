// What fuzzers ask of readers beyond not to crash.
#pragma once

#include <cstdlib>
#include <string_view>

#include "core/base/error.h"

namespace zeroplan {

// Ends the fuzzer, which keeps the input, where `holds` is false.
inline void Need(bool holds) {
  if (!holds) std::abort();
}

// Whether `fn` takes its input; what it throws otherwise has to be a user's error with a message.
template <typename Fn>
bool Accepts(Fn&& fn) {
  try {
    fn();
    return true;
  } catch (const Error& error) {
    Need(error.code() == ExitCode::kUsage && !std::string_view(error.what()).empty());
    return false;
  }
}

}  // namespace zeroplan
