// Help texts on pages of any width.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace zeroplan {

// `help`, as CLI11 prints it, on a page of `columns`: on one narrower than kPlainColumns
// (core/base/terminal.h), for which footers are written, their prose is broken anew, and commands
// under "Examples:" go on behind a backslash, so that they can still be copied into a shell.
std::string FitHelp(std::string_view help, size_t columns);

}  // namespace zeroplan
