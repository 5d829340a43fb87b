// Words of a POSIX shell's command line: what is printed to be pasted, put into scripts, or handed
// to the shell of another host.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace zeroplan {

// 'it'\''s': `text` as one word, in quotes whatever it is. No NUL in `text`.
std::string QuoteForShell(std::string_view text);

// The same, without quotes where it is one word anyway, wherever in a command it stands. An `a=b`
// is quoted, as a command that begins with one would set a variable; a `--name=value` is not.
std::string ShellWord(std::string_view text);

// `words` joined by spaces, each a ShellWord.
std::string ShellCommand(const std::vector<std::string>& words);

}  // namespace zeroplan
