// Options by the names that other tools give them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/common/command.h"

namespace zeroplan {

// `words`, a command line behind the program's name, with this program's names of options in place
// of others that mean exactly the same ("--per-device-train-batch-size", "--micro_batch"). Those
// that the command has itself stay.
std::vector<std::string> WithOwnNames(std::vector<std::string> words,
                                      const CommandDescription& program);

// Of a name that others have for something near: what to use here, as "use --dtype bf16"; "" where
// none is known. `options`: the long names that the command has.
std::string HintFor(std::string_view name, const std::vector<std::string>& options);

}  // namespace zeroplan
