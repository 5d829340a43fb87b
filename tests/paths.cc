// The only file that knows the two folders, so that no other has to be compiled again for another
// checkout.
#include "tests/paths.h"

namespace zeroplan {

std::string SourcePath(const std::string& relative) { return ZEROPLAN_SOURCE_DIR "/" + relative; }
std::string BinaryPath(const std::string& relative) { return ZEROPLAN_BINARY_DIR "/" + relative; }

}  // namespace zeroplan
