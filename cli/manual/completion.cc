
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include "cli/manual/manual.h"
#include "core/base/error.h"
#include "core/base/strings.h"

namespace zeroplan {
namespace {

std::string Joined(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

// What goes behind an option: "none", "one" value, "several", or "maybe" one.
const char* TakesWord(const OptionDescription& option) {
  if (!option.takes_value()) return "none";
  if (option.several) return "several";
  return option.alone ? "maybe" : "one";
}

// Which paths are offered: "" (none), "folders" or "files" (and the folders to them).
const char* PathsWord(const Offers& offers) {
  if (offers.files) return "files";
  return offers.folders ? "folders" : "";
}

// "hw list": the command's path without the program; "" of the program itself.
std::string PathBelow(const CommandPath& path) {
  std::string below;
  for (size_t i = 1; i < path.size(); ++i) below += (i > 1 ? " " : "") + path[i]->name;
  return below;
}

// What has no name before it, and what is offered there: the commands below, or for a positional
// its values.
struct Unnamed {
  Offers offers;
  const char* takes;
};
Unnamed UnnamedOf(const CommandDescription& command) {
  Unnamed unnamed = {{}, "none"};
  if (!command.commands.empty()) {
    for (const CommandDescription* below : ShownCommands(command)) {
      unnamed.offers.words.push_back(below->name);
    }
    return {unnamed.offers, "one"};
  }
  for (const OptionDescription& option : command.options) {
    if (option.positional()) return {OffersOf(option), TakesWord(option)};
  }
  return unnamed;
}

// A case of one shell pattern, or several, for each body.
class Cases {
 public:
  void Add(const std::string& key, const std::string& body) {
    for (auto& [keys, known] : cases_) {
      if (known != body) continue;
      keys += "|\\\n    " + QuoteForShell(key);
      return;
    }
    cases_.emplace_back(QuoteForShell(key), body);
  }
  std::string Text() const {
    std::string text;
    for (const auto& [keys, body] : cases_) {
      text += fmt::format("    {})\n      {} ;;\n", keys, body);
    }
    return text;
  }

 private:
  std::vector<std::pair<std::string, std::string>> cases_;
};

std::string Assignments(const Offers& offers, const char* takes) {
  return fmt::format("takes={} paths={} offered={}", takes, PathsWord(offers),
                     QuoteForShell(Joined(offers.words)));
}

// Shell functions that bash and zsh understand alike:
//   _zeroplan_below COMMAND WORD   succeeds where WORD is a command below COMMAND (a PathBelow)
//   _zeroplan_offers COMMAND NAME  sets offered (words), paths (a PathsWord) and takes (a
//                                  TakesWord) to what goes behind the option NAME, or, where that
//                                  is empty, to what has no name before it; all empty where NAME
//                                  is unknown
std::string TableOfOffers(const CommandDescription& program) {
  Cases below, offers;
  for (const CommandPath& path : ShownPaths(program)) {
    const std::string command = PathBelow(path);
    for (const CommandDescription* next : ShownCommands(*path.back())) {
      below.Add(command + "/" + next->name, "return 0");
    }
    const Unnamed unnamed = UnnamedOf(*path.back());
    offers.Add(command + "/", Assignments(unnamed.offers, unnamed.takes));
    for (const OptionDescription& option : path.back()->options) {
      if (option.positional()) continue;
      const std::string body = Assignments(OffersOf(option), TakesWord(option));
      for (const std::string& name : option.names) {
        offers.Add(fmt::format("{}/{}", command, name), body);
      }
    }
  }
  return "_zeroplan_below() {\n  case \"$1/$2\" in\n" + below.Text() +
         "  esac\n  return 1\n}\n\n"
         "_zeroplan_offers() {\n  takes= paths= offered=\n  case \"$1/$2\" in\n" +
         offers.Text() + "  esac\n}\n\n";
}

// Nothing of the package bash-completion: the script works where that is not installed.
constexpr std::string_view kBashMain = R"sh(_zeroplan() {
  local current=${COMP_WORDS[COMP_CWORD]} command= option= behind=0 i word
  local takes= paths= offered= flags=
  COMPREPLY=()
  # --option=value is three words here.
  [[ $current == = ]] && current=
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if [[ $word == = ]]; then
      continue
    elif [[ $word == -* ]]; then
      option=$word behind=0
    elif [[ -z $option ]] && _zeroplan_below "$command" "$word"; then
      command="${command:+$command }$word"
    else
      behind=$((behind + 1))
    fi
  done
  if [[ -n $option ]]; then
    _zeroplan_offers "$command" "$option"
    case $takes in
      one) [[ $behind -gt 0 ]] && option= ;;
      several) [[ $current == -* ]] && option= ;;
      maybe) [[ $behind -gt 0 || $current == -* ]] && option= ;;
      *) option= ;;
    esac
  fi
  if [[ -z $option ]]; then
    [[ $current == -* ]] || _zeroplan_offers "$command" ''
    [[ $current == -* || $takes == none ]] && { _zeroplan_flags "$command"; offered=$flags paths=; }
  fi
  while IFS= read -r word; do
    COMPREPLY+=("$word")
  done < <(
    compgen -W "$offered" -- "$current"
    [[ $paths == files ]] && compgen -f -- "$current"
    [[ $paths == folders ]] && compgen -d -- "$current"
  )
  [[ -n $paths ]] && compopt -o filenames 2> /dev/null
  return 0
}

complete -F _zeroplan zeroplan
)sh";

std::string BashCompletion(const CommandDescription& program) {
  std::string flags = "_zeroplan_flags() {\n  case \"$1\" in\n";
  for (const CommandPath& path : ShownPaths(program)) {
    std::vector<std::string> names;
    for (const OptionDescription& option : path.back()->options) {
      if (option.positional()) continue;
      names.insert(names.end(), option.names.begin(), option.names.end());
    }
    flags += fmt::format("    {})\n      flags={} ;;\n", QuoteForShell(PathBelow(path)),
                         QuoteForShell(Joined(names)));
  }
  flags += "  esac\n}\n\n";
  return "# Completions of zeroplan for bash, as 'zeroplan completion bash' prints them.\n\n" +
         TableOfOffers(program) + flags + std::string(kBashMain);
}

constexpr std::string_view kZshMain = R"sh(_zeroplan() {
  local command= option= word= current=$PREFIX takes= paths= offered=
  local -a described
  integer behind=0 i
  for ((i = 2; i < CURRENT; i++)); do
    word=${(Q)words[i]}
    if [[ $word == -* ]]; then
      option=${word%%=*} behind=0
      [[ $word == *=* ]] && behind=1
    elif [[ -z $option ]] && _zeroplan_below "$command" "$word"; then
      command="${command:+$command }$word"
    else
      (( behind += 1 ))
    fi
  done
  if [[ $current == --*=* ]]; then
    option=${current%%=*} behind=0
    compset -P '*='
    current=$PREFIX
  fi
  if [[ -n $option ]]; then
    _zeroplan_offers "$command" "$option"
    case $takes in
      one) (( behind > 0 )) && option= ;;
      several) [[ $current == -* ]] && option= ;;
      maybe) (( behind > 0 )) && option=
        [[ $current == -* ]] && option= ;;
      *) option= ;;
    esac
  fi
  if [[ -z $option ]]; then
    _zeroplan_offers "$command" ''
    if [[ $current == -* || $takes == none ]]; then
      _zeroplan_flags "$command"
      _describe -o option described
      return
    fi
    _zeroplan_commands "$command"
    if (( $#described )); then
      _describe command described
      return
    fi
  fi
  [[ -n $offered ]] && compadd -- ${=offered}
  [[ $paths == files ]] && _files
  [[ $paths == folders ]] && _files -/
}

# Sourced, or found by its name in $fpath.
if [[ $funcstack[1] == _zeroplan ]]; then
  _zeroplan "$@"
else
  compdef _zeroplan zeroplan
fi
)sh";

// "--model:what it is", as _describe takes it.
std::string Described(const std::string& name, const std::string& help) {
  return "        " + QuoteForShell(name + ":" + help) + "\n";
}

std::string ZshCompletion(const CommandDescription& program) {
  std::string flags = "_zeroplan_flags() {\n  case \"$1\" in\n";
  std::string commands = "_zeroplan_commands() {\n  case \"$1\" in\n";
  for (const CommandPath& path : ShownPaths(program)) {
    const std::string head = "    " + QuoteForShell(PathBelow(path)) + ")\n      described=(\n";
    flags += head;
    for (const OptionDescription& option : path.back()->options) {
      if (option.positional()) continue;
      for (const std::string& name : option.names) flags += Described(name, option.help);
    }
    flags += "      ) ;;\n";
    if (path.back()->commands.empty()) continue;
    commands += head;
    for (const CommandDescription* below : ShownCommands(*path.back())) {
      commands += Described(below->name, below->help);
    }
    commands += "      ) ;;\n";
  }
  flags += "  esac\n}\n\n";
  commands += "    *) described=() ;;\n  esac\n}\n\n";
  return "#compdef zeroplan\n"
         "# Completions of zeroplan for zsh, as 'zeroplan completion zsh' prints them.\n\n" +
         TableOfOffers(program) + flags + commands + std::string(kZshMain);
}

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
    set -l command (__zeroplan_command)
    test "$command" = "$argv[1]"
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
      lines +=
          fmt::format("complete -c zeroplan -n {}{}\n",
                      Quote(fmt::format("__zeroplan_behind {} {}", Quote(below), name)), offered);
    }
  }
  return lines;
}

std::string FishCompletion(const CommandDescription& program) {
  std::string commands = "set -g __zeroplan_commands", lines;
  for (const CommandPath& path : ShownPaths(program)) {
    if (path.size() > 1) commands += " " + Quote(" " + PathBelow(path));
    lines += Lines(path);
  }
  return "# Completions of zeroplan for fish, as 'zeroplan completion fish' prints them.\n\n" +
         commands + "\n\n" + std::string(kFishMain) + lines;
}

}  // namespace

std::string Completion(const CommandDescription& program, Shell shell) {
  switch (shell) {
    case Shell::kBash:
      return BashCompletion(program);
    case Shell::kZsh:
      return ZshCompletion(program);
    case Shell::kFish:
      return FishCompletion(program);
  }
  ZEROPLAN_CHECK(false, "shell {}", static_cast<int>(shell));
  return "";
}

}  // namespace zeroplan
