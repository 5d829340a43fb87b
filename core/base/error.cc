#include "core/base/error.h"

namespace zeroplan {

void FailCheck(const char* file, int line, const char* condition, const std::string& detail) {
  throw CheckFailure(fmt::format("{}:{}: check failed: {}{}{} (a bug in zeroplan)", file, line,
                                 condition, detail.empty() ? "" : ": ", detail));
}

}  // namespace zeroplan
