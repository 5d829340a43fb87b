#include <fmt/format.h>

#include "cli/manual/completion.h"
#include "cli/manual/shell_words.h"
#include "core/base/strings.h"

namespace zeroplan {
namespace {

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

}  // namespace

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

}  // namespace zeroplan
