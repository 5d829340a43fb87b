// The only file that knows the two folders, so that no other has to be compiled again for another
// checkout.
#include "tests/paths.h"

#include <cstdlib>

namespace zeroplan {

std::string SourcePath(const std::string& relative) { return ZEROPLAN_SOURCE_DIR "/" + relative; }

std::string BinaryPath(const std::string& relative) {
  const std::string name = relative.substr(0, relative.find(' '));
  const char* installed = std::getenv("ZEROPLAN_TESTED_PROGRAMS");
  if (installed != nullptr && (name == "zeroplan" || name == "zeroplan-executor")) {
    return std::string(installed) + "/" + relative;
  }
  return ZEROPLAN_BINARY_DIR "/" + relative;
}

}  // namespace zeroplan
