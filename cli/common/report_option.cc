#include "cli/common/report_option.h"

#include <fmt/format.h>

#include "core/base/own_arguments.h"
#include "core/base/strings.h"

namespace zeroplan {
void AddReportOption(Command& command, const char* group, const char* shows, std::string& file) {
  command.Text({group, "--report", "FILE.html",
                fmt::format("Write {} as one page for a browser: pictures, and tables with their "
                            "numbers",
                            shows)},
               file);
}

PageOrigin ReportOrigin(const Assumptions& assumptions) {
  std::vector<std::string> words = OwnArguments();
  // Whichever of the two programs this is, from wherever: who tries it has it elsewhere.
  if (!words.empty()) words.front() = "zeroplan";
  return {ShellCommand(words), assumptions.assumed, assumptions.notes};
}

}  // namespace zeroplan
