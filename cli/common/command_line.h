// What is wrong with a command line, in words.
#pragma once

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace zeroplan {

// Throws Error(kUsage) that says what was wrong with a command line, what was meant and which help
// to read. REQUIRES: parsing `app` threw `error`.
[[noreturn]] void ThrowParseError(const CLI::App& app, const CLI::ParseError& error);

// Throws Error(kUsage) if a command was given that is none. REQUIRES: `app` was parsed, or parsing
// it ended at --help.
void ThrowUnknownCommand(const CLI::App& app);

}  // namespace zeroplan
