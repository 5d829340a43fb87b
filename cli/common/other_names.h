// Options under the names of other tools.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/common/command.h"

namespace zeroplan {

// `words`, a command line behind the program's name, with options under other tools' names replaced
// by this program's names for exactly the same ("--per-device-train-batch-size", "--micro_batch").
// Options that the command has itself stay.
std::vector<std::string> WithOwnNames(std::vector<std::string> words,
                                      const CommandDescription& program);

// Advice for another tool's option with a similar meaning, "use --dtype bf16"; "" if none is known.
// `options`: the long names that the command has.
std::string HintFor(std::string_view name, const std::vector<std::string>& options);

// Advice for a word that people take for a command ("finetune"): "use 'zeroplan train ...'"; "" if
// none is known.
std::string CommandFor(std::string_view word);

}  // namespace zeroplan
