// The words that a command line would have for options of the library, and errors as the library's.
#pragma once

#include <zeroplan/zeroplan.h>

#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/strings.h"

namespace zeroplan {

// "--gpus", "8". Throws Error(kUsage) for an option without a name.
std::vector<std::string> WordsOf(const v1::Options& options);

// Calls `work`; what it throws as Error is thrown as v1::Error.
template <typename Work>
auto WithErrors(Work work) {
  try {
    return work();
  } catch (const Error& error) {
    // Whoever catches it may print it as it is: Python does.
    throw v1::Error(static_cast<int>(error.code()), Escaped(error.what()));
  }
}

}  // namespace zeroplan
