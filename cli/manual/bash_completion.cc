#include <fmt/format.h>

#include "cli/manual/completion.h"
#include "cli/manual/shell_words.h"
#include "core/base/strings.h"

namespace zeroplan {
namespace {

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

}  // namespace

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

}  // namespace zeroplan
