// zeroplan hw check.
#pragma once

namespace CLI {
class App;
}

namespace zeroplan {

// Adds the subcommand to `hardware`.
void RegisterHardwareCheck(CLI::App& hardware);

}  // namespace zeroplan
