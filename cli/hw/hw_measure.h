// zeroplan hw measure.
#pragma once

namespace CLI {
class App;
}

namespace zeroplan {

// Adds the subcommand to `hardware`.
void RegisterHardwareMeasure(CLI::App& hardware);

}  // namespace zeroplan
