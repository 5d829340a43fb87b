// --report of the commands that plan and run: a page for a browser.
#pragma once

#include <string>
#include <vector>

#include "cli/common/command.h"
#include "planner/page/estimate_page.h"
#include "planner/request/resolve.h"

namespace zeroplan {

// `shows`: "every choice in pictures".
void AddReportOption(Command& command, const char* group, const char* shows, std::string& file);

// What the page says of this process's command line and of what was assumed.
PageOrigin ReportOrigin(const Assumptions& assumptions);

}  // namespace zeroplan
