// A command of the command line: its typed options and its work. CLI11 is hidden behind this.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "planner/request/fields.h"

// CLI11 is heavy to compile: only command.cc and app.cc include it.
namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace zeroplan {

// Descriptions of commands as plain values. Command fills them in as options are added; man pages
// and shell completions (cli/manual/manual.h) are generated from them.
struct OptionDescription {
  std::string group;               // heading in the help
  std::vector<std::string> names;  // {"-o", "--out"}; positional arguments: {"plan"}
  std::string type;                // type of the value: "FILE", "cpu|cuda|auto"; empty: takes none
  std::string help;                // one paragraph
  bool required = false;
  bool several = false;  // values, one word each
  bool alone = false;    // may be given without its value
  KnownNames known = nullptr;
  PathRole path = {};  // if leads_to_path()

  bool leads_to_path() const;  // the type contains FILE, DIR, PATH or PLAN
  bool positional() const { return !names.front().starts_with('-'); }
  bool takes_value() const { return !type.empty(); }
};

// The completions that a shell can offer for a value.
struct Offers {
  std::vector<std::string> words;  // words of the type ("cpu|cuda|auto": three) and the known names
  bool files = false, folders = false;

  bool none() const { return words.empty() && !files && !folders; }
};

// Derived from the option's type: parts between | in small letters or digits are words; FILE,
// FILE.json, PATH and PLAN are files, DIR and PATH folders; other parts (COUNT, NAME) stand for
// something unknown. Includes the known names.
Offers OffersOf(const OptionDescription& option);

struct CommandDescription {
  std::string name;
  std::string help;    // one line
  std::string footer;  // "Examples:", indented lines, then text
  bool hidden = false;
  std::vector<OptionDescription> options;
  std::vector<std::shared_ptr<const CommandDescription>> commands;  // subcommands
};

// The subcommands of `command` that help shows.
std::vector<const CommandDescription*> ShownCommands(const CommandDescription& command);

// The heading of options without a group.
inline constexpr const char* kNoGroup = "Options";

// The width of the column of option and command names in help; descriptions are to its right.
size_t HelpNameColumns();

// Options are read once, after the whole command line was checked and before the command runs
// (ReadFields). Referenced objects must outlive the parsing.
class Command : public FieldSink {
 public:
  explicit Command(CLI::App& app);

  // Adds a subcommand.
  Command Add(const char* name, const char* help);
  // Adds a command that only has subcommands, one of which must be given.
  Command AddGroup(const char* name, const char* help);
  // The same as Add, but the help leaves it out.
  Command AddHidden(const char* name, const char* help);
  void Footer(const std::string& text);
  // --version, which prints `text()` and ends. REQUIRES: this is no subcommand.
  void Version(std::function<std::string()> text);

  // A required argument, mostly positional: one text, or several. `known` here and below: names
  // that shells complete in addition to the words of `type`.
  void Required(const char* name, const char* type, const std::string& help, std::string& value,
                KnownNames known = nullptr, PathRole path = {});
  void Required(const char* name, const char* type, const std::string& help,
                std::vector<std::string>& values, PathRole path = {});
  // Optional positional arguments: any number of words.
  void Words(const char* name, const char* type, const std::string& help,
             std::vector<std::string>& values);
  void Flag(const char* group, const std::string& name, const std::string& help,
            bool& value) override;
  // As several words.
  void Texts(const FieldInfo& info, std::vector<std::string>& values) override;
  // Several texts; `separator` 0: given as several words.
  void List(const FieldInfo& info, bool required, char separator, std::vector<std::string>& values,
            KnownNames known = nullptr);

  void Take(AddedField field) override;

  // --no-progress, for a command that may take long; without it the progress line is shown.
  void Progress(const char* group);

  // The command's work, run after the options are read and the paths are checked (CheckFiles).
  void Run(std::function<void()> work);

  // The description so far; later additions extend it.
  std::shared_ptr<const CommandDescription> description() const;

 private:
  struct State;

  std::shared_ptr<State> state_;
};

enum class OutputFormat : uint8_t { kText, kJson };
// --format text|json, for printed results. `help` describes the JSON: "schema zeroplan.hw-list/1".
void AddFormatOption(Command& command, const char* help, Given<OutputFormat>& format);

// Throws Error(kUsage) with the command line's error, the likely intention and the help to read.
// REQUIRES: parsing `app` threw `error`.
[[noreturn]] void ThrowParseError(const CLI::App& app, const CLI::ParseError& error);

// Throws Error(kUsage) if an unknown command was given. REQUIRES: `app` was parsed, or parsing it
// ended at --help.
void ThrowUnknownCommand(const CLI::App& app);

// Fits `help`, as printed by CLI11, to a page of `columns`: below kPlainColumns
// (core/base/terminal.h), for which footers are written, re-wraps their prose, and continues
// commands under "Examples:" after a backslash, so that they can still be copied into a shell.
std::string FitHelp(std::string_view help, size_t columns);

// The help of -h, at most forty lines: usage, the options that matter most (`most`, by name; empty:
// the first), two examples, and how to see the rest. `path`: the command's words, "zeroplan plan".
std::string ShortHelp(const CommandDescription& command, const std::string& path,
                      const std::vector<std::string>& most, size_t columns);

}  // namespace zeroplan
