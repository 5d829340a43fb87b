// zeroplan hw check.
#pragma once

#include "cli/common/command.h"

namespace zeroplan {

// Adds the subcommand to `hardware`.
void RegisterHardwareCheck(Command& hardware);

}  // namespace zeroplan
