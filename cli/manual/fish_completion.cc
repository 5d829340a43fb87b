#include <fmt/format.h>

#include "cli/manual/completion.h"
#include "cli/manual/shell_words.h"

namespace zeroplan {
namespace {

// fish quotes within '...' by backslashes.
std::string Quote(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "'";
}

constexpr std::string_view kFishMain =
    R"fish(# Prints which command the words before the cursor name: "hw list", or "".
function __zeroplan_command
    set -l command
    for word in (commandline -opc)[2..]
        string match -q -- '-*' $word; and break
        contains -- "$command $word" $__zeroplan_commands; or break
        set command "$command $word"
    end
    string trim -- $command
    return 0
end

# True where that is $argv[1].
function __zeroplan_at
    test "$(__zeroplan_command)" = "$argv[1]"
end

# True where that is $argv[1], and the last option before the cursor is $argv[2].
function __zeroplan_behind
    __zeroplan_at $argv[1]; or return 1
    set -l option
    for word in (commandline -opc)
        string match -q -- '-*' $word; and set option $word
    end
    test "$option" = "$argv[2]"
end

complete -c zeroplan -e
complete -c zeroplan -f
)fish";

// What is offered for a value, as options of `complete`.
std::string OfferedArguments(const Offers& offers) {
  std::string words = Joined(offers.words);
  if (offers.folders && !offers.files) words += "(__fish_complete_directories)";
  return std::string(offers.files ? " -F" : " -f") + (words.empty() ? "" : " -a " + Quote(words));
}

std::string NameArgument(const std::string& name) {
  return name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
}

std::string Lines(const CommandPath& path) {
  const CommandDescription& command = *path.back();
  const std::string below = PathBelow(path);
  const std::string at = "complete -c zeroplan -n " + Quote("__zeroplan_at " + Quote(below));
  std::string lines;
  for (const CommandDescription* next : ShownCommands(command)) {
    lines += at + " -a " + next->name + " -d " + Quote(next->help) + "\n";
  }
  for (const OptionDescription& option : command.options) {
    const Offers offers = OffersOf(option);
    const std::string offered = OfferedArguments(offers);
    if (option.positional()) {
      lines += at + offered + "\n";
      continue;
    }
    lines += at;
    for (const std::string& name : option.names) lines += NameArgument(name);
    if (option.takes_value()) lines += " -r" + offered;
    lines += " -d " + Quote(option.help) + "\n";
    // Behind the first value fish takes words for what has no name.
    if (!option.several || offers.none()) continue;
    for (const std::string& name : option.names) {
      lines += "complete -c zeroplan -n " +
               Quote("__zeroplan_behind " + Quote(below) + " " + name) + offered + "\n";
    }
  }
  return lines;
}

}  // namespace

std::string FishCompletion(const CommandDescription& program) {
  std::string commands = "set -g __zeroplan_commands", lines;
  for (const CommandPath& path : ShownPaths(program)) {
    if (path.size() > 1) commands += " " + Quote(" " + PathBelow(path));
    lines += Lines(path);
  }
  return "# Completions of zeroplan for fish, as 'zeroplan completion fish' prints them.\n\n" +
         commands + "\n\n" + std::string(kFishMain) + lines;
}

}  // namespace zeroplan
