// A command of the command line: its options, typed, and what it does. CLI11 stays behind this.
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

// What commands take, as plain values. Command fills them in as options are added; man pages
// and shell completions (cli/manual/manual.h) are written from them.
struct OptionDescription {
  std::string group;               // heading in the help
  std::vector<std::string> names;  // {"-o", "--out"}; of what has no name before it: {"plan"}
  std::string type;                // of the value: "FILE", "cpu|cuda|auto"; empty: takes none
  std::string help;                // one paragraph
  bool required = false;
  bool several = false;  // values, one word each
  bool alone = false;    // may be given without its value
  KnownNames known = nullptr;
  PathRole path = {};  // where leads_to_path()

  bool leads_to_path() const;  // that the type has FILE, DIR, PATH or PLAN in it
  bool positional() const { return !names.front().starts_with('-'); }
  bool takes_value() const { return !type.empty(); }
};

// What a shell can offer for a value.
struct Offers {
  std::vector<std::string> words;  // of the type ("cpu|cuda|auto": three) and the known names
  bool files = false, folders = false;

  bool none() const { return words.empty() && !files && !folders; }
};

// Read off the option's type: parts between | in small letters or digits are words; FILE,
// FILE.json, PATH and PLAN are files, DIR and PATH folders; other parts (COUNT, NAME) stand for
// something that is not known. With the known names.
Offers OffersOf(const OptionDescription& option);

struct CommandDescription {
  std::string name;
  std::string help;    // one line
  std::string footer;  // "Examples:", indented lines, then text
  bool hidden = false;
  std::vector<OptionDescription> options;
  std::vector<std::shared_ptr<const CommandDescription>> commands;  // below it
};

// The commands below `command` that help shows.
std::vector<const CommandDescription*> ShownCommands(const CommandDescription& command);

// The heading of what belongs to no group.
inline constexpr const char* kNoGroup = "Options";

// Columns that a page's help gives to the names of options and commands; what they do stands
// beside.
size_t HelpNameColumns();

// Options are read once, after the whole command line was seen to be sound and before the command
// runs (ReadFields). Whatever is given as reference must outlive the parsing.
class Command : public FieldSink {
 public:
  explicit Command(CLI::App& app);

  // A command below this one.
  Command Add(const char* name, const char* help);
  // Adds a command that only has commands below it, one of which must be given.
  Command AddGroup(const char* name, const char* help);
  // The same as Add, for one that the help leaves out.
  Command AddHidden(const char* name, const char* help);
  void Footer(const std::string& text);
  // --version, which prints `text()` and ends. REQUIRES: this is no command below another.
  void Version(std::function<std::string()> text);

  // What must be given, most often without a name before it: one text, or several. `known` here
  // and below: names that shells complete besides what `type` says.
  void Required(const char* name, const char* type, const std::string& help, std::string& value,
                KnownNames known = nullptr, PathRole path = {});
  void Required(const char* name, const char* type, const std::string& help,
                std::vector<std::string>& values, PathRole path = {});
  // What may be given without a name before it: words of any number.
  void Words(const char* name, const char* type, const std::string& help,
             std::vector<std::string>& values);
  void Flag(const char* group, const std::string& name, const std::string& help,
            bool& value) override;
  // As several words.
  void Texts(const FieldInfo& info, std::vector<std::string>& values) override;
  // Several texts; `separator` 0: as several words.
  void List(const FieldInfo& info, bool required, char separator, std::vector<std::string>& values,
            KnownNames known = nullptr);

  void Take(AddedField field) override;

  // --no-progress, for a command that may take long; the line is shown unless it is given.
  void Progress(const char* group);

  // What the command does, options read. Before that its paths are looked at (CheckFiles).
  void Run(std::function<void()> work);

  // What was added so far, and goes on to be added.
  std::shared_ptr<const CommandDescription> description() const;

 private:
  struct State;

  std::shared_ptr<State> state_;
};

enum class OutputFormat : uint8_t { kText, kJson };
// --format text|json, for what is printed. `help` says what the JSON is: "schema
// zeroplan.hw-list/1".
void AddFormatOption(Command& command, const char* help, Given<OutputFormat>& format);

// Throws Error(kUsage) that says what was wrong with a command line, what was meant and which help
// to read. REQUIRES: parsing `app` threw `error`.
[[noreturn]] void ThrowParseError(const CLI::App& app, const CLI::ParseError& error);

// Throws Error(kUsage) if a command was given that is none. REQUIRES: `app` was parsed, or parsing
// it ended at --help.
void ThrowUnknownCommand(const CLI::App& app);

// `help`, as CLI11 prints it, on a page of `columns`: on one narrower than kPlainColumns
// (core/base/terminal.h), for which footers are written, their prose is broken anew, and commands
// under "Examples:" go on behind a backslash, so that they can still be copied into a shell.
std::string FitHelp(std::string_view help, size_t columns);

}  // namespace zeroplan
