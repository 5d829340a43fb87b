// A command of the command line: its options, typed, and what it does. CLI11 stays behind this.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/common/command_description.h"

// CLI11 is heavy to compile: only command.cc and app.cc include it.
namespace CLI {
class App;
}

namespace zeroplan {

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
  // The same, for one that only has commands below it, of which one must be given.
  Command AddGroup(const char* name, const char* help);
  // The same as Add, for one that the help leaves out.
  Command AddHidden(const char* name, const char* help);
  void Footer(const std::string& text);
  // --version, which prints `text()` and ends. REQUIRES: this is no command below another.
  void Version(std::function<std::string()> text);

  // What must be given, most often without a name before it: one text, or several. `known` here
  // and below: names that shells complete besides what `type` says.
  void Required(const char* name, const char* type, const std::string& help, std::string& value,
                KnownNames known = nullptr);
  void Required(const char* name, const char* type, const std::string& help,
                std::vector<std::string>& values);
  // What may be given without a name before it: words of any number.
  void Words(const char* name, const char* type, const std::string& help,
             std::vector<std::string>& values);
  void Flag(const char* group, const char* name, const std::string& help, bool& value) override;
  // Several texts; `separator` 0: as several words.
  void List(const FieldInfo& info, bool required, char separator, std::vector<std::string>& values,
            KnownNames known = nullptr);

  void Take(AddedField field) override;

  // --no-progress, for a command that may take long; the line is shown unless it is given.
  void Progress(const char* group);

  // What the command does, options read.
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

}  // namespace zeroplan
