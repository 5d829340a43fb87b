#include "cli/common/output.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "core/base/error.h"

namespace zeroplan {

void WriteOutput(const std::string& file, std::string_view text) {
  struct Close {
    void operator()(std::FILE* stream) const { std::fclose(stream); }
  };
  std::unique_ptr<std::FILE, Close> owned;
  std::FILE* stream = stdout;
  if (!file.empty()) {
    owned.reset(std::fopen(file.c_str(), "wb"));
    stream = owned.get();
    if (stream == nullptr) ThrowRuntime("-o: cannot write {}: {}", file, std::strerror(errno));
  }
  const bool written = std::fwrite(text.data(), 1, text.size(), stream) == text.size();
  if (!written || std::fflush(stream) != 0) {
    ThrowRuntime("cannot write {}: {}", file.empty() ? "to stdout" : file, std::strerror(errno));
  }
}

bool StdoutTakesColour() {
  const char* no_colour = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && (no_colour == nullptr || *no_colour == '\0') &&
         (terminal == nullptr || std::strcmp(terminal, "dumb") != 0);
}

}  // namespace zeroplan
