// Where a test finds the source tree and what was built beside it.
#pragma once

#include <string>

namespace zeroplan {

// Of the source tree, "" for the tree itself: SourcePath("LICENSE").
std::string SourcePath(const std::string& relative);
// Of the build folder: BinaryPath("zeroplan").
std::string BinaryPath(const std::string& relative);

}  // namespace zeroplan
