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

// The value of an option, and the text that it was given as, for messages. Empty: not given.
template <typename T>
struct Option : std::optional<T> {
  std::string text;
};

struct OptionInfo {
  const char* group;  // heading in the help
  const char* name;   // "--gpus", or "-o,--output"
  const char* type;   // what stands for the value in the help: "COUNT"
  std::string help;   // says unit and default
  // Options whose file decides this one: beside them it is refused.
  std::vector<std::string_view> decided_by = {};
  bool may_be_empty = false;  // else an empty text is refused
  // What the option stands for where it is given without a value; null: it must have one.
  const char* alone = nullptr;
};

// The heading of what belongs to no group.
inline constexpr const char* kNoGroup = "Options";

// Columns that a page's help gives to the names of options and commands; what they do stands
// beside.
size_t HelpNameColumns();

// Options are read once, after the whole command line was seen to be sound and before the command
// runs: what a config or a plan decides is refused first, then each text becomes a value, in the
// order in which options were added. Whatever is given as reference must outlive the parsing.
class Command {
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
  void Flag(const char* group, const char* name, const std::string& help, bool& value);
  // Several texts; `separator` 0: as several words.
  void List(const OptionInfo& info, bool required, char separator, std::vector<std::string>& values,
            KnownNames known = nullptr);

  // A text, or "" where it is not given.
  void Text(const OptionInfo& info, std::string& value, KnownNames known = nullptr);
  // `parse(text, name)` gives the value, or throws Error(kUsage) that names both and what is
  // allowed (cli/common/parse.h).
  template <typename T, typename Parse>
  void Value(const OptionInfo& info, Option<T>& value, Parse parse) {
    Take(info, [&value, parse](const std::string& text, std::string_view name) {
      value.emplace(parse(text, name));
      value.text = text;
    });
  }

  // --no-progress, for a command that may take long; the line is shown unless it is given.
  void Progress(const char* group);

  // What the command does, options read.
  void Run(std::function<void()> work);

  // What was added so far, and goes on to be added.
  std::shared_ptr<const CommandDescription> description() const;

 private:
  struct State;

  // `take` gets the text, and the option's name for messages.
  void Take(const OptionInfo& info, std::function<void(const std::string&, std::string_view)> take,
            KnownNames known = nullptr);

  std::shared_ptr<State> state_;
};

}  // namespace zeroplan
