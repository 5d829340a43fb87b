// zeroplan hw measure.
#pragma once

#include "cli/common/command.h"

namespace zeroplan {

// Adds the subcommand to `hardware`.
void RegisterHardwareMeasure(Command& hardware);

}  // namespace zeroplan
